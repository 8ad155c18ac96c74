package flow

import (
	"sort"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// ref is a reference of an instruction to a place in text: as memory that it reads or
// writes, or by its address.
type ref struct {
	Addr uint64
	Size uint32 // bytes of memory; 0: only the address
	// Open: memory from Addr on, of unknown length (the elements of an array). It
	// ends at the latest where a known path continues.
	Open bool
}

func compareRefs(a, b ref) int {
	switch {
	case a.Addr < b.Addr:
		return -1
	case a.Addr > b.Addr:
		return 1
	}
	return 0
}

// text reports whether an address is in text.
func (f *Func) text(a uint64) bool { return f.inside(a) || f.in.Text != nil && f.in.Text(a) }

// reference records the places that instruction k refers to. Branch targets are not
// references.
func (f *Func) reference(k int) {
	i := &f.insts[k]
	at := f.in.Addr + uint64(i.Off)
	if m, ok := i.Mem(); ok {
		if r, ok := f.memory(k, &m, at); ok && f.text(r.Addr) {
			f.refs = append(f.refs, r)
		}
	}
	if _, branch := i.Target(at); !branch && i.Imm != 0 && !f.in.Movable && f.text(uint64(i.Imm)) {
		f.refs = append(f.refs, ref{Addr: uint64(i.Imm)})
	}
}

// memory returns the address of the memory operand m of instruction k, as far as the
// preceding instructions determine it.
func (f *Func) memory(k int, m *x86.Mem, at uint64) (ref, bool) {
	i := &f.insts[k]
	r := ref{Size: uint32(m.Size), Open: m.Index != x86.NoReg}
	switch {
	case m.Segment != x86.SegNone:
		return ref{}, false
	case m.RIP:
		r.Addr = i.RIPTarget(at)
	case m.Base == x86.NoReg && f.in.Movable:
		return ref{}, false
	case m.Base == x86.NoReg:
		r.Addr = uint64(m.Disp)
	default:
		a, ok := f.findLeaTarget(k, m.Base)
		if !ok && m.Index != x86.NoReg && m.Scale == 1 {
			a, ok = f.findLeaTarget(k, m.Index)
		}
		if !ok {
			return ref{}, false
		}
		r.Addr = a + uint64(m.Disp)
	}
	switch {
	case isLea(&i.Inst):
		return ref{Addr: r.Addr}, true
	case m.Access == x86.AccessNone: // a hint
		return ref{}, false
	case r.Size == 0:
		r.Size, r.Open = 1, true
	}
	return r, true
}

// isLea reports whether i is lea.
func isLea(i *x86.Inst) bool {
	return (i.Enc == x86.Legacy || i.Enc == x86.REX2) && i.Map == x86.Map0 && i.Opcode == 0x8d
}

// Data returns why the n bytes at off are data and not an instruction, or "": the
// image's own data (Input.Object), the table of a jump, or an instruction that has
// them as memory operand, if no known path leads to them.
func (f *Func) Data(off, n int) string {
	lo := f.in.Addr + uint64(off)
	hi := lo + uint64(n)
	if f.in.Object != nil {
		if what := f.in.Object(lo, hi); what != "" {
			return what
		}
	}
	if k, ok := f.Index(off); ok && f.insts[k].Reached {
		return ""
	}
	return f.memoryIn(lo, hi)
}

// memoryIn returns the owner of memory that overlaps [lo, hi), or "".
func (f *Func) memoryIn(lo, hi uint64) string {
	what := ""
	look := func(r ref) bool {
		switch {
		case r.Size == 0 || r.Addr >= hi:
		case r.Addr+uint64(r.Size) > lo, r.Open && !f.continuesBetween(r.Addr, lo):
			what = "memory of an instruction"
		}
		return what == ""
	}
	for _, t := range f.tables {
		if t.Addr < hi && t.Addr+uint64(t.Size) > lo {
			return "a jump table"
		}
	}
	walkOverlapping(f.refs, f.in.Addr, hi, look)
	if what == "" && f.in.Known != nil {
		what = f.in.Known().table(lo, hi)
		if what == "" {
			walkOverlapping(f.in.Known().refs, f.in.Addr, hi, look)
		}
	}
	return what
}

// maxOperand is the most bytes of a memory operand (fxsave, xsave).
const maxOperand = 4096

// walkOverlapping calls look for the refs from shortly before lo up to hi, until it
// returns false. Open ones are listed at the function's first byte.
func walkOverlapping(refs []ref, lo, hi uint64, look func(ref) bool) {
	from := lo - min(lo, maxOperand)
	for i := sort.Search(len(refs), func(i int) bool { return refs[i].Addr >= from }); i < len(refs) && refs[i].Addr < hi; i++ {
		if !look(refs[i]) {
			return
		}
	}
}

// continuesBetween reports whether a known path leads to a place after lo, up to and
// including hi.
func (f *Func) continuesBetween(lo, hi uint64) bool {
	k := 0
	if lo >= f.in.Addr {
		k = sort.Search(len(f.insts), func(k int) bool { return f.in.Addr+uint64(f.insts[k].Off) > lo })
	}
	for ; k < len(f.insts) && f.in.Addr+uint64(f.insts[k].Off) <= hi; k++ {
		if f.insts[k].Reached {
			return true
		}
	}
	return false
}

// referred reports whether an instruction refers to an address or memory in [lo, hi).
func (f *Func) referred(lo, hi uint64) bool {
	found := false
	look := func(r ref) bool {
		found = found || r.Addr >= lo || r.Addr+uint64(r.Size) > lo
		return !found
	}
	walkOverlapping(f.refs, lo, hi, look)
	if !found && f.in.Known != nil {
		walkOverlapping(f.in.Known().refs, lo, hi, look)
	}
	return found || f.memoryIn(lo, hi) != ""
}
