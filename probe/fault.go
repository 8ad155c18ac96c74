package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// fault handles an exception of the guest before the guest's handler sees it.
// When it was raised by a copy of a probed instruction, it becomes the fault of
// the original.
func (c *cpu) fault(s State, t Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	st := &c.step
	if user, ours := c.code.Owns(rip); ours && !user && s.CPL == 3 {
		// It could not even be fetched (SDM Vol. No guest instruction caused this,
		// and CPL3 must not learn the address.
		return Verdict{Action: NotOurs}
	}
	switch {
	case st.active && st.inPlace && rip == st.at:
	case c.notBegun(s, t):
		return Verdict{Action: Resume}
	case st.active && !st.inPlace && rip >= st.slot.addr && rip < st.slot.end():
		s.Regs.RIP = uint64(st.slot.orig)
		s.Regs.RFLAGS = s.Regs.RFLAGS&^(x86.FlagIF|x86.FlagTF) | st.flags
		if t.Vector == x86.VectorDB { // between two iterations of a string instruction: the next is a hit of its own
			c.endStep()
			return Verdict{Action: NotOurs}
		}
	case st.active && !st.inPlace && rip == st.slot.end():
		// A trap, reported after the instruction that caused it (SDM Vol. 3, 6.5):
		// that instruction is done.
		c.finish(s)
		return Verdict{Action: NotOurs}
	default:
		if r := c.code.ResidentAt(rip); r != nil {
			return r.fault(c, s, t)
		}
		return Verdict{Action: NotOurs}
	}
	count(&c.counts.faults)
	done := *st
	c.endStep()
	if c.askFault(s, done.site, done.chain, done.missed, done.seq, t) {
		return Verdict{Action: Resume}
	}
	return Verdict{Action: NotOurs}
}

// notBegun reports whether a trap of TF comes at a slot that the vCPU was sent to, before the copy there has executed anything: it is of no instruction of
// the guest's. kvm_intel in Bochs raises one where the slot's own page is not mapped for the processor yet.
func (c *cpu) notBegun(s State, t Trap) bool {
	_, slot := c.code.ResidentAt(guest.GVA(s.Regs.RIP)).(*slot)
	return t.Kind == TrapStep && slot && c.repeating == repeating{guest.GVA(s.Regs.RIP), s.Regs.RCX}
}

// debugTrap handles a single-step or watchpoint trap. The engine asks for none
// in slots, so one that comes from there is the guest's own, seen at the wrong
// address.
func (c *cpu) debugTrap(s State, t Trap) Verdict {
	if c.step.active && c.step.inPlace && t.Kind == TrapStep {
		traced := c.step.traced
		v := c.finish(s)
		if traced && v.Action == Resume {
			v.Action = NotOurs // a target recognizes its own steps by Stepped: this one is the guest's
		}
		return v
	}
	if t.Kind == TrapWatch && c.watchTrap(s, t) {
		return Verdict{Action: Resume}
	}
	if x, i := c.trampoline(guest.GVA(s.Regs.RIP)); x != nil && !x.shared() {
		// The guest is single-stepping over the return, and must see the target.
		if c.handleReturn(s, x, i) {
			return Verdict{Action: NotOurs}
		}
	}
	t.Vector = x86.VectorDB
	return c.fault(s, t)
}

// askFault offers the fault of st's instruction to the fault handlers of the probes
// that let the hit seq pass, and reports whether one of them has handled it.
func (c *cpu) askFault(s State, st *site, chain chain, missed bool, seq uint32, t Trap) bool {
	if missed {
		return false
	}
	fixed := false
	c.enter(s)
	for _, r := range chain {
		k := &r.cells[c.id]
		if k.passed != seq || !r.enabled.Load() {
			continue
		}
		count32(&k.faults)
		if r.fault == nil {
			continue
		}
		c.setProbe(r)
		if c.runFault(r, t) {
			fixed = true
			break
		}
	}
	c.leave()
	return fixed
}
