package probe

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

var le = binary.LittleEndian

// activation is a record that a hit has taken for a call.
type activation struct {
	t *instances
	i int
}

// activate begins to follow a call of the function of the kretprobe r. The guest's
// stack is left alone until hookReturn, so that every handler of the site finds the real
// return address there.
func (c *cpu) activate(s State, r *registration) {
	k := &r.cells[c.id]
	t := r.ret.table.Load()
	ret, ok := c.returnAddress(s)
	// Through a mapping of its own user code can run kernel text, and a kernel that of user
	// code: neither can return to trampolines of the other's.
	ok = ok && t.user == (s.CPL == 3)
	if ok && t.lent != nil { // what boots may run where the kernel's text is not mapped yet
		_, ok = c.pages.Translate(s.Root, t.lent[0])
	}
	i := -1
	if ok && ret.Canonical() { // or the return is the processor's to refuse
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
	if r.ret.probe.Entry != nil {
		c.ctx.Data, c.ctx.Ret = t.data(i), ret
		skip := c.runEntry(r)
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

func (c *cpu) runEntry(r *registration) (skip int) {
	depth := c.depth
	defer c.contain(&r.tally, "entry", depth)
	return r.ret.probe.Entry(&c.ctx)
}

// returnAddress reads the real return address at a function's entry. There is
// none where the guest has come to by other ways than a call, and finds what an
// activation that is over has left behind.
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

// holds reports whether record i is live, and of the place at RSP and the task that
// the vCPU runs. One whose stack was moved is of that place from now on.
func (c *cpu) holds(s State, t *instances, i int) bool {
	return t.word(i, instState).Load()&phaseMask == phaseLive && t.user == (s.CPL == 3) && t.inSpace(i, s) &&
		c.adopt(s, t, i) && !t.ownerGone(i, t.task(i), s.Root, c.word[:])
}

// inSpace reports whether record i, of code of CPL3, is of the address space of s, as far as
// it is known.
func (t *instances) inSpace(i int, s State) bool {
	root := t.word(i, instRoot).Load()
	return !t.user || root == 0 || guest.GPA(root) == s.Root
}

// hookReturn puts the trampoline of the activations that this hit has begun on the
// guest's stack. When the stack cannot be written, they have not begun: they
// count as missed.
func (c *cpu) hookReturn(s State) {
	entered := c.entered
	c.entered = entered[:0]
	next, ok := c.readWord(s, s.Regs.RSP)
	// A trampoline that is there already belongs to a function that has left
	// with a jump to this one: its activation ends with this one's.
	if t, i := c.trampoline(next); ok && t != nil {
		ok = c.holds(s, t, i)
	}
	// All is in place before the trampoline is, so that whoever looks from another
	// vCPU finds from it what it leads to.
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

// endRedirectedEntry ends the entry of a function when a kprobe's pre handler has sent
// the guest elsewhere, from where its RSP was sp. If the return address is still on
// the stack, the function's return is yet to come. Otherwise the handler has returned
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

// maxPopped bounds what a function takes off the stack besides its return
// address (ret imm16).
const maxPopped = 0xffff

// near reports whether the vCPU could just have returned from the place of record
// i's last activation.
func (t *instances) near(i int, s State) bool {
	return t.user == (s.CPL == 3) && s.Regs.RSP-8-t.word(i, instPlace).Load() <= maxPopped
}

// fits reports whether the vCPU may come from the activation that is live in record i: it
// has returned to its trampoline, by the stack that it was called on or by a copy.
// Int3s of the guest's own are trampolines by the place only.
func (t *instances) fits(i int, s State, state uint64) bool {
	return state&phaseMask == phaseLive && t.user == (s.CPL == 3) && t.inSpace(i, s) && (t.lent == nil || t.near(i, s))
}

// trap implements resident: at a trampoline, or at the exit for those that the
// guest's code does not know. RSP's word is then the number of the record, and belongs
// to nobody.
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

// fault implements resident: a trampoline that is not mapped in an address space
// cannot be fetched there, and the function has returned all the same; the return
// stage goes on at its fixup; and a single step of the guest's is nobody's concern
// before the function has returned.
func (t *instances) fault(c *cpu, s State, x Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	if i, ok := t.recordAt(rip); ok && t.fits(i, s, t.word(i, instState).Load()) && (x.Vector != x86.VectorDB || !t.shared()) {
		if c.handleReturn(s, t, i) {
			return Verdict{Action: Resume}
		}
		return Verdict{Action: NotOurs}
	}
	for _, p := range t.placed {
		for _, f := range p.fixups {
			if rip == p.at+guest.GVA(f.Fault) && x.Vector != x86.VectorDB {
				s.Regs.RIP = uint64(p.at) + uint64(f.Resume)
				return Verdict{Action: Resume}
			}
		}
	}
	if x.Vector == x86.VectorDB && t.shared() {
		return Verdict{Action: Resume}
	}
	if t.handleStackEnd(c, s) {
		return Verdict{Action: Resume}
	}
	return Verdict{Action: NotOurs}
}

// home implements resident: of a trampoline where its last activation returns to,
// else the probed function's entry.
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

// handleReturn handles an arrival at a trampoline: the function has returned. The
// return handlers of its activation and of those of the same place run, those of the
// newest first, and the guest goes on where it would have gone. False means that no
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
		// The guest has written that. With such a RIP a vCPU cannot be entered (SDM
		// Vol. 3, 26.3.1.4).
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
	c.runReturn(r)
	c.ctx.Data, c.ctx.Ret = nil, 0
	c.leave()
}

func (c *cpu) runReturn(r *registration) {
	depth := c.depth
	defer c.contain(&r.tally, "return", depth)
	r.ret.probe.Return(&c.ctx)
}

// handleRepeatedReturn handles an arrival at a trampoline whose activation has ended, or
// is another one's: a copy of the stack that a fork or a coroutine made returns as well, and
// so does a function that returns twice. The record says where to, and from now on the
// table sees to it that it is used for this call only, which is the host's affair alone. Where
// it says nothing, the guest has jumped to an address of ours.
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

// touches reports whether the instruction at rip is one that finds out whether the stack of user code ends: the push of a trampoline, or the one
// before stages.
func (t *instances) touches(rip guest.GVA) bool {
	off := int(rip - t.tramps)
	return t.shared() && t.user && (t.isPush(off) || off == t.touch.off)
}

// isPush reports whether the push of a trampoline is at an offset.
func (t *instances) isPush(off int) bool { return off < t.n*trampSize && off%trampSize == t.push }

// handleStackEnd serves a return whose code in the guest has found that the stack ends below:
// as if it had not run.
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
