package probe

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// staged returns the retStage and the instance whose trampoline is at a. g is nil
// when there is none.
func (k *core) staged(a guest.GVA) (g *retStage, i int) {
	g, ok := k.code.At(a).(*retStage)
	if !ok || (a-g.tramps)%trampSize != 0 || a-g.tramps >= guest.GVA(g.n*trampSize) {
		return nil, 0
	}
	return g, int((a - g.tramps) / trampSize)
}

// maxChain bounds how many trampolines are looked through, and maxHops how many of
// them in the guest's memory: what that says could go round in circles.
const (
	maxChain = 1 << 16
	maxHops  = 1 << 8
)

// through returns what a return to a, of whatever activations there are on the
// same place of the stack, leads to in the end.
func (k *core) through(a guest.GVA) guest.GVA {
	for range maxHops {
		g, i := k.staged(a)
		var next guest.GVA
		if g != nil {
			next = guest.GVA(g.inst(i, instRet).Load())
		} else if in := k.instance(a); in != nil {
			next = guest.GVA(in.ret.Load())
		}
		if next == 0 {
			break
		}
		a = next
	}
	return a
}

// home implements resident: of a trampoline where its last activation returns to,
// else the probed function's entry.
func (g *retStage) home(rip guest.GVA) guest.GVA {
	if i := (rip - g.tramps) / trampSize; i < guest.GVA(g.n) {
		return g.core.through(g.tramps + i*trampSize)
	}
	return g.site
}

// leadsTo reports whether a return to word comes to the trampoline at want: it is
// that, or belongs to activations that end before it on the same place of the stack.
// Of a chain that is too long to tell it says so, too.
func (k *core) leadsTo(word, want guest.GVA) bool {
	hops := 0
	for range maxChain {
		if word == want {
			return true
		}
		if g, i := k.staged(word); g != nil {
			if hops++; hops > maxHops {
				return true
			}
			word = guest.GVA(g.inst(i, instRet).Load())
			continue
		}
		in := k.instance(word)
		if in == nil {
			return false
		}
		if b := in.below.Load(); b != nil && number(b.state.Load()) == in.belowState.Load() {
			word = b.tramp
			continue
		}
		word = guest.GVA(in.ret.Load())
	}
	return false
}

// fate says what has become of instance i, whose state is state.
func (g *retStage) fate(k *core, i int, state uint64, buf []byte) fate {
	if state == 0 {
		return fateLive
	}
	slot := state &^ stateBusy
	if t := g.tasks; t != nil {
		// The task that was there is gone, or another one has its stack.
		stack := slot & t.StackMask
		if k.target.ReadMemory(0, guest.GVA(stack+uint64(t.MagicOff)), buf[:8]) == nil {
			if le.Uint64(buf) != t.StackMagic {
				return fateGone
			}
			if k.target.ReadMemory(0, guest.GVA(stack+uint64(t.PIDOff)), buf[:4]) == nil && uint64(le.Uint32(buf)) != g.inst(i, instTask).Load() {
				return fateGone
			}
		}
	}
	if state&stateBusy != 0 {
		return fateLive
	}
	if k.target.ReadMemory(0, guest.GVA(slot), buf[:8]) != nil {
		if g.user {
			return fateLive
		}
		return fateGone
	}
	word := guest.GVA(le.Uint64(buf))
	tramp := g.tramps + guest.GVA(i*trampSize)
	if k.leadsTo(word, tramp) {
		return fateLive
	}
	if !g.user && word <= maxSelector && word&selectorRPL == 0 {
		return fateOpen // see instance.fate
	}
	return fateGone
}

// look reports whether some activation looks as if it could never return. Only a
// stopped world can tell, because its instance may by now be another one's.
func (g *retStage) look(k *core, buf []byte) (inUse int, undecided bool) {
	for i := range g.n {
		if state := g.inst(i, instState).Load(); state != 0 {
			inUse++
			undecided = undecided || g.fate(k, i, state, buf) != fateLive
		}
	}
	return inUse, undecided
}

// reclaim gives back the instances of activations that can never return. The world
// is stopped.
func (g *retStage) reclaim(k *core, w World, buf []byte) {
	for i := range g.n {
		state := g.inst(i, instState).Load()
		f := g.fate(k, i, state, buf)
		if state == 0 || f == fateLive || g.returning(k, w, i, state&^stateBusy, f == fateOpen, buf) {
			continue
		}
		g.inst(i, instState).Store(0)
		g.words[wordUsed].Add(^uint64(0))
		if state&stateBusy == 0 {
			g.rp.Load().abandoned.Add(1)
		}
	}
}

