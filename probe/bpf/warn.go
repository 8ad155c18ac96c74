package bpf

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// Warning is a certain mistake of a program, on at least one path.
type Warning struct {
	Index  int    // slot of the instruction
	Text   string // the instruction
	What   string // the mistake
	Source string // file, line and text of the source, if the object has them
}

// Error names the instruction, the mistake, and the source.
func (w *Warning) Error() string {
	s := fmt.Sprintf("instruction %d (%s): %s", w.Index, w.Text, w.What)
	if w.Source != "" {
		s += " (" + w.Source + ")"
	}
	return s
}

// maxWarnings is the most mistakes of a program that are reported.
const maxWarnings = 50

// Warnings returns the mistakes that the verifier finds, in the order of the
// instructions; after maxWarnings only the number of the others. The program runs
// nevertheless: an error at run time ends the run.
func (p *Program) Warnings() []Warning {
	a := verify(p, true)
	if a.gaveUp {
		return []Warning{{Index: 0, Text: textOf(p.slots[0]), What: "the program has more paths than the verifier follows: mistakes in it are not found", Source: p.sourceOf(0)}}
	}
	a.confirm()
	a.warnUnreachable()
	a.warnEndless()
	slices.SortStableFunc(a.warnings, func(x, y Warning) int { return x.Index - y.Index })
	out := slices.Compact(a.warnings)
	if n := len(out) - maxWarnings; n > 0 {
		out, a.more = out[:maxWarnings], a.more+n
	}
	if a.more > 0 {
		out[len(out)-1].What += fmt.Sprintf(" (%d more warnings are not shown)", a.more)
	}
	var last fmt.Stringer
	at := 0
	for i := range out {
		w := &out[i]
		for ; at <= w.Index; at++ {
			if i := p.slots[at]; i != nil && i.Source() != nil {
				last = i.Source()
			}
		}
		if w.Text = textOf(p.slots[w.Index]); last != nil {
			w.Source = source(last)
		}
	}
	return out
}

// textOf formats an instruction. The calls of Linux's kfuncs have their names, which
// package asm does not know.
func textOf(i *asm.Instruction) string {
	if h := helperByID[Helper(i.Constant)]; i.IsBuiltinCall() && h != nil && h.ID > HelperWatched {
		return "Call " + h.Name
	}
	return fmt.Sprint(*i)
}

// WarnLacking returns a warning for the first call of each helper that lacks
// something, as described by lacks: its result is 0, or nothing is filled in.
func (p *Program) WarnLacking(lacks func(Helper) string) (out []Warning) {
	told := map[Helper]bool{}
	for pc, i := range p.slots {
		if i == nil || p.ops[pc].code != opCall || told[Helper(p.ops[pc].imm)] {
			continue
		}
		h := Helper(p.ops[pc].imm)
		told[h] = true
		if why := lacks(h); why != "" {
			out = append(out, Warning{Index: pc, Text: textOf(i), What: fmt.Sprintf("%v is always 0 or empty in this guest: %s", h, why), Source: p.sourceOf(pc)})
		}
	}
	return out
}

// sourceOf is the source of an instruction, if the object has it: a line is recorded
// at its first instruction.
func (p *Program) sourceOf(pc int) string {
	for at := pc; at >= 0; at-- {
		if i := p.slots[at]; i != nil {
			if src := i.Source(); src != nil {
				if s := source(src); s != "" {
					return s
				}
			}
		}
	}
	return ""
}

// warn records a mistake.
func (a *verifier) warn(pc int, format string, args ...any) {
	a.warnTo(&a.warnings, pc, format, args...)
}

// warnTo is warn for a separate list. After twice maxWarnings only the number is
// kept.
func (a *verifier) warnTo(to *[]Warning, pc int, format string, args ...any) {
	switch {
	case !a.final || !a.tell:
	case a.walker != nil && a.told[pc]:
	case len(*to) >= 2*maxWarnings:
		a.more++
	default:
		*to = append(*to, Warning{Index: pc, What: fmt.Sprintf(format, args...)})
		if a.walker != nil {
			a.told[pc] = true // once is enough: other paths come here too
		}
	}
}

// warnUnsetReads warns of registers that an operation reads before they are written.
func (a *verifier) warnUnsetReads(pc int, st *state) {
	o := &a.p.ops[pc]
	read := func(r uint8, of string) {
		if st.regs[r].unset {
			a.warn(pc, "%v is read and may not have been written%s", Reg(r), of)
		}
	}
	switch {
	case o.code == opCall:
		h := helperByID[Helper(o.imm)]
		for i := range h.args {
			read(uint8(R1)+uint8(i), ", as an argument of "+h.Name)
		}
	case o.code == opExit:
		if a.p.fns.indexOf(pc) == 0 {
			read(uint8(R0), ": it is the result")
		}
	case o.code < opSingles:
		if o.code&^3 != opMov {
			read(o.dst, "")
		}
		if o.code&1 != 0 {
			read(o.src, "")
		}
	case o.code >= opMovs8 && o.code <= opMovs16w || o.code >= opLoad8 && o.code <= opLoads32:
		read(o.src, "")
	case o.code == opStoreX, o.code == opAtomic:
		read(o.src, "")
		read(o.dst, "")
	case o.code != opJa && o.code != opMayGoto && o.code != opLoadImm && o.code != opCallLocal:
		read(o.dst, "")
	}
}

// checkWritten warns of a place in the frame that is read before it is written. If
// some bytes were, the others may be padding of a structure.
func (a *verifier) checkWritten(pc int, st *state, v *value, acc access) {
	if !a.final || v.kind != inFrame || acc.class != direct || acc.size == 0 {
		return
	}
	if first, n := acc.span(v); st.touched.count(first, n) == 0 {
		a.warn(pc, "%d bytes of the stack are read at r10%+d, which may not have been written", acc.size, first)
	}
}

