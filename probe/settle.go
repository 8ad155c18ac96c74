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
	if r == nil && c.depth == 0 {
		if r = c.stageBelow(s); r != nil {
			return endsOf(r), false
		}
	}
	if r == nil || st.exact() || c.depth != 0 {
		return nil, true
	}
	if c.undo(s.Regs, s.Root, true) {
		return nil, true
	}
	if at := endsOf(r); at != nil {
		return at, false
	}
	return nil, true
}

// endsOf returns where the stages of r have ended, or will not run.
func endsOf(r resident) []guest.GVA {
	switch x := r.(type) {
	case *detour:
		if x.exit != 0 {
			return []guest.GVA{x.ended, x.undone}
		}
		return []guest.GVA{x.ended}
	case *instances:
		return []guest.GVA{x.ended}
	}
	return nil
}

// InHandlers reports whether a vCPU runs a Stage, or a handler of the guest's kernel for
// a fault of that Stage: it will reach the addresses that Settle has returned. It is
// called on the vCPU's own thread.
func (e *Engine) InHandlers(cpu int, s State) bool {
	return e.InCode(guest.GVA(s.Regs.RIP)) || e.cpus[cpu].stageBelow(s) != nil
}

// stageBelow returns the code whose stage a handler of the guest's kernel interrupts that
// the vCPU runs, for a stage that loads from memory that may not be there; or nil.
func (c *cpu) stageBelow(s State) resident {
	p := c.tasks.Load()
	if p == nil || p.Faults == nil || s.CPL != 0 || !maybeAbove(c, s, nil) {
		return nil
	}
	stack := make([]byte, handlerDepth)
	n := 0
	for n < len(stack) { // up to the next page that is not mapped
		at := s.Regs.RSP + uint64(n)
		b := stack[n:min(len(stack), n+int(pageSize-at%pageSize))]
		if c.target.ReadMemory(s.Root, guest.GVA(at), b) != nil {
			break
		}
		n += len(b)
	}
	for off := int(-s.Regs.RSP & 7); off+ctxBytes <= n; off += 8 {
		at := guest.GVA(le.Uint64(stack[off:]))
		st, r := c.stanceOf(at)
		if r == nil || !r.loads() || st.again || st.done {
			continue
		}
		var f frame
		for k := range f.words {
			f.words[k] = stack[off+8*k:][:8]
		}
		if f.isFrame(false) {
			return r
		}
	}
	return nil
}