// returning reports whether a vCPU stands in the code of g, having just returned
// from the place slot, or, if asked to look, whether an interrupt came at the
// trampoline.
func (g *retStage) returning(k *core, w World, i int, slot uint64, look bool, buf []byte) bool {
	for i := range k.cpus {
		s := w.CPU(i)
		if k.code.At(guest.GVA(s.Regs.RIP)) == g && slot-s.Regs.RSP+8 <= 4<<10 {
			return true
		}
	}
	if !look || k.target.ReadMemory(0, guest.GVA(slot-8), buf[:8]) != nil || le.Uint64(buf) != slot+8 {
		return false
	}
	if k.target.ReadMemory(0, guest.GVA(slot-32), buf[:8]) != nil {
		return false
	}
	return k.leadsTo(guest.GVA(le.Uint64(buf)), g.tramps+guest.GVA(i*trampSize))
}

// trap implements resident: at the exit.
func (g *retStage) trap(c *cpu, s State, kind TrapKind) (Verdict, bool) {
	if off := guest.GVA(s.Regs.RIP) - g.exit; off != 0 && (kind != TrapDetour || off > outLen) {
		return Verdict{}, false
	}
	return c.arriveStray(s, g), true
}

// accessor implements resident.
func (g *retStage) accessor(_ *cpu, s State) (guest.GVA, bool) {
	return g.home(guest.GVA(s.Regs.RIP)), false
}

// arriveStray handles an arrival at the exit of g: at a trampoline whose activation has
// ended, or that is not the one of this place on the stack. The number of the
// instance is on top of the stack, and belongs to nobody.
//
// A function that took its arguments off the stack (ret imm16; no code that follows
// the System V ABI does) has returned after all: the return handler runs. What else comes there is a copy of an activation that a fork made, or a second
// return: it goes where the last activation went, and no handler runs. From then on
// the probe belongs on the host (reapLater moves it).
func (c *cpu) arriveStray(s State, g *retStage) Verdict {
	i, ok := c.readWord(s, s.Regs.RSP)
	if !ok || uint64(i) >= uint64(g.n) || g.user != (s.CPL == 3) {
		return Verdict{Action: NotOurs}
	}
	ret := guest.GVA(g.inst(int(i), instRet).Load())
	if home := c.through(ret); ret == 0 || !home.Canonical() || !c.target.Symbols().IsText(home) {
		return Verdict{Action: NotOurs}
	}
	s.Regs.RSP += 16
	s.Regs.RIP = uint64(ret)
	count(&c.counts.returns)
	state := g.inst(int(i), instState).Load()
	popped := s.Regs.RSP - 8 - state // of a live one
	if state == 0 || state&stateBusy != 0 || popped == 0 || popped > maxPopped || !g.inst(int(i), instState).CompareAndSwap(state, state|stateBusy) {
		count(&c.counts.copies)
		g.rp.Load().again.Store(true)
		return Verdict{Action: Resume}
	}
	if rp := g.rp.Load(); g.words[wordRun].Load() != 0 {
		data := g.data(int(i), rp.probe.DataSize)
		s.Regs.RIP = uint64(c.through(ret))
		c.returnedFrom(s, rp, data, guest.GVA(s.Regs.RIP))
		s.Regs.RIP = uint64(ret)
	}
	g.inst(int(i), instState).Store(0)
	g.words[wordUsed].Add(^uint64(0))
	return Verdict{Action: Resume}
}

// returnedFrom counts a return and runs the return handler.
func (c *cpu) returnedFrom(s State, rp *retprobe, data []byte, ret guest.GVA) {
	r := rp.reg
	count(&rp.cells[c.id].returns)
	count(&r.cells[c.id].steps)
	if rp.probe.Return == nil || c.depth != 0 {
		return
	}
	c.enter(s, r.site)
	c.about(r)
	c.ctx.Data, c.ctx.Ret = data, ret
	c.runReturn(r)
	c.ctx.Data, c.ctx.Ret = nil, 0
	c.leave()
}

// fault implements resident: of the return stage, which
// goes on at its fixup, or a single step of the guest's, which is nobody's
// concern before the function has returned.
func (g *retStage) fault(_ *cpu, s State, t Trap) Verdict {
	rip := guest.GVA(s.Regs.RIP)
	for _, p := range g.placed {
		for _, f := range p.fixups {
			if rip == p.at+guest.GVA(f.Fault) && t.Vector != insn.VectorDB {
				s.Regs.RIP = uint64(p.at) + uint64(f.Resume)
				return Verdict{Action: Resume}
			}
		}
	}
	if t.Vector == insn.VectorDB {
		return Verdict{Action: Resume}
	}
	return Verdict{Action: NotOurs}
}

// usedInGuest returns how many activations have an instance in the guest.
func (rp *retprobe) usedInGuest() int64 {
	if g := rp.stage.Load(); g != nil {
		return g.used()
	}
	return 0
}