// warnAccess warns of an access that is wrong whatever the program has computed.
func (a *verifier) warnAccess(pc int, v *value, off int64, n int, write bool) {
	if !a.final {
		return
	}
	verb := "read"
	if write {
		verb = "written"
	}
	lo, hi, ok := a.extent(v.base, write)
	if v.kind == inRecord {
		hi = a.sizes[v.id][1]
	}
	switch {
	case v.kind == noBase && v.num.uhi < 1<<segShift-nearest:
		a.warn(pc, "the %s value is not an address: it is a number less than 1 << %d", verb, segShift)
	case v.kind == aMap:
		a.warn(pc, "the %s value is not an address: it is map %q itself", verb, a.p.maps[v.m].spec.Name)
	case v.kind == noBase && !v.mixed && !a.p.follows:
		a.warn(pc, "the %s address is not the program's: read the guest's memory by bpf_probe_read_kernel and _user", verb)
	case v.kind == noBase:
	case !ok:
		a.warn(pc, "the %s cannot be %s", a.name(v.base), verb)
	case v.null && !v.told:
		a.warn(pc, "the %s is used without a check for 0", a.name(v.base))
	case v.num.hi < lo-off || v.num.lo > hi-off-int64(n):
		at := v.num.lo
		if at < math.MinInt64/2 {
			at = v.num.hi // that is outside too
		}
		a.warn(pc, "%d bytes at offset %d are outside the %s, which has %d", n, at+off, a.name(v.base), hi-lo)
	}
}

// warnAligned warns of an access to the frame that is not aligned to its size.
func (a *verifier) warnAligned(pc int, v *value, o *op) {
	at := v.num.plus(constant(uint64(o.off)))
	if a.final && v.kind == inFrame && at.val&^at.unk&uint64(o.size-1) != 0 {
		a.warn(pc, "%d bytes of the stack at %s are not aligned: Linux's verifier refuses that", o.size, frameOffset(at))
	}
}

// frameOffset formats an offset in the frame.
func frameOffset(n number) string {
	if c, ok := n.singleValue(); ok {
		return fmt.Sprintf("r10%+d", int64(c))
	}
	return fmt.Sprintf("r10%+d to r10%+d", n.lo, n.hi)
}

// maxMove is the largest distance of an address from its base, as in Linux's verifier
// (BPF_MAX_VAR_OFF).
const maxMove = 1 << 29

// warnMoved warns of an address that is moved further than any object could be long,
// and returns it.
func (a *verifier) warnMoved(pc int, v value) value {
	if a.final && v.kind != noBase && v.kind != aMap && (v.num.lo > maxMove || v.num.hi < -maxMove) {
		by := v.num.lo
		if v.num.hi < 0 {
			by = v.num.hi
		}
		a.warn(pc, "this moves an address by %d bytes from the %s, out of range", by, a.name(v.base))
	}
	return v
}

// warnALU warns of arithmetic with addresses, except if the result is another address
// of the same object or the distance between two.
func (a *verifier) warnALU(pc int, kind opc, long bool, d, s *value) {
	if !a.final || kind == opMov || d.kind == noBase && s.kind == noBase {
		return
	}
	at, other := d, s
	if d.kind == noBase {
		at, other = s, d
	}
	switch {
	case kind == opSub && d.kind != noBase && s.kind != noBase, kind == opSub && !long && d.kind != noBase:
	case at.kind == aMap && long && kind == opAdd && other.isConst(0):
	case at.kind == aMap:
		a.warn(pc, "this computes with map %q itself, which has no address", a.p.maps[at.m].spec.Name)
	case d.kind != noBase && s.kind != noBase && kind == opAdd:
		a.warn(pc, "this adds two addresses: of the %s and of the %s", a.name(d.base), a.name(s.base))
	case kind == opSub && d.kind == noBase:
		a.warn(pc, "this subtracts an address, of the %s, from a number", a.name(s.base))
	case kind != opAdd && kind != opSub || !long:
		a.warn(pc, "this computes with an address, of the %s, as if it were a number", a.name(at.base))
	case at.null && at.id != 0 && !at.told:
		a.warn(pc, "the %s is computed with before a check for 0", a.name(at.base))
	}
}

// warnSingle warns of a negation, an exchange of bytes or an extension of an address.
func (a *verifier) warnSingle(pc int, st *state, o *op) {
	of := &st.regs[o.dst]
	if o.code >= opMovs8 && o.code <= opMovs16w {
		of = &st.regs[o.src]
	}
	switch {
	case !a.final || of.kind == noBase:
	case of.kind == aMap:
		a.warn(pc, "this computes with map %q itself, which has no address", a.p.maps[of.m].spec.Name)
	default:
		a.warn(pc, "this computes with an address, of the %s, as if it were a number", a.name(of.base))
	}
}

// name describes a base.
func (a *verifier) name(b base) string {
	switch b.kind {
	case inContext:
		return "context"
	case inFrame:
		return "stack frame"
	case inRecord:
		return fmt.Sprintf("record of ring %q", a.p.maps[b.m].spec.Name)
	}
	return fmt.Sprintf("value of map %q", a.p.maps[b.m].spec.Name)
}

// source returns the place in the source that an instruction comes from.
func source(s fmt.Stringer) string {
	if l, ok := s.(*btf.Line); ok {
		return fmt.Sprintf("%s:%d: %s", l.FileName(), l.LineNumber(), strings.TrimSpace(l.Line()))
	}
	return strings.TrimSpace(s.String())
}
