package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Bits of RFLAGS that the engine looks after (SDM Vol. 1, 3.4.3).
const (
	flagTF = 1 << 8
	flagIF = 1 << 9
)

// dr6BS is the single-step bit of DR6 (SDM Vol. 3, 18.2.3), with the bits that
// always read as 1.
const dr6BS = 1<<14 | 0xffff0ff0

// Hit handles a trap that vCPU cpu has reported, on that vCPU's own thread, with
// its registers in s, and says what to do with the vCPU. It takes no lock and
// allocates nothing, except to report trouble (a handler that panics, a memory
// operand that faults).
//
// A handler may run guest code on the same vCPU (Context.Call); the traps of
// that code reach Hit while the outer one has not returned, and count as
// missed.
func (e *Engine) Hit(cpu int, s State, t Trap) Verdict {
	c := &e.cpus[cpu]
	switch t.Kind {
	case TrapBreakpoint:
		rip := guest.GVA(s.Regs.RIP)
		if c.step.active && !c.step.inPlace && rip == c.step.slot.end() {
			count(&c.counts.stepped)
			return e.finish(c, s)
		}
		t := e.table.Load()
		if st := t.find(rip); st != nil && st.armed.Load() && e.sameCode(s, st, rip) {
			count(&c.counts.breakpoints)
			return e.arrive(c, s, st, nil)
		}
		if r := e.code.At(rip); r != nil {
			if v, ok := r.trap(e, c, s, TrapBreakpoint); ok {
				return v
			}
		}
		if st := e.aliased(t, s, rip); st != nil && st.armed.Load() {
			count(&c.counts.breakpoints)
			count(&c.counts.aliases)
			return e.arrive(c, s, st, nil)
		}
		return e.unclaimed(c, s)
	case TrapDetour:
		if r := e.code.At(guest.GVA(s.Regs.RIP)); r != nil {
			if v, ok := r.trap(e, c, s, TrapDetour); ok {
				return v
			}
		}
		return Verdict{Action: NotOurs}
	case TrapFault:
		return e.fault(c, s, t)
	case TrapStep, TrapWatch:
		return e.debugTrap(c, s, t)
	default:
		return Verdict{Action: NotOurs}
	}
}

// Stepped tells the engine that the instruction for which Hit answered
// StepInPlace has been executed; s is the state behind it. When the
// instruction faulted instead, Hit with TrapFault must be called, or, when the
// guest has already gone to its own exception handler, neither. When there is
// no such step any more (the probe went away, or the guest has hit another one
// since), there is nothing to do, and the guest resumes.
func (e *Engine) Stepped(cpu int, s State) Verdict {
	c := &e.cpus[cpu]
	if !c.step.active || !c.step.inPlace {
		return Verdict{Action: Resume}
	}
	return e.finish(c, s)
}

// arrive handles a hit on st, from the exit of d unless that is nil.
func (e *Engine) arrive(c *cpu, s State, st *site, d *detour) Verdict {
	chain := *st.chain.Load()
	at := guest.GVA(s.Regs.RIP)
	if st.mirrorEnd.Load() {
		if v, ok := e.endMirror(c, s); ok {
			return v
		}
	}
	if c.depth != 0 || c.inMirror(s) {
		// Inside a handler or a jprobe's mirror: every probe of the site misses this one, disabled
		// or not, as the kernel's aggregate does.
		for _, r := range chain {
			if r.elsewhere(c, s) {
				continue
			}
			k := &r.cells[c.id]
			count(&k.hits)
			count(&k.missed)
		}
		if d != nil {
			return e.leaveBy(s, d)
		}
		return e.executeAt(c, s, st, chain, true, false, at)
	}
	if c.step.active {
		// The last step never came to its end: its instruction faulted on a host
		// that doesn't show faults, and the guest went elsewhere.
		c.step.active = false
		count(&c.counts.abandoned)
	}
	if c.seq++; c.seq == 0 {
		c.seq = 1
	}
	s.Regs.RIP = uint64(at) + 1 // what the kernel's handlers see
	c.enter(e, s, st)
	watch, mirrors := false, false
	for i, r := range chain {
		k := &r.cells[c.id]
		if !r.enabled.Load() {
			k.passed = 0
			continue
		}
		if r.elsewhere(c, s) {
			k.passed = 0
			continue
		}
		count(&k.hits)
		p := r.probe
		c.ctx.reg, c.ctx.Probe = r, p
		if p.Filter != nil && !e.runFilter(c, r) {
			count(&k.filtered)
			k.passed = 0
			continue
		}
		if r.ret != nil {
			k.passed = 0
			e.activate(c, s, r)
			continue
		}
		count(&k.handled)
		k.passed = c.seq
		watch = watch || p.Post != nil || p.Fault != nil
		if r.jump != nil && e.jprobed(c, r) {
			mirrors = true
		}
		if p.Pre != nil && e.runPre(c, r) != 0 {
			for _, r := range chain[i+1:] {
				if r.enabled.Load() && !r.elsewhere(c, s) {
					count(&r.cells[c.id].skipped)
				}
			}
			c.leave()
			e.hookTaken(c, s)
			return Verdict{Action: Resume}
		}
	}
	c.leave()
	if c.entered != nil {
		e.hook(c, s)
	}
	if mirrors && e.beginMirrors(c, s, st, chain, watch, at) {
		return Verdict{Action: Resume}
	}
	if d != nil && !watch {
		return e.leaveBy(s, d)
	}
	return e.executeAt(c, s, st, chain, false, watch, at)
}

