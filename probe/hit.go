package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// dr6BS is the single-step bit of DR6 (SDM Vol. 3, 18.2.3), with the bits that
// always read as 1.
const dr6BS = 1<<14 | 0xffff0ff0

// Hit handles a trap that vCPU cpu has reported, on that vCPU's own thread, with its
// registers in s, and says what to do with the vCPU. It takes no lock and allocates
// nothing, except to report a problem (a handler that panics, a memory operand that
// faults).
//
// A handler may run guest code on the same vCPU (Context.Call); the traps of
// that code reach Hit while the outer one has not returned, and count as
// missed.
func (e *Engine) Hit(cpu int, s State, t Trap) Verdict {
	c := &e.cpus[cpu]
	v := c.hit(s, t)
	if c.stopping {
		return c.addStop(v)
	}
	return v
}

func (c *cpu) hit(s State, t Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	switch t.Kind {
	case TrapBreakpoint:
		if c.step.active && !c.step.inPlace && rip == c.step.slot.end() {
			count(&c.counts.stepped)
			return c.finish(s)
		}
		if st := c.sites.Find(rip); st != nil && st.armed.Load() && c.sameCode(s, st, rip) {
			count(&c.counts.breakpoints)
			return c.handleArrival(s, st, nil)
		}
	case TrapDetour:
	case TrapFault:
		return c.fault(s, t)
	case TrapStep, TrapWatch:
		return c.debugTrap(s, t)
	default:
		return Verdict{Action: NotOurs}
	}
	if r := c.code.ResidentAt(rip); r != nil {
		if st, d, ok := r.trap(c, s, t.Kind); st != nil {
			return c.handleArrival(s, st, d)
		} else if ok {
			return Verdict{Action: Resume}
		}
	}
	if t.Kind == TrapDetour {
		return Verdict{Action: NotOurs}
	}
	if st := c.siteOfAlias(s, rip); st != nil && st.armed.Load() {
		count(&c.counts.breakpoints)
		count(&c.counts.aliases)
		return c.handleArrival(s, st, nil)
	}
	return c.handleUnclaimed(s)
}

// NoteStep tells the engine that the instruction for which Hit answered StepInPlace
// has been executed; s is the state after it. If the instruction faulted instead,
// call Hit with TrapFault, or, if the guest has already entered its own exception
// handler, neither. If the step is obsolete (the probe was removed, or the guest has
// hit another one since), NoteStep does nothing, and the guest resumes.
func (e *Engine) NoteStep(cpu int, s State) Verdict {
	c := &e.cpus[cpu]
	if !c.step.active || !c.step.inPlace {
		return Verdict{Action: Resume}
	}
	return c.addStop(c.finish(s))
}

// handleArrival handles a hit on st, from the exit of d unless that is nil.
func (c *cpu) handleArrival(s State, st *site, d *detour) Verdict {
	chain := *st.chain.Load()
	at := guest.GVA(s.Regs.RIP)
	if st.mirrorEnd.Load() {
		if v, ok := c.endMirror(s); ok {
			return v
		}
	}
	if c.depth != 0 || c.inMirror(s) {
		if runEssential(c, s, chain, at) {
			return Verdict{Action: Resume}
		}
		c.countMissed(s, chain)
		if d != nil {
			return d.resumeAtCopies(c, s)
		}
		return c.executeAt(s, st, chain, true, false, at)
	}
	c.abandonStep()
	if c.seq++; c.seq == 0 {
		c.seq = 1
	}
	sp := s.Regs.RSP
	c.enter(s)
	c.postDue, c.mirrorsDue, c.walked = false, false, false
	for i, r := range chain {
		s.Regs.RIP = uint64(at+r.reportedAddr()-st.addr) + 1 // what the kernel's handlers see
		if c.offerHit(s, r) {
			c.countSkipped(s, chain[i+1:])
			c.leave()
			c.cancelLeaving()
			c.endRedirectedEntry(s, sp)
			return Verdict{Action: Resume}
		}
	}
	c.leave()
	if d != nil && !c.walked {
		noteStack(c, s, st, d)
	}
	watch := c.postDue
	if len(c.leaving) != 0 {
		c.runLeaveHandlers(s, st)
	}
	if len(c.entered) != 0 {
		c.hookReturn(s)
	}
	if c.mirrorsDue && c.beginMirrors(s, st, chain, watch, at) {
		return Verdict{Action: Resume}
	}
	if c.stopping {
		return c.hold(s, st, chain, watch, at)
	}
	if d != nil && !watch {
		return d.resumeAtCopies(c, s)
	}
	return c.executeAt(s, st, chain, false, watch, at)
}

