package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// arrive implements kind.
func (rp *retprobe) arrive(c *cpu, s State, r *registration, k *cell) (taken bool) {
	c.setProbe(r)
	if r.filter != nil && !c.runFilter(r) {
		count(&k.filtered)
		return false
	}
	c.activate(s, r, rp)
	return false
}

// activate begins to follow a call of the function of the kretprobe r. The guest's
// stack is not changed until hookReturn, so that every handler of the site finds the
// real return address there.
func (c *cpu) activate(s State, r *registration, rp *retprobe) {
	k := &r.cells[c.id]
	t := rp.table()
	ret, ok := c.returnAddress(s)
	// Through a mapping of its own user code can run kernel text, and a kernel user
	// code: neither can return to trampolines of the other.
	ok = ok && t.user == (s.CPL == 3)
	if ok && t.lent != nil { // boot code may run where the kernel's text is not mapped yet
		_, ok = c.pages.Translate(s.Root, t.lent[0])
	}
	i := -1
	if ok && ret.Canonical() { // or the processor will reject the return
		if t.left {
			t.abandonDisplaced(c.spot(s))
		}
		t.unwind(s)
		o := origin{s.Regs.RSP, uint64(ret), uint64(s.Root)}
		if i = t.take(o); i < 0 && t.sweep(s.Root, sweepBatch, t.shared(), c.word[:]) > 0 {
			i = t.take(o)
		}
	}
	if i < 0 {
		count(&k.missed)
		return
	}
	if rp.probe.Entry != nil {
		c.ctx.Data, c.ctx.Ret = t.data(i), ret
		skip := c.runEntry(rp)
		c.ctx.Data, c.ctx.Ret = nil, 0
		if skip != 0 {
			t.recycle(i)
			count(&k.filtered)
			return
		}
	}
	count(&k.handled)
	c.entered = append(c.entered, activation{t, i})
}

func (c *cpu) runEntry(rp *retprobe) (skip int) {
	depth := c.depth
	defer c.contain(&rp.reg.tally, "entry", depth)
	return rp.probe.Entry(&c.ctx)
}

// returnAddress reads the real return address at a function's entry. It fails if the
// guest arrived otherwise than by a call, and the stack still holds the trampoline of
// an activation that is over.
func (c *cpu) returnAddress(s State) (guest.GVA, bool) {
	w, ok := c.readWord(s, s.Regs.RSP)
	if !ok {
		return 0, false
	}
	if t, i := c.trampoline(w); t != nil {
		return c.resolveReturn(w), c.holds(s, t, i)
	}
	return w, true
}

// holds reports whether record i is live, and belongs to the place at RSP and the
// task that the vCPU runs. A record whose stack was moved gets that place from now
// on.
func (c *cpu) holds(s State, t *instances, i int) bool {
	return t.word(i, instState).Load()&phaseMask == phaseLive && t.user == (s.CPL == 3) && t.inSpace(i, s) &&
		c.adopt(s, t, i) && !t.ownerGone(i, t.task(i), s.Root, c.word[:])
}

// inSpace reports whether record i, of code of CPL3, belongs to the address space of
// s, as far as it is known.
func (t *instances) inSpace(i int, s State) bool {
	root := t.word(i, instRoot).Load()
	return !t.user || root == 0 || guest.GPA(root) == s.Root
}

// hookReturn puts the trampoline of the activations that this hit has begun on the
// guest's stack. If the stack cannot be written, they have not begun: they count as
// missed.
func (c *cpu) hookReturn(s State) {
	entered := c.entered
	c.entered = entered[:0]
	next, ok := c.readWord(s, s.Regs.RSP)
	// A trampoline that is already there belongs to a function that has left with a
	// jump to this one: its activation ends with this one's.
	if t, i := c.trampoline(next); ok && t != nil {
		ok = c.holds(s, t, i)
	}
	// Everything is in place before the trampoline is, so that a reader on another
	// vCPU can follow the trampoline.
	for _, a := range entered {
		a.t.word(a.i, instPlace).Store(s.Regs.RSP)
		a.t.setNext(a.i, next)
		a.t.word(a.i, instRoot).Store(uint64(s.Root))
		task, at := c.taskOf(s, a.t.tasks)
		a.t.word(a.i, instOwner).Store(uint64(at))
		a.t.word(a.i, instTask).Store(uint64(task))
		if a.t.left {
			x := c.spot(s)
			a.t.word(a.i, instStack).Store(x.g)
			a.t.word(a.i, instBelow).Store(x.off)
		} else {
			next = a.t.tramp(a.i)
		}
	}
	if !ok || !entered[0].t.left && !c.writeWord(s, s.Regs.RSP, next) {
		for _, a := range entered {
			if !a.t.dead.Load() { // the counts are final
				k := &a.t.rp.reg.cells[c.id]
				k.handled.Store(k.handled.Load() - 1)
				count(&k.missed)
			}
			a.t.recycle(a.i)
		}
		return
	}
	for _, a := range entered {
		a.t.word(a.i, instState).Add(phaseLive - phaseEntering)
	}
}