// execute has the displaced instruction of st executed, from the registers in
// s. When watch is set, something must happen after it or when it faults.
func (e *Engine) execute(c *cpu, s State, st *site, chain chain, missed, watch bool) Verdict {
	r := s.Regs
	at := st.addr
	if c.alias != 0 {
		at = c.alias
	}
	r.RIP = uint64(at)
	kind := st.plan.Kind
	if kind == insn.Emulate {
		v, done := e.emulate(c, s, st, chain, missed)
		if done {
			return v
		}
		kind = st.plan.Fallback
	}
	if kind != insn.InPlace && e.can[s.CPL&1].InPlace && !e.slotServes(c, s, st) {
		kind = insn.InPlace
	}
	if kind == insn.InPlace {
		if !e.can[s.CPL&1].InPlace {
			// What emulation and this host both leave to the processor are
			// branches to, and stacks at, addresses that it refuses.
			t := Trap{Kind: TrapFault, Vector: insn.VectorGP}
			if !guest.GVA(r.RSP).Canonical() {
				t.Vector = insn.VectorSS
			}
			return e.raise(c, s, st, chain, missed, t)
		}
		c.step = step{active: true, inPlace: true, at: at, missed: missed, site: st, chain: chain, seq: c.seq}
		return Verdict{Action: StepInPlace}
	}
	sl := st.stepped.Load()
	if b := st.boosted.Load(); b != nil && (!watch || sl == nil) {
		count(&c.counts.boosted)
		r.RIP = uint64(b.addr)
		return Verdict{Action: Resume}
	}
	flags := r.RFLAGS & (flagIF | flagTF)
	c.step = step{active: true, missed: missed, site: st, slot: sl, chain: chain, seq: c.seq, flags: flags}
	if f := uint32(flags); sl.flags.Load() != f {
		sl.flags.Store(f)
	}
	r.RFLAGS &^= flagIF | flagTF
	r.RIP = uint64(sl.addr)
	return Verdict{Action: Resume}
}

// finish ends the step of c: its instruction has been executed.
func (e *Engine) finish(c *cpu, s State) Verdict {
	st := c.step
	c.step.active = false
	if st.inPlace {
		count(&c.counts.inPlace)
	} else {
		s.Regs.RIP = uint64(st.slot.next)
		s.Regs.RFLAGS = s.Regs.RFLAGS&^(flagIF|flagTF) | st.flags
	}
	for _, r := range st.chain {
		if k := &r.cells[c.id]; st.missed || k.passed == st.seq {
			count(&k.steps)
		}
	}
	return e.after(c, s, st.site, st.chain, st.missed, st.seq, st.flags)
}

// after runs the post handlers of the probes that let the hit seq pass, and
// ends the hit. flags are those from before the instruction: with TF set, the
// guest is owed the single-step trap that our int3 swallowed.
func (e *Engine) after(c *cpu, s State, st *site, chain chain, missed bool, seq uint32, flags uint64) Verdict {
	if !missed {
		entered := false
		for _, r := range chain {
			// A probe that was disabled or unregistered in between is done with.
			if r.probe.Post == nil || r.cells[c.id].passed != seq || !r.enabled.Load() {
				continue
			}
			if !entered {
				c.enter(e, s, st)
				entered = true
			}
			c.ctx.reg, c.ctx.Probe = r, r.probe
			e.runPost(c, r)
		}
		if entered {
			c.leave()
		}
	}
	if flags&flagTF != 0 {
		return Verdict{Action: Inject, Fault: Trap{Kind: TrapFault, Vector: insn.VectorDB, DR6: dr6BS}}
	}
	return Verdict{Action: Resume}
}

// unclaimed handles a breakpoint at an address where no site is armed.
func (e *Engine) unclaimed(c *cpu, s State) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	if e.punned(c, s, rip) {
		return Verdict{Action: Resume}
	}
	// A probe that was removed between the trap and now has left other bytes
	// than an int3: the guest simply executes them.
	if err := e.target.ReadMemory(s.Root, rip, c.mem.byte[:]); err == nil && c.mem.byte[0] != insn.Int3 {
		count(&c.counts.stale)
		return Verdict{Action: Resume}
	}
	count(&c.counts.foreign)
	return Verdict{Action: NotOurs}
}