// runEssential runs the pre handlers of the essential probes at a hit from inside a
// handler: the guest needs them there, too. It reports whether one has set the
// registers to where the guest resumes.
func runEssential(c *cpu, s State, chain chain, at guest.GVA) bool {
	for _, r := range chain {
		if !r.probe.Essential || !r.enabled.Load() || r.pre == nil {
			continue
		}
		outer := c.ctx
		c.enter(s)
		c.setProbe(r)
		s.Regs.RIP = uint64(at+r.reportedAddr()-r.site.addr) + 1
		taken := c.runPre(r) != 0
		c.leave()
		c.ctx = outer
		if taken {
			count(&r.cells[c.id].handled)
			return true
		}
		s.Regs.RIP = uint64(at)
	}
	return false
}

// countMissed counts a hit from inside a handler or a jprobe's mirror: every probe of the
// site misses it, disabled or not, as the kernel's aggregate does.
func (c *cpu) countMissed(s State, chain chain) {
	for _, r := range chain {
		if r.countElsewhere(c, s) {
			continue
		}
		count(&r.cells[c.id].missed)
	}
}

// countSkipped counts a hit that a newer probe's pre handler has taken.
func (c *cpu) countSkipped(s State, chain chain) {
	for _, r := range chain {
		if r.enabled.Load() && !r.countElsewhere(c, s) {
			count(&r.cells[c.id].skipped)
		}
	}
}

// abandonStep abandons the last step if it never finished: its instruction faulted on
// a host that doesn't report faults, and the guest continued elsewhere.
func (c *cpu) abandonStep() {
	if c.step.active {
		c.step.active, c.under.active = false, false
		count(&c.counts.abandoned)
	}
}

// endStep notes that the step of c has ended.
func (c *cpu) endStep() {
	if c.step.active = false; c.under.active {
		c.step, c.under = c.under, step{}
	}
}

// offerHit lets r see a hit, and reports whether its pre handler has taken it. The
// cell of r then knows whether the filter let it pass.
func (c *cpu) offerHit(s State, r *registration) (taken bool) {
	k := &r.cells[c.id]
	k.passed = 0
	if !r.enabled.Load() || r.countElsewhere(c, s) {
		return false
	}
	return r.kind.arrive(c, s, r, k)
}

