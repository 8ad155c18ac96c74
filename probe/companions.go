package probe

import (
	"slices"
	"time"
)

// endOf returns the hidden registration at the end of a jprobe's mirror.
func (g *registry) endOf(j *jprobe) *registration {
	if g.mirrors.Load() == nil {
		g.noteStacks()
		list := make([]mirror, max(16, 4*len(g.cpus)))
		g.mirrors.Store(&list)
	}
	return &registration{tally: g.newTally(j.probe.Name), owner: g, kind: mirrorEnd{}, where: where{symbol: j.probe.endName()}}
}

// addCompanions implements kind: the end of the mirror.
func (jp *jprobe) addCompanions(g *registry, b *batch, _ *registration) *Error {
	if jp.entry == 0 {
		return nil
	}
	jp.ending = g.endOf(jp)
	if err := g.admit(b, jp.ending); err != nil {
		return err
	}
	return jp.checkEnd(&g.places)
}

// withdraw implements kind: the end of the mirror goes when no mirror is under way.
func (jp *jprobe) withdraw(g *registry) []*registration {
	if jp.ending != nil {
		g.ends = append(g.ends, jp.ending)
		jp.ending = nil
	}
	return nil
}

// ripeEnds returns the hidden probes that are no longer needed. If another jprobe's
// mirrors end at the same place, one is left. Otherwise the probe stays while a
// mirror is under way, because without its end the mirror would run past its last
// instruction. The world is stopped.
func (g *registry) ripeEnds() []*registration {
	if len(g.ends) == 0 {
		return nil
	}
	going := map[*registration]bool{}
	for _, r := range g.ends {
		going[r] = true
	}
	mirroring := g.mirroring()
	var ripe, later []*registration
	for _, r := range g.ends {
		if mirroring && !slices.ContainsFunc(*r.site.chain.Load(), func(o *registration) bool { return o.is(mirrorEnds) && !going[o] }) {
			later = append(later, r)
		} else {
			ripe = append(ripe, r)
		}
	}
	g.ends = later
	return ripe
}

// endTries bounds how often awaitEnds looks; each wait is twice as long as the one
// before, beginning with 50 us: 50 ms in all. Mirrors run with interrupts off, so
// they end soon, unless their vCPU is held.
const endTries = 10

// awaitEnds lets mirrors that were under way when their jprobe was removed finish, so
// that the text there can be restored. Hidden probes that remain go with the next
// removal, or soon after their mirrors have finished. Callers hold mu.
func (g *registry) awaitEnds() error {
	for i := 0; i < endTries && len(g.ends) != 0; i++ {
		time.Sleep(50 * time.Microsecond << i)
		if err := g.remove(nil); err != nil {
			return err
		}
	}
	if len(g.ends) != 0 && g.opt.delay >= 0 {
		g.removeEndsLater()
	}
	return nil
}

// endDelay is how often the engine checks whether mirrors of removed jprobes have finished.
const endDelay = 50 * time.Millisecond

// removeEndsLater removes hidden probes when their mirrors have finished. Callers hold mu.
func (g *registry) removeEndsLater() {
	time.AfterFunc(endDelay, func() {
		if g.lock() != nil {
			return
		}
		defer g.mu.Unlock()
		if len(g.ends) == 0 {
			return
		}
		if err := g.remove(nil); err != nil {
			g.log.Warn("the end of a removed jprobe's mirror could not be restored", "err", err)
		}
		if len(g.ends) != 0 {
			g.removeEndsLater()
		}
	})
}

// abortMirrors ends the mirrors that vCPUs are inside, as if they had finished, when
// the engine closes: afterwards nothing would do it. The world is stopped, and all
// text is restored before it resumes.
func (g *registry) abortMirrors(w World) {
	for i := range g.cpus {
		c := &g.cpus[i]
		s := w.CPU(i)
		if !c.inMirror(s) {
			continue
		}
		m := c.mirror
		if m.n > 0 {
			c.mem.root, c.mem.cpl = s.Root, s.CPL
			_ = c.mem.Write(m.regs.RSP, m.stack[:m.n])
		}
		*s.Regs = m.regs
		c.mirror = nil
		m.state.Store(mirrorFree)
	}
}

// noteStacks determines the size of the stacks that mirrors run on.
func (g *registry) noteStacks() {
	mask := uint64(0)
	if p := g.tasks.Load(); p != nil {
		mask = p.StackMask
	}
	g.stackMask.Store(mask)
}

// forgetMirrors discards every activation: the guest was reset.
func (g *registry) forgetMirrors() {
	g.noteStacks()
	for i := range g.cpus {
		g.cpus[i].mirror = nil
	}
	if list := g.mirrors.Load(); list != nil {
		for i := range *list {
			(*list)[i].state.Store(mirrorFree)
		}
	}
}

// addCompanions implements kind: for a kretprobe without trampolines, the exits of
// the function.
func (rp *retprobe) addCompanions(g *registry, b *batch, r *registration) *Error {
	if t := rp.table(); t == nil || !t.left {
		return nil
	}
	at, err := g.places.resolve(r.where)
	if err != nil {
		return err
	}
	leaves, err := g.places.leavePlaces(at.sym)
	if err != nil {
		return err
	}
	rp.leaves = nil
	for _, w := range leaves {
		x := &registration{tally: g.newTally(r.name), owner: g, kind: leave{of: rp}, where: w}
		if err := g.admit(b, x); err != nil {
			return err
		}
		rp.leaves = append(rp.leaves, x)
	}
	return nil
}

// withdraw implements kind.
func (rp *retprobe) withdraw(*registry) []*registration { return rp.leaves }

// withCompanions returns regs, which are being removed, together with their hidden
// probes. The world is stopped.
func (g *registry) withCompanions(regs []*registration) []*registration {
	out := regs[:len(regs):len(regs)]
	for _, r := range regs {
		out = append(out, r.kind.withdraw(g)...)
	}
	return append(out, g.ripeEnds()...)
}