// endRedirectedEntry ends the entry of a function when a kprobe's pre handler has
// sent the guest elsewhere, from where its RSP was sp. If the return address is still
// on the stack, the function has yet to return. Otherwise the handler has returned
// itself.
func (c *cpu) endRedirectedEntry(s State, sp uint64) {
	switch {
	case len(c.entered) == 0:
	case s.Regs.RSP == sp:
		c.hookReturn(s)
	default:
		for _, a := range c.entered {
			if !a.t.dead.Load() {
				a.t.rp.abandoned.Add(1)
			}
			a.t.recycle(a.i)
		}
		c.entered = c.entered[:0]
	}
}

// maxPopped bounds the bytes that a function pops besides its return address (ret
// imm16).
const maxPopped = 0xffff

// near reports whether the vCPU could just have returned from the place of record
// i's last activation.
func (t *instances) near(i int, s State) bool {
	return t.user == (s.CPL == 3) && s.Regs.RSP-8-t.word(i, instPlace).Load() <= maxPopped
}

// fits reports whether the vCPU may belong to the activation that is live in record
// i: it has returned to its trampoline, on the stack that it was called on or on a
// copy. For int3s of the guest's own only the place counts.
func (t *instances) fits(i int, s State, state uint64) bool {
	return state&phaseMask == phaseLive && t.user == (s.CPL == 3) && t.inSpace(i, s) && (t.lent == nil || t.near(i, s))
}

// trap implements resident: at a trampoline, or at the exit for those that the
// guest's code does not know. RSP's word is then the number of the record, and
// belongs to no activation.
func (t *instances) trap(c *cpu, s State, kind TrapKind) (hit *site, from *detour, ok bool) {
	rip := guest.GVA(s.Regs.RIP)
	if !t.shared() {
		i, ok := t.recordAt(rip)
		if !ok || kind != TrapBreakpoint {
			return nil, nil, false
		}
		return nil, nil, c.handleReturn(s, t, i)
	}
	if off := rip - t.exit; off != 0 && (kind != TrapDetour || off > outLen) {
		return nil, nil, false
	}
	i, there := c.readWord(s, s.Regs.RSP)
	if !there || uint64(i) >= uint64(t.n) || t.user != (s.CPL == 3) {
		return nil, nil, false
	}
	s.Regs.RSP += 16
	if !c.handleReturn(s, t, int(i)) {
		s.Regs.RSP -= 16
		return nil, nil, false
	}
	return nil, nil, true
}

// fault implements resident. A trampoline that is not mapped in an address space
// cannot be fetched there, but the function has returned; the return stage resumes at
// its fixup; and a single step of the guest's is ignored until the function has
// returned.
func (t *instances) fault(c *cpu, s State, x Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	if i, ok := t.recordAt(rip); ok && t.fits(i, s, t.word(i, instState).Load()) && (x.Vector != x86.VectorDB || !t.shared()) {
		if c.handleReturn(s, t, i) {
			return Verdict{Action: Resume}
		}
		return Verdict{Action: NotOurs}
	}
	if to, ok := t.fixup(rip); ok && x.Vector != x86.VectorDB {
		s.Regs.RIP = uint64(to)
		return Verdict{Action: Resume}
	}
	if x.Vector == x86.VectorDB && t.shared() {
		return Verdict{Action: Resume}
	}
	if t.handleStackEnd(c, s) {
		return Verdict{Action: Resume}
	}
	return Verdict{Action: NotOurs}
}

// fixup implements resident.
func (t *instances) fixup(rip guest.GVA) (to guest.GVA, ok bool) { return fixupOf(t.placed, rip) }

// loads implements resident.
func (t *instances) loads() bool { return anyFixup(t.placed) }

// home implements resident: for a trampoline, the address that its last activation
// returns to, else the probed function's entry.
func (t *instances) home(rip guest.GVA) guest.GVA {
	if i, ok := t.recordOf(rip); ok {
		if t.word(i, instNext).Load() == 0 {
			return rip
		}
		return t.core.resolveReturn(t.tramp(i))
	}
	return t.site
}

// accessor implements resident.
func (t *instances) accessor(_ *cpu, s State) (guest.GVA, bool) {
	return t.home(guest.GVA(s.Regs.RIP)), false
}