// execute has the displaced instruction of st executed, from the registers in s. If
// watch is set, something must happen after it or when it faults.
func (c *cpu) execute(s State, st *site, chain chain, missed, watch bool) Verdict {
	r := s.Regs
	at := st.addr
	if c.alias != 0 {
		at = c.alias
	}
	r.RIP = uint64(at)
	kind := st.plan().Kind
	if kind == x86.Refuse {
		return Verdict{Action: NotOurs} // the guest's own int3, which it has written below ours
	}
	if kind == x86.Emulate {
		v, done := c.emulate(s, st, chain, missed)
		if done {
			return v
		}
		kind = st.plan().Fallback
	}
	sl, b := st.stepped.Load(), st.boosted.Load()
	switch {
	case kind == x86.InPlace:
	case sl == nil && b == nil:
		if v, done := emulateData(c, s, st, chain, missed); done {
			return v
		}
		kind = x86.InPlace
	case c.can[s.CPL&1].InPlace && !c.slotServes(s, st):
		kind = x86.InPlace
	}
	if kind == x86.InPlace {
		if !c.can[s.CPL&1].InPlace {
			// Emulation and this host leave to the processor only branches to, and
			// stacks at, addresses that it rejects.
			t := Trap{Kind: TrapFault, Vector: x86.VectorGP}
			if sp := guest.GVA(r.RSP); !sp.Canonical() && (s.CPL == 3 || !sp.CanonicalWide()) {
				t.Vector = x86.VectorSS
			}
			return c.raise(s, st, chain, missed, t)
		}
		c.step = step{active: true, inPlace: true, at: at, missed: missed, site: st, chain: chain, seq: c.seq, traced: r.RFLAGS&x86.FlagTF != 0}
		return Verdict{Action: StepInPlace}
	}
	if b != nil && (!watch || sl == nil) {
		count(&c.counts.boosted)
		c.repeating = repeating{b.addr, r.RCX}
		r.RIP = uint64(b.addr)
		return Verdict{Action: Resume}
	}
	flags := r.RFLAGS & (x86.FlagIF | x86.FlagTF)
	c.step = step{active: true, missed: missed, site: st, slot: sl, chain: chain, seq: c.seq, flags: flags}
	if f := uint32(flags); sl.flags.Load() != f {
		sl.flags.Store(f)
	}
	r.RFLAGS &^= x86.FlagIF
	if !st.plan().Inst.Repeats() { // the traps of TF between its iterations are the guest's
		r.RFLAGS &^= x86.FlagTF
	}
	c.repeating = repeating{sl.addr, r.RCX}
	r.RIP = uint64(sl.addr)
	return Verdict{Action: Resume}
}

// finish ends the step of c: its instruction has been executed.
func (c *cpu) finish(s State) Verdict {
	st := c.step
	c.endStep()
	if st.inPlace {
		count(&c.counts.inPlace)
	} else {
		s.Regs.RIP = uint64(st.slot.next)
		s.Regs.RFLAGS = s.Regs.RFLAGS&^(x86.FlagIF|x86.FlagTF) | st.flags
	}
	for _, r := range st.chain {
		if k := &r.cells[c.id]; st.missed || k.passed == st.seq {
			count(&k.steps)
		}
	}
	return c.runPostHandlers(s, st.site, st.chain, st.missed, st.seq, st.flags)
}

// TrapOfTF is the trap after an instruction that was executed with TF set.
var TrapOfTF = Trap{Kind: TrapFault, Vector: x86.VectorDB, DR6: dr6BS}

// runPostHandlers runs the post handlers of the probes that let the hit seq pass, and
// ends the hit. flags are those from before the instruction: with TF set, the
// guest is owed the single-step trap that our int3 swallowed.
func (c *cpu) runPostHandlers(s State, st *site, chain chain, missed bool, seq uint32, flags uint64) Verdict {
	if !missed {
		entered := false
		for _, r := range chain {
			// A probe that was disabled or unregistered in between gets no more
			// calls.
			if r.post == nil || r.cells[c.id].passed != seq || !r.enabled.Load() {
				continue
			}
			if !entered {
				c.enter(s)
				entered = true
			}
			c.setProbe(r)
			c.runPost(r)
		}
		if entered {
			c.leave()
		}
	}
	if flags&x86.FlagTF != 0 {
		return Verdict{Action: Inject, Fault: TrapOfTF}
	}
	return Verdict{Action: Resume}
}

// handleUnclaimed handles a breakpoint at an address where no site is armed.
func (c *cpu) handleUnclaimed(s State) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	if c.resumePunned(s, rip) {
		return Verdict{Action: Resume}
	}
	// A probe that was removed between the trap and now has left other bytes than an
	// int3: the guest simply executes them.
	if err := c.target.ReadMemory(s.Root, rip, c.mem.byte[:]); err == nil && c.mem.byte[0] != x86.Int3 {
		count(&c.counts.stale)
		return Verdict{Action: Resume}
	}
	count(&c.counts.foreign)
	return Verdict{Action: NotOurs}
}

// Stepping reports whether vCPU cpu was last sent to execute a displaced instruction
// after which it traps again. While its RIP is InSlot, no interrupt may be delivered
// before that trap. (A fault that the engine did not see can have taken it
// elsewhere.) It is called on the vCPU's own thread.
func (e *Engine) Stepping(cpu int) bool { return e.cpus[cpu].step.active }
