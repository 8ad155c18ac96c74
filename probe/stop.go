package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Stop has the target stop the vCPU (Verdict.Stop). A vCPU stopped in a pre handler
// is at the probed instruction, which it executes when it resumes, by Engine.Resume or
// Engine.Advance; in other handlers it is after the instruction, or where the
// function returns to.
func (c *Context) Stop() { c.StopBy(nil) }

// StopBy is Stop with who as the reported cause (Engine.TakeStopper). Of several in
// one hit it is the first.
func (c *Context) StopBy(who any) {
	if !c.cpu.stopping {
		c.cpu.stopping, c.cpu.stoppedBy = true, who
	}
}

// TakeStopper returns the cause of a vCPU's stop, once; nil if the stop has no cause
// to report. It is called on the vCPU's thread.
func (e *Engine) TakeStopper(cpu int) any {
	c := &e.cpus[cpu]
	by := c.stoppedBy
	c.stoppedBy = nil
	return by
}

// addStop moves the handlers' stop requests into a verdict, at the end of the
// outermost hit.
func (c *cpu) addStop(v Verdict) Verdict {
	if c.stopping && c.depth == 0 {
		c.stopping, v.Stop = false, true
	}
	return v
}

// hold leaves the vCPU at the probed instruction.
func (c *cpu) hold(s State, st *site, chain chain, watch bool, at guest.GVA) Verdict {
	s.Regs.RIP = uint64(at)
	c.held = held{site: st, at: at, chain: chain, seq: c.seq, watch: watch}
	return Verdict{Action: Resume}
}

// takeHeld returns the hit that the vCPU is held at, if it and the site are still
// there.
func (c *cpu) takeHeld(s State) (held, bool) {
	h := c.held
	c.held = held{}
	if h.site == nil || h.at != guest.GVA(s.Regs.RIP) || c.armedSite(s) != h.site {
		return held{}, false
	}
	c.seq = h.seq
	return h, true
}

// armedSite returns the site whose int3 or jump is at RIP, or nil.
func (c *cpu) armedSite(s State) *site {
	rip := guest.GVA(s.Regs.RIP)
	st := c.sites.Find(rip)
	if st == nil || !c.sameCode(s, st, rip) {
		st = c.siteOfAlias(s, rip)
	}
	if st == nil || !st.armed.Load() {
		return nil
	}
	return st
}

// Resume resumes a vCPU that was stopped: it executes the instruction whose handlers
// have run. If the probe was removed or RIP was changed, there is no such
// instruction, and the vCPU resumes where it is. If steps have led it into the middle
// of what a jump displaces, it resumes in the copy: the guest would hit an int3
// there. It is called as Hit is.
func (e *Engine) Resume(cpu int, s State) Verdict {
	c := &e.cpus[cpu]
	if h, ok := c.takeHeld(s); ok {
		return c.addStop(c.executeAt(s, h.site, h.chain, false, h.watch, h.at))
	}
	if c.armedSite(s) == nil {
		c.resumePunned(s, guest.GVA(s.Regs.RIP))
	}
	return Verdict{Action: Resume}
}

// Advance executes the one instruction at RIP of a vCPU that rests between two, as
// Resume does, but never in a slot: it is emulated, or the verdict is StepInPlace. If
// there is a probe whose handlers have not run, they run first. It is called as Hit
// is. code is the guest's bytes at RIP.
func (e *Engine) Advance(cpu int, s State, code []byte) Verdict {
	c := &e.cpus[cpu]
	h, ok := c.takeHeld(s)
	if st := c.armedSite(s); !ok && st != nil {
		count(&c.counts.breakpoints)
		c.stopping = true
		v := c.handleArrival(s, st, nil)
		c.stopping = false
		if h, ok = c.takeHeld(s); !ok {
			return v // a handler has sent the vCPU elsewhere
		}
	}
	at := guest.GVA(s.Regs.RIP)
	if !ok {
		h = held{site: newProbelessSite(at, s.CPL, code), at: at}
	}
	if p := h.site.plan(); p.Inst.Class() == x86.ClassInterrupt && p.Inst.Opcode == x86.Int3 {
		return Verdict{Action: NotOurs}
	}
	if b := h.site.bytes(); len(b) == 1 && b[0] == opHlt && s.CPL == 0 {
		s.Regs.RIP++ // it does not wait
		return c.runPostHandlers(s, h.site, h.chain, !ok, h.seq, s.Regs.RFLAGS&x86.FlagTF)
	}
	if h.site.plan().Kind == x86.Emulate {
		if v, done := c.emulate(s, h.site, h.chain, !ok); done {
			return v
		}
	}
	if c.step.active && !c.step.inPlace {
		c.under = c.step // it goes back there, as at the iretq of a stub
	}
	c.step = step{active: true, inPlace: true, at: at, missed: !ok, site: h.site, chain: h.chain, seq: h.seq, traced: s.Regs.RFLAGS&x86.FlagTF != 0}
	c.held = held{}
	return Verdict{Action: StepInPlace}
}

// Emulate does what Advance does if that needs neither the vCPU nor a handler, and
// reports whether it did; otherwise nothing has changed. Any thread may call it while
// the world is stopped.
func (e *Engine) Emulate(cpu int, s State, code []byte) bool {
	c := &e.cpus[cpu]
	at := guest.GVA(s.Regs.RIP)
	st, h := c.armedSite(s), c.held
	switch {
	case s.Regs.RFLAGS&x86.FlagTF != 0:
		return false
	case st == nil:
		st = newProbelessSite(at, s.CPL, code)
	case h.site != st || h.at != at:
		return false // its handlers have not run
	}
	if h.site == st {
		for _, r := range h.chain {
			if r.post != nil {
				return false
			}
		}
	}
	if p := st.plan(); p.Kind != x86.Emulate || p.Shadow {
		return false
	}
	before := *s.Regs
	c.mem.root, c.mem.cpl, c.mem.err = s.Root, s.CPL, nil
	if st.plan().Inst.Emulate(s.Regs.RIP, s.Regs, &c.mem) != nil || e.InSlot(guest.GVA(s.Regs.RIP)) {
		*s.Regs = before // it raises an exception, or is a return that has handlers
		return false
	}
	count(&c.counts.emulated)
	c.held = held{}
	return true
}

const opHlt = 0xf4 // SDM Vol. 2, HLT

// newProbelessSite is a site without probes, for the instruction that code begins with.
func newProbelessSite(at guest.GVA, cpl uint8, code []byte) *site {
	st := &site{addr: at, user: cpl == 3}
	o := &original{plan: x86.Analyze(code, uint64(at), x86.Options{CPL: cpl})}
	o.n = uint8(copy(o.bytes[:], code[:min(len(code), int(o.plan.Inst.Len))]))
	st.orig.Store(o)
	st.jump.Store(noJump)
	return st
}

// CancelStep says that the instruction that Advance wanted to be stepped in place was
// not executed: the vCPU is held at it as before.
func (e *Engine) CancelStep(cpu int) {
	c := &e.cpus[cpu]
	if st := c.step; st.active && st.inPlace {
		c.endStep()
		if !st.missed {
			c.held = held{site: st.site, at: st.at, chain: st.chain, seq: st.seq}
		}
	}
}

// Return resumes a vCPU that has reached a trampoline by a step where the function
// returns to, and reports whether it was at one. It is called as Hit is.
func (e *Engine) Return(cpu int, s State) bool {
	c := &e.cpus[cpu]
	x, i := c.trampoline(guest.GVA(s.Regs.RIP))
	back := x != nil && c.handleReturn(s, x, i)
	c.stopping = false
	return back
}
