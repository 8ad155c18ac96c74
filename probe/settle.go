package probe

import "github.com/guestprobe/guestprobe/guest"

// Settle moves a vCPU that rests in the engine's code to where its registers are the
// guest's own, and an interrupt may find it, if that does not change the effects of
// that code: back to its beginning, or on to its end. If that is impossible it
// returns addresses of which the vCPU reaches one soon, and from which it can be
// settled. It is called on the vCPU's own thread.
func (e *Engine) Settle(cpu int, s State) (ends []guest.GVA, ok bool) {
	c := &e.cpus[cpu]
	rip := guest.GVA(s.Regs.RIP)
	st, r := c.stanceOf(rip)
	if r == nil || st.exact() || c.depth != 0 {
		return nil, true
	}
	if c.undo(s.Regs, s.Root, true) {
		return nil, true
	}
	switch x := r.(type) {
	case *detour:
		return []guest.GVA{x.ended}, false
	case *instances:
		return []guest.GVA{x.ended}, false
	}
	return nil, true
}