// spare lets the guest use n more instances, because the host uses fewer.
func (rp *retprobe) spare(n int64) {
	if g := rp.stage.Load(); g != nil {
		g.words[wordLimit].Add(uint64(n))
	}
}

// reapDelay is how often it is looked whether kretprobes in the guest miss calls
// for want of instances that nobody will come back to.
const reapDelay = 50 * time.Millisecond

// reapLater sees to it that it is, for the kretprobes of st. On the host a hit that
// finds no instance looks for abandoned ones itself. Callers hold mu.
func (o *optimizer) reapLater(st *site) {
	if len(st.returnMemory()) == 0 || o.delay < 0 || o.reaper != nil {
		return
	}
	missed := map[*retStage]uint64{}
	o.reaper = time.AfterFunc(reapDelay, func() {
		if o.lock() != nil {
			return
		}
		defer o.mu.Unlock()
		any, short := false, false
		var twice []*site
		var buf [8]byte
		for _, p := range o.pools() {
			g := p.ret.stage.Load()
			if g == nil {
				continue
			}
			any = true
			if st := p.ret.reg.site; p.ret.again.Load() && st.detour() != nil && st.detour().run != nil {
				twice = append(twice, st)
			}
			n := uint64(0)
			for i := range g.cpus {
				n += g.cell(i, cellMissed).Load()
			}
			if n != missed[g] {
				_, undecided := g.look(&o.core, buf[:])
				short = short || undecided
			}
			missed[g] = n
		}
		if len(twice) != 0 {
			err := o.stop(func(w World) error {
				var lost []error
				for _, st := range twice {
					o.review(w, st, &lost)
				}
				return errors.Join(lost...)
			})
			if err != nil {
				o.log.Warn("kretprobes could not be moved to the host", "err", err)
			}
		}
		if short {
			if err := o.reclaim(); err != nil {
				o.log.Warn("abandoned activations could not be given back", "err", err)
			}
		}
		if !any {
			o.reaper = nil
			return
		}
		o.reaper.Reset(reapDelay)
	})
}

// returnMemory returns the bounds of what the kretprobes of st use in the guest.
func (st *site) returnMemory() []guest.GVA {
	var out []guest.GVA
	for _, r := range *st.chain.Load() {
		if r.ret == nil {
			continue
		}
		if g := r.ret.stage.Load(); g != nil {
			out = append(out, g.tramps, g.end-1, g.base, g.base+guest.GVA(len(g.bytes)-1))
		}
	}
	return out
}

// retBase are the counts of one vCPU in the guest from before the last reset, or
// all that there will be.
type retBase struct{ handled, filtered, missed, returns atomic.Uint64 }

// inGuest returns the counts of a vCPU in the guest.
func (rp *retprobe) inGuest(cpu int) (handled, filtered, missed, returns uint64) {
	b := &rp.base[cpu]
	handled, filtered, missed, returns = b.handled.Load(), b.filtered.Load(), b.missed.Load(), b.returns.Load()
	if g := rp.stage.Load(); g != nil {
		_, h, f, m := g.counts(cpu)
		handled, filtered, missed, returns = handled+h, filtered+f, missed+m, returns+g.cell(cpu, cellReturns).Load()
	}
	return handled, filtered, missed, returns
}

// freeze keeps the counts and lets go of the instances in the guest, which it returns, or
// nil. The world is stopped.
func (rp *retprobe) freeze() *retStage {
	g := rp.stage.Load()
	if g == nil {
		return nil
	}
	for i := range rp.base {
		b := &rp.base[i]
		h, f, m, r := rp.inGuest(i)
		b.handled.Store(h)
		b.filtered.Store(f)
		b.missed.Store(m)
		b.returns.Store(r)
	}
	g.words[wordRun].Store(0)
	rp.stage.Store(nil)
	return g
}

// leaveGuest ends the running of rp in the guest. What it has there may serve
// another kretprobe. The world is stopped, or nothing has run yet.
func (rp *retprobe) leaveGuest(t *trampolines) {
	if g := rp.freeze(); g != nil {
		t.idle[g.key] = append(t.idle[g.key], g)
	}
}

// save takes the counts that stand in the guest's memory, before a reset of
// the guest, which does not run.
func (e *Engine) save() {
	e.view.Lock()
	defer e.view.Unlock()
	for _, p := range e.pools() {
		g := p.ret.stage.Load()
		if g == nil {
			continue
		}
		in := 0
		for i := range g.n {
			if state := g.inst(i, instState).Load(); state != 0 && state&stateBusy == 0 {
				in++
			}
		}
		p.ret.freeze()
		p.ret.abandoned.Add(uint64(in))
	}
}
