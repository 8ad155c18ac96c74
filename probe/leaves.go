package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// A kretprobe on a function of a file has no trampolines: there is no memory for them
// in processes, and a return address that leads to an int3 in a page of the file
// would lead to nothing when the kernel drops that page. Its calls are left by the
// instructions that leave the function, which are probed themselves, and by the exits
// of the functions that it ends with a jump to. Nothing on the process's stack is
// changed. An activation is identified by its address space, the place of its return
// address (below), and that address: this keeps its returns apart from the returns of
// a fork's copy of the stack, of another thread and of a signal's handler. One that
// is left by a long jump or the end of the process is detected like any other (fate),
// or when its place on the stack is used again.

// Go moves a goroutine's stack when it grows or shrinks. In Go code R14 is the
// goroutine's descriptor, which begins with the bounds of its stack (runtime.g,
// ABIInternal); a move preserves the distance from the upper bound. So if R14 points
// to bounds that RSP is within, an activation's place is the descriptor and that
// distance. Other code that has such bounds in R14 preserves R14 across a call, by
// its ABI.

// maxStackBounds is the largest stack that is accepted as a goroutine's: twice the
// runtime's limit.
const maxStackBounds = 2 << 30

// spot is where on its stack an activation has its return address.
type spot struct {
	place, root uint64
	g, off      uint64 // the stack's descriptor, and how far below its end; or 0
}

// spot returns the spot of the return address at RSP.
func (c *cpu) spot(s State) spot {
	x := spot{place: s.Regs.RSP, root: uint64(s.Root)}
	g := s.Regs.R14
	if g == 0 || g%8 != 0 || g>>47 != 0 {
		return x
	}
	lo, ok := c.readWord(s, g)
	if !ok || uint64(lo) == 0 || uint64(lo) > x.place {
		return x
	}
	hi, ok := c.readWord(s, g+8)
	if ok && uint64(hi) > x.place && uint64(hi-lo) <= maxStackBounds {
		x.g, x.off = g, uint64(hi)-x.place
	}
	return x
}

// maxLeft bounds MaxActive of such a kretprobe, whose records are searched.
const maxLeft = 4096

// defaultLeft is its default MaxActive: calls of many processes are under way.
const defaultLeft = 256

// maxTails bounds the functions that such a function ends with a jump to.
const maxTails = 32

// usesLeaves reports whether kretprobes on code of that privilege are of this kind.
func (k *core) usesLeaves(user bool) bool {
	return user && k.files != nil && k.can[guest.Level(user)].NoExec != ""
}

// leavePlaces returns the addresses where calls of the function that sym names are
// left. It fails as Functions.Exits does.
func (p *places) leavePlaces(sym guest.Symbol) ([]where, *Error) {
	var out []where
	todo, seen := []guest.Symbol{sym}, map[guest.GVA]bool{sym.Addr: true}
	refuse := func(of guest.Symbol, at guest.GVA, why string) *Error {
		return newError(CodeExitsUnknown, fmt.Sprintf("the exits of %s are not all known", sym.Name), fmt.Sprintf("%s+%#x: %s", of.Name, uint64(at-of.Addr), why))
	}
	syms := p.target.Symbols()
	for len(todo) > 0 {
		of := todo[0]
		todo = todo[1:]
		exits, err := p.functions().exits(of, true)
		if err != nil {
			return nil, err.(*Error)
		}
		for _, x := range exits {
			in, _ := syms.Find(x.Addr) // perhaps a cold part of it
			if !x.Tail {
				out = append(out, where{symbol: in.Name, offset: uint64(x.Addr - in.Addr)})
				continue
			}
			i, err := x86.Decode(syms.Code(x.Addr, x86.MaxLen))
			if err != nil {
				return nil, refuse(of, x.Addr, err.Error())
			}
			to, _ := i.Target(uint64(x.Addr))
			next, ok := syms.Find(guest.GVA(to))
			switch {
			case !ok || next.Addr != guest.GVA(to) || next.Size <= 1:
				return nil, refuse(of, x.Addr, "it continues with a jump to code that is not a named function (of another file?)")
			case seen[next.Addr]:
			case len(seen) > maxTails:
				return nil, refuse(of, x.Addr, fmt.Sprintf("it ends with more than %d other functions", maxTails))
			default:
				seen[next.Addr] = true
				todo = append(todo, next)
			}
		}
	}
	return out, nil
}

// isAt reports whether the place of record i is the spot x.
func (t *instances) isAt(i int, x spot) bool {
	if t.word(i, instRoot).Load() != x.root {
		return false
	}
	if g := t.word(i, instStack).Load(); g != 0 && x.g != 0 {
		return g == x.g && t.word(i, instBelow).Load() == x.off
	}
	return t.word(i, instPlace).Load() == x.place
}

// find returns the live record of the activation whose return address ret is at x, or
// any activation at that place if ret is 0; else -1.
func (t *instances) find(x spot, ret uint64) int {
	if t.words[wordUsed].Load() == 0 {
		return -1
	}
	for i := range t.n {
		if t.word(i, instState).Load()&phaseMask == phaseLive && t.isAt(i, x) && (ret == 0 || t.word(i, instNext).Load() == ret) {
			return i
		}
	}
	return -1
}

// abandonDisplaced abandons activations whose return address is at a place that a
// call now uses for its own.
func (t *instances) abandonDisplaced(x spot) {
	for {
		i := t.find(x, 0)
		if i < 0 || !t.abandon(i, t.word(i, instState).Load(), 0) {
			return
		}
	}
}

// leave is the kind of the engine's own probes on the exits of a function.
type leave struct {
	ordinary
	of *retprobe
}

// traits implements kind.
func (leave) traits() traits { return counted | subordinate }

// arrive implements kind.
func (l leave) arrive(c *cpu, s State, _ *registration, _ *cell) (taken bool) {
	c.noteLeaving(s, l.of)
	return false
}

// noteLeaving records which activation of rp the vCPU is about to leave, if any.
func (c *cpu) noteLeaving(s State, rp *retprobe) {
	t := rp.table()
	if t == nil || !t.left {
		return
	}
	ret, ok := c.readWord(s, s.Regs.RSP)
	if !ok || ret == 0 {
		return
	}
	if i := t.find(c.spot(s), uint64(ret)); i >= 0 && t.markLeaving(i, t.word(i, instState).Load()) {
		c.leaving = append(c.leaving, activation{t, i})
	}
}

// cancelLeaving cancels the leaving of activations: a handler has sent the guest
// elsewhere.
func (c *cpu) cancelLeaving() {
	for _, a := range c.leaving {
		state := a.t.word(a.i, instState)
		state.Store(state.Load() - phaseLeaving + phaseLive)
	}
	c.leaving = c.leaving[:0]
}

// runLeaveHandlers runs the return handlers of the activations that the return on st
// leaves, the oldest probe's first, with the registers that the caller will have.
func (c *cpu) runLeaveHandlers(s State, st *site) {
	count(&c.counts.returns)
	leaving := c.leaving
	c.leaving = leaving[:0]
	sp := s.Regs.RSP
	s.Regs.RSP += 8
	if b := st.bytes(); len(b) >= 3 && b[len(b)-3] == 0xc2 { // ret imm16
		s.Regs.RSP += uint64(le.Uint16(b[len(b)-2:]))
	}
	for k := len(leaving) - 1; k >= 0; k-- {
		a := leaving[k]
		home := guest.GVA(a.t.word(a.i, instNext).Load())
		s.Regs.RIP = uint64(home)
		c.deliverReturn(s, a.t, a.i, home)
		a.t.recycle(a.i)
	}
	s.Regs.RSP = sp
}
