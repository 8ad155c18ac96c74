package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// fault handles an exception of the guest before the guest's handler sees it.
// When it was raised by a copy of a probed instruction, it becomes the fault of
// the original.
func (e *Engine) fault(c *cpu, s State, t Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	st := &c.step
	if user, ours := e.code.Owns(rip); ours && !user && s.CPL == 3 {
		// It could not even be fetched (SDM Vol. 3, 4.6.1), where CPL3 had no business
		// to go. That is nobody's instruction, and no address for CPL3 to learn.
		return Verdict{Action: NotOurs}
	}
	switch {
	case st.active && st.inPlace && rip == st.at:
	case st.active && !st.inPlace && rip >= st.slot.addr && rip < st.slot.end():
		s.Regs.RIP = uint64(st.slot.orig)
		s.Regs.RFLAGS = s.Regs.RFLAGS&^(flagIF|flagTF) | st.flags
	case st.active && !st.inPlace && rip == st.slot.end():
		// A trap, reported behind the instruction that caused it (SDM Vol. 3,
		// 6.5): that instruction is done.
		e.finish(c, s)
		return Verdict{Action: NotOurs}
	default:
		if r := e.code.At(rip); r != nil {
			return r.fault(e, c, s, t)
		}
		return Verdict{Action: NotOurs}
	}
	count(&c.counts.faults)
	done := *st
	c.step.active = false
	if e.askFault(c, s, done.site, done.chain, done.missed, done.seq, t) {
		return Verdict{Action: Resume}
	}
	return Verdict{Action: NotOurs}
}

// debugTrap handles a single-step or watchpoint trap. The engine asks for none
// in slots, so one that comes from there is the guest's own, seen at the wrong
// address.
func (e *Engine) debugTrap(c *cpu, s State, t Trap) Verdict {
	if c.step.active && c.step.inPlace && t.Kind == TrapStep {
		return e.finish(c, s)
	}
	if t.Kind == TrapWatch && e.watchTrap(c, s, t) {
		return Verdict{Action: Resume}
	}
	if in := e.instance(guest.GVA(s.Regs.RIP)); in != nil && in.fits(s, in.state.Load()) {
		// The guest is single-stepping over the return, and shall see where to.
		e.comeBack(c, s, in)
		return Verdict{Action: NotOurs}
	}
	t.Vector = insn.VectorDB
	return e.fault(c, s, t)
}

// askFault offers the fault of st's instruction to the fault handlers of the
// probes that let the hit seq pass, and reports whether one of them has put it
// right.
func (e *Engine) askFault(c *cpu, s State, st *site, chain chain, missed bool, seq uint32, t Trap) bool {
	if missed {
		return false
	}
	fixed := false
	c.enter(e, s, st)
	for _, r := range chain {
		k := &r.cells[c.id]
		if k.passed != seq || !r.enabled.Load() {
			continue
		}
		count32(&k.faults)
		if r.probe.Fault == nil {
			continue
		}
		c.ctx.reg, c.ctx.Probe = r, r.probe
		if e.runFault(c, r, t) {
			fixed = true
			break
		}
	}
	c.leave()
	return fixed
}
