package bpf

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Warning is something in a program that certainly is a mistake, on some path at
// least.
type Warning struct {
	Index  int    // slot of the instruction
	Text   string // the instruction
	What   string // what is wrong with it
	Source string // file, line and text of the source, if the object has them
}

// Error names the instruction, what is wrong, and the source.
func (w *Warning) Error() string {
	s := fmt.Sprintf("instruction %d (%s): %s", w.Index, w.Text, w.What)
	if w.Source != "" {
		s += " (" + w.Source + ")"
	}
	return s
}

// Warnings returns the mistakes that the verifier finds, in the order of the
// instructions. The program runs nevertheless: what goes wrong in a run ends that.
func (p *Program) Warnings() []Warning {
	a := verify(p)
	a.unreachable()
	slices.SortStableFunc(a.warnings, func(x, y Warning) int { return x.Index - y.Index })
	return slices.Compact(a.warnings)
}

// Lacking returns a warning for the first call of each helper that lacks something, by what lacks says of it: its
// result is 0, or nothing is filled in.
func (p *Program) Lacking(lacks func(Helper) string) (out []Warning) {
	told := map[Helper]bool{}
	for pc, i := range p.slots {
		if i == nil || p.ops[pc].code != opCall || told[Helper(p.ops[pc].imm)] {
			continue
		}
		h := Helper(p.ops[pc].imm)
		told[h] = true
		if why := lacks(h); why != "" {
			out = append(out, Warning{Index: pc, Text: fmt.Sprint(*i), What: fmt.Sprintf("%v is always 0 or empty in this guest: %s", h, why), Source: p.sourceOf(pc)})
		}
	}
	return out
}

// sourceOf is the source of an instruction, if the object has it: a line is noted at its first instruction.
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

// warn notes a mistake.
func (a *verifier) warn(pc int, format string, args ...any) {
	if !a.final {
		return
	}
	a.warnings = append(a.warnings, Warning{Index: pc, Text: fmt.Sprint(*a.p.slots[pc]), What: fmt.Sprintf(format, args...), Source: a.p.sourceOf(pc)})
}

// reads warns of registers that an operation reads before anything was put there.
func (a *verifier) reads(pc int, st *state) {
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
		if a.p.fns.of(pc) == 0 {
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
	case o.code != opJa && o.code != opLoadImm && o.code != opCallLocal:
		read(o.dst, "")
	}
}

// checkWritten warns of a place in the frame that is read before anything is written
// there. Where some bytes were, the others may be those between the fields of a
// structure.
func (a *verifier) checkWritten(pc int, st *state, off int64, n int) {
	if st.written.count(off, n) == 0 {
		a.warn(pc, "%d bytes of the stack are read at r10%+d, which may not have been written", n, off)
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
	first, last := v.num.lo+off, v.num.hi+off
	switch {
	case v.kind == noBase && v.num.uhi < 1<<segShift-nearest:
		a.warn(pc, "what is %s is at no address: it is a number less than 1 << %d", verb, segShift)
	case v.kind == aMap:
		a.warn(pc, "what is %s is at no address: it is map %q itself", verb, a.p.maps[v.m].spec.Name)
	case v.kind == noBase:
	case !ok:
		a.warn(pc, "the %s cannot be %s", a.name(v.base), verb)
	case v.null:
		a.warn(pc, "the %s is used without a check for 0", a.name(v.base))
	case v.near() && (last < lo || first+int64(n) > hi):
		a.warn(pc, "%d bytes at offset %d are outside the %s, which has %d", n, first, a.name(v.base), hi-lo)
	}
}

// name says what a base is.
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

// unreachable warns of instructions that no path of jumps comes to, whatever they
// compare.
func (a *verifier) unreachable() {
	seen := make([]bool, len(a.p.ops))
	todo := slices.Clone(a.p.fns.starts)
	for len(todo) > 0 {
		pc := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		for !seen[pc] {
			seen[pc] = true
			o := &a.p.ops[pc]
			if o.code == opExit {
				break
			}
			if o.jumps() {
				todo = append(todo, int(o.off))
			}
			if o.code == opJa {
				break
			}
			if pc++; o.code == opLoadImm {
				pc++
			}
		}
	}
	for pc := 0; pc < len(seen); pc++ {
		if seen[pc] || a.p.slots[pc] == nil {
			continue
		}
		first := pc
		for pc+1 < len(seen) && (!seen[pc+1] || a.p.slots[pc+1] == nil) {
			pc++
		}
		if n := pc - first + 1; n > 1 {
			a.warn(first, "this and what follows, up to instruction %d, is never executed", pc)
		} else {
			a.warn(first, "this is never executed")
		}
	}
}

// source says where in the source an instruction comes from.
func source(s fmt.Stringer) string {
	if l, ok := s.(*btf.Line); ok {
		return fmt.Sprintf("%s:%d: %s", l.FileName(), l.LineNumber(), strings.TrimSpace(l.Line()))
	}
	return strings.TrimSpace(s.String())
}
