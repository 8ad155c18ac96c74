package flow

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// walk follows the known paths through a function.
type walk struct {
	f     *Func
	begun []bool // an instruction of f.insts begins there
	taken []bool // bytes of reached instructions
	todo  []int  // offsets where paths begin

	tables []branch // targets of jump tables
}

func newWalk(f *Func) *walk {
	f.insts = make([]Inst, 0, f.size/3+1) // roughly the final number
	return &walk{f: f, begun: make([]bool, f.size), taken: make([]bool, f.size)}
}

// push records that a path leads to off.
func (w *walk) push(off int) {
	if off >= 0 && off < w.f.size && !w.begun[off] {
		w.todo = append(w.todo, off)
	}
}

// follow follows all paths. It looks for jump tables when the code before their jumps
// is known; these may add paths.
func (w *walk) follow() {
	f := w.f
	tried := map[int]bool{} // offsets of jumps whose table was found
	for len(w.todo) > 0 {
		for len(w.todo) > 0 {
			off := w.todo[len(w.todo)-1]
			w.todo = w.todo[:len(w.todo)-1]
			w.path(off)
		}
		f.sort()
		for k := range f.insts {
			i := &f.insts[k]
			if i.Class() != x86.ClassJumpInd || tried[i.Off] {
				continue
			}
			if t, ok := f.jumpTable(k); ok {
				tried[i.Off] = true
				for _, to := range t.targets {
					w.push(int(to - f.in.Addr))
					w.tables = append(w.tables, branch{to, i.Off})
				}
			}
		}
	}
}

// path decodes from off on, as long as instructions fall through.
func (w *walk) path(off int) {
	f := w.f
	for off < f.size && !w.begun[off] {
		in, err := x86.Decode(f.in.Code[off:])
		if err != nil {
			return
		}
		i := Inst{Off: off, Reached: true, Inst: in}
		f.insts = append(f.insts, i)
		w.begun[off] = true
		for n := range int(in.Len) {
			w.taken[off+n] = true
		}
		local := false
		if t, ok := in.Target(f.in.Addr + uint64(off)); ok && f.inside(t) {
			w.push(int(t - f.in.Addr))
			local = in.Class() == x86.ClassCall && t != f.in.Addr
		}
		if local || !continues(&in) {
			return
		}
		off = i.end()
	}
}

// continues reports whether the next instruction is certainly code, because this one can
// fall through to it. Instructions that switch to other code (sysret, vmrun, rsm) may
// never come back.
func continues(i *x86.Inst) bool {
	switch i.Class() {
	case x86.ClassTransfer, x86.ClassVMEntry:
		return false
	}
	return i.Falls()
}

// decodeRest decodes, in straight lines, the bytes that no path has reached: first
// those after a reached instruction, and again after each byte at which no
// instruction begins. No instruction of the rest overlaps a reached one. If all is
// code, the code after the padding at the beginning counts as reached.
func (w *walk) decodeRest() {
	f := w.f
	pad := true // only padding since the last reached instruction
	for off := 0; off < f.size; {
		if w.taken[off] {
			off, pad = off+1, true
			continue
		}
		in, err := x86.Decode(f.in.Code[off:])
		if err != nil || slices.Contains(w.taken[off:off+int(in.Len)], true) {
			off, pad = off+1, false
			continue
		}
		pad = pad && isPadding(&in)
		f.insts = append(f.insts, Inst{Off: off, Reached: f.in.AllCode && !pad, Inst: in})
		w.begun[off] = true
		off += int(in.Len)
	}
	if !f.in.AllCode {
		w.resync()
	}
	f.sort()
}

// resync decodes the rest again from each place where the straight lines have no
// instruction begin, but one must: the target of a direct branch, of this function or
// another, or a symbol. The results overlap the straight lines, and either may be
// code: see Boundary. Each byte is decoded from once.
func (w *walk) resync() {
	f := w.f
	lead := func(i *x86.Inst, off int) {
		if t, ok := i.Target(f.in.Addr + uint64(off)); ok && f.inside(t) {
			w.push(int(t - f.in.Addr))
		}
	}
	for k := range f.insts {
		lead(&f.insts[k].Inst, f.insts[k].Off)
	}
	for _, a := range f.in.Symbols {
		w.push(int(a - f.in.Addr))
	}
	if f.in.Known != nil {
		for _, t := range f.in.Known().Targets(f.in.Addr, f.in.Addr+uint64(f.size)) {
			w.push(int(t - f.in.Addr))
		}
	}
	for len(w.todo) > 0 {
		off := w.todo[len(w.todo)-1]
		w.todo = w.todo[:len(w.todo)-1]
		for off < f.size && !w.begun[off] {
			in, err := x86.Decode(f.in.Code[off:])
			if err != nil || slices.Contains(w.taken[off:off+int(in.Len)], true) {
				break
			}
			f.insts = append(f.insts, Inst{Off: off, Inst: in})
			w.begun[off] = true
			lead(&in, off)
			off += int(in.Len)
		}
	}
}

// sort sorts the instructions by offset.
func (f *Func) sort() { slices.SortFunc(f.insts, func(a, b Inst) int { return a.Off - b.Off }) }
