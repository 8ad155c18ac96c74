package probe

import (
	"encoding/binary"

	"github.com/guestprobe/guestprobe/guest"
)

var le = binary.LittleEndian

// activate begins an activation of the kretprobe r at a function's entry. The
// guest's stack is left alone until hook, so that every handler of the site
// finds the real return address there.
func (c *cpu) activate(s State, r *registration) {
	k := &r.cells[c.id]
	p := r.ret.pool
	var in *instance
	ret, ok := c.returnAddress(s)
	if ok {
		p.unwind(s)
		o := origin{s.Regs.RSP, uint64(ret), uint64(s.Root)}
		in = p.get(o)
		if in == nil && c.sweep(p, s.Root, sweepBatch, c.word[:]) > 0 {
			in = p.get(o)
		}
	}
	if in == nil {
		count(&k.missed)
		return
	}
	if r.ret.probe.Entry != nil {
		c.ctx.Data, c.ctx.Ret = in.data, c.through(ret)
		skip := c.runEntry(r)
		c.ctx.Data, c.ctx.Ret = nil, 0
		if skip != 0 {
			p.put(in)
			count(&k.filtered)
			return
		}
	}
	count(&k.handled)
	in.slot.Store(s.Regs.RSP)
	in.below.Store(c.entered)
	c.entered = in
}

// returnAddress reads the real return address at a function's entry. There is
// none where the guest has come to by other ways than a call, and finds what an
// activation that is over has left behind.
func (c *cpu) returnAddress(s State) (guest.GVA, bool) {
	w, ok := c.readWord(s, s.Regs.RSP)
	if in := c.instance(w); ok && in != nil {
		return guest.GVA(in.ret.Load()), c.holds(s, in)
	}
	return w, ok
}

// holds reports whether in is the live activation of the stack slot at RSP, of the
// task that the vCPU runs.
func (c *cpu) holds(s State, in *instance) bool {
	return in.state.Load()&phaseMask == phaseLive && in.slot.Load() == s.Regs.RSP &&
		in.user == (s.CPL == 3) && (!in.user || guest.GPA(in.root.Load()) == s.Root) &&
		!c.ownerGone(&in.owner, in.pool.Load().prof, s.Root, c.word[:])
}

// hook puts the trampoline of the activations that this hit has begun on the
// guest's stack. When the stack cannot be written, they have not begun: they
// count as missed.
func (c *cpu) hook(s State) {
	top := c.entered
	c.entered = nil
	ret, ok := c.readWord(s, s.Regs.RSP)
	// A trampoline that is there already belongs to a function that has left
	// with a jump to this one: its activation ends with this one's.
	below := c.instance(ret)
	if below != nil {
		if ok = ok && c.holds(s, below); ok {
			ret = guest.GVA(below.ret.Load())
		}
	}
	if !ok {
		miss(c, top, nil)
		return
	}
	// All is in place before the trampoline is, so that a sweep on another vCPU
	// finds from it what it covers.
	for in := top; in != below; {
		next := in.below.Load()
		if next == nil {
			next = below
			in.below.Store(below)
		}
		if next != nil {
			in.belowState.Store(number(next.state.Load()))
		}
		in.slot.Store(s.Regs.RSP)
		in.ret.Store(uint64(ret))
		in.root.Store(uint64(s.Root))
		in.owner.note(c, s, in.pool.Load().prof)
		in = next
	}
	if !c.writeWord(s, s.Regs.RSP, top.tramp) {
		miss(c, top, below)
		return
	}
	for in := top; in != below; in = in.below.Load() {
		in.to(phaseLive)
	}
}

// hookTaken ends the entry of a function when a kprobe's pre handler has sent
// the guest elsewhere. If the return address is still on the stack, the
// function's return is yet to come. Otherwise the handler has returned itself.
func (c *cpu) hookTaken(s State) {
	switch {
	case c.entered == nil:
	case s.Regs.RSP == c.entered.slot.Load():
		c.hook(s)
	default:
		top := c.entered
		c.entered = nil
		unhook(c, top, nil, func(_ *cell, rp *retprobe) { rp.abandoned.Add(1) })
	}
}

// miss takes back that the activations from top down to end were handled.
func miss(c *cpu, top, end *instance) {
	unhook(c, top, end, func(k *cell, _ *retprobe) {
		k.handled.Store(k.handled.Load() - 1)
		count(&k.missed)
	})
}

// unhook gives back the instances of activations that have not begun: those
// from top down to end.
func unhook(c *cpu, top, end *instance, account func(*cell, *retprobe)) {
	for in := top; in != end; {
		next := in.below.Load()
		p := in.pool.Load()
		account(&p.ret.reg.cells[c.id], p.ret)
		p.put(in)
		in = next
	}
}

// maxPopped bounds what a function takes off the stack besides its return
// address (ret imm16).
const maxPopped = 0xffff

// near reports whether the vCPU could just have returned from the stack slot of
// in's last activation.
func (in *instance) near(s State) bool {
	return in.user == (s.CPL == 3) && s.Regs.RSP-8-in.slot.Load() <= maxPopped
}

// fits reports whether the vCPU comes from the activation that is live in in.
func (in *instance) fits(s State, state uint64) bool {
	return state&phaseMask == phaseLive && in.near(s) && (!in.user || guest.GPA(in.root.Load()) == s.Root)
}

// comeBack handles the arrival at a trampoline: the function has returned. The
// return handlers of its activation run, those of the newest first, and the
// guest goes on where it would have gone.
func (c *cpu) comeBack(s State, in *instance) Verdict {
	c.abandonStep()
	state := in.state.Load()
	if !in.fits(s, state) || !in.reserve(number(state)) {
		return c.comeAgain(s, in, state)
	}
	count(&c.counts.returns)
	ret, p := in.ret.Load(), in.pool.Load()
	home := uint64(c.through(guest.GVA(ret)))
	for in != nil {
		below, n := in.below.Load(), in.belowState.Load()
		s.Regs.RIP = home
		c.returned(s, in)
		in.pool.Load().put(in)
		if in = below; in != nil && !in.reserve(n) {
			in = nil
		}
	}
	p.unwind(s)
	s.Regs.RIP = ret
	return Verdict{Action: Resume}
}

// returned runs the return handler of one activation.
func (c *cpu) returned(s State, in *instance) {
	p := in.pool.Load()
	if p.dead.Load() {
		return
	}
	c.returnedFrom(s, p.ret, in.data, guest.GVA(s.Regs.RIP))
}

// comeAgain handles the arrival at a trampoline whose activation has ended, or
// is another one's: a copy of the stack that a fork made returns as well, and
// so does a function that returns twice. What the last activation left behind
// says where to, and from now on the pool sees to it that this stays so.
// Anything else is a guest that jumps to addresses of ours.
func (c *cpu) comeAgain(s State, in *instance, state uint64) Verdict {
	ret := in.ret.Load()
	if ret == 0 || !in.near(s) || in.state.Load() != state || state&phaseMask == phaseReserved {
		return c.unclaimed(s)
	}
	count(&c.counts.returns)
	count(&c.counts.copies)
	if !in.fresh.Load() {
		in.pool.Load().again.Store(true)
	}
	s.Regs.RIP = ret
	return Verdict{Action: Resume}
}