// handleReturn handles a vCPU at a trampoline: the function has returned. The return
// handlers of its activation and of the others of the same place run, the newest
// first, and the guest resumes where it would have returned to. False means that no
// activation can have led here.
func (c *cpu) handleReturn(s State, t *instances, i int) bool {
	c.abandonStep()
	state := t.word(i, instState).Load()
	switch {
	case t.revive(i, s, state):
	case !t.fits(i, s, state), !t.markLeaving(i, state):
		return c.handleRepeatedReturn(s, t, i, state)
	}
	if c.strayed(s, t, i) {
		t.noteMoved(i)
	}
	count(&c.counts.returns)
	first, at := t, s.Regs.RIP
	next := guest.GVA(t.word(i, instNext).Load())
	below, k := c.trampoline(next)
	home := next
	if below != nil {
		home = c.resolveReturn(next)
	}
	for {
		s.Regs.RIP = uint64(home)
		c.deliverReturn(s, t, i, home)
		place := t.word(i, instPlace).Load()
		t.recycle(i)
		if t, i = below, k; t == nil {
			break
		}
		state := t.word(i, instState).Load()
		if state&phaseMask != phaseLive || t.word(i, instPlace).Load() != place || !t.markLeaving(i, state) {
			break
		}
		next = guest.GVA(t.word(i, instNext).Load())
		below, k = c.trampoline(next)
	}
	first.unwind(s)
	if !next.Canonical() {
		// The guest has written this address. With such a RIP a vCPU cannot be
		// entered (SDM Vol. 3, 26.3.1.4).
		s.Regs.RIP = at
		return false
	}
	s.Regs.RIP = uint64(next)
	return true
}

// deliverReturn counts a return and runs the return handler, unless the probe is gone.
func (c *cpu) deliverReturn(s State, t *instances, i int, home guest.GVA) {
	if t.dead.Load() {
		return
	}
	rp := t.rp
	r := rp.reg
	count(&rp.cells[c.id].returns)
	count(&r.cells[c.id].steps)
	if rp.probe.Return == nil || c.depth != 0 {
		return
	}
	data := t.data(i)
	if t.shared() { // the guest can write there
		data = c.data[:copy(c.data[:], data)]
	}
	c.enter(s)
	c.setProbe(r)
	c.ctx.Data, c.ctx.Ret = data, home
	c.runReturn(rp)
	c.ctx.Data, c.ctx.Ret = nil, 0
	c.leave()
}

func (c *cpu) runReturn(rp *retprobe) {
	depth := c.depth
	defer c.contain(&rp.reg.tally, "return", depth)
	rp.probe.Return(&c.ctx)
}

// handleRepeatedReturn handles a vCPU at a trampoline whose activation has ended, or
// belongs to another call: a copy of the stack that a fork or a coroutine made
// returns too, and so does a function that returns twice. The record has the return
// address. From now on the table uses the record for this call only, which only the
// host can ensure. If the record has none, the guest has jumped to an address of
// ours.
func (c *cpu) handleRepeatedReturn(s State, t *instances, i int, state uint64) bool {
	next := guest.GVA(t.word(i, instNext).Load())
	home := c.resolveReturn(next)
	if next == 0 || !home.Canonical() || t.lent != nil && (!t.near(i, s) || state&phaseMask == phaseEntering) {
		return false
	}
	count(&c.counts.returns)
	count(&c.counts.copies)
	t.rp.again.Store(true)
	if c.strayed(s, t, i) {
		t.noteMoved(i)
	}
	s.Regs.RIP = uint64(home)
	return true
}

// readWord and writeWord access a word of the interrupted code's stack, with its rights.
func (c *cpu) readWord(s State, addr uint64) (guest.GVA, bool) {
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	if c.mem.Read(addr, c.word[:]) != nil {
		return 0, false
	}
	return guest.GVA(le.Uint64(c.word[:])), true
}

func (c *cpu) writeWord(s State, addr uint64, v guest.GVA) bool {
	c.mem.root, c.mem.cpl = s.Root, s.CPL
	le.PutUint64(c.word[:], uint64(v))
	return c.mem.Write(addr, c.word[:]) == nil
}

// touches reports whether the instruction at rip is one that checks whether the stack
// of user code ends: the push of a trampoline, or the one before stages.
func (t *instances) touches(rip guest.GVA) bool {
	off := int(rip - t.tramps)
	return t.shared() && t.user && (t.isPush(off) || off == t.touch.off)
}

// isPush reports whether the push of a trampoline is at an offset.
func (t *instances) isPush(off int) bool { return off < t.n*trampSize && off%trampSize == t.push }

// handleStackEnd handles a return whose code in the guest has found that the stack
// ends below: as if that code had not run.
func (t *instances) handleStackEnd(c *cpu, s State) bool {
	off, was := int(s.Regs.RIP-uint64(t.tramps)), *s.Regs
	switch {
	case !t.shared() || !t.user:
	case t.isPush(off):
		s.Regs.RSP += 8
		if c.handleReturn(s, t, off/trampSize) {
			return true
		}
	case off == t.touch.off:
		s.Regs.RSP += uint64(t.touch.below)
		s.Regs.RIP = uint64(t.exit)
		if _, _, ok := t.trap(c, s, TrapBreakpoint); ok {
			return true
		}
	}
	*s.Regs = was
	return false
}
