package machine

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/probe"
)

// Milestone implements probe.Milestones.
func (m target) Milestone(at probe.Milestone) []string {
	g, ok := m.payload().(*linuxGuest)
	if !ok || g.left.Load() {
		return nil
	}
	if at == probe.MemoryLeaves {
		return g.seen.Load().MemoryLeaves()
	}
	return g.seen.Load().ModuleReady()
}

// Passes implements probe.Milestones.
func (m target) Passes(cpu int, at probe.Milestone) { m.vcpus[cpu].passes[at] = true }

// pass lets the vCPU go on when what it has come to was seen to: the engine knows the module
// that is ready, or has taken everything out of memory that is about to be copied.
func (v *vcpu) pass() {
	passes := v.passes
	clear(v.passes[:])
	g, ok := v.m.payload().(*linuxGuest)
	if !ok || v.stopper {
		return // beside sees it, soon
	}
	v.meanwhile(func(func() bool) {
		if passes[probe.ModuleComes] {
			g.refreshModules(v.m)
			v.m.tellEngine() // in any case: who has seen it before may not have told yet
		}
		if passes[probe.MemoryLeaves] {
			g.hibernate(v.m)
		}
	})
}

// hibernate gives the guest's memory up, with nothing of ours in it: what the kernel copies now
// is put back by another boot, in which the kernel and the engine's memory are elsewhere; or it is
// that boot, and the copy takes its place.
func (g *linuxGuest) hibernate(m *Machine) {
	err := m.engine.Withdraw(func() {
		g.giveUp(m, linux.HibernatedText)
		if err := g.pullStubs(m); err != nil {
			m.log.Error("the kernel's handlers are not what they were", "err", err)
		}
	})
	if err != nil {
		m.log.Error("probes in a guest that hibernates", "err", err)
	}
}

// pullStubs undoes plantStubs. The world is stopped.
func (g *linuxGuest) pullStubs(m *Machine) error {
	for _, s := range g.stubs {
		b, err := m.mem.Slice(g.engine.home.PA+guest.GPA(s.at-g.engine.home.Start), len(s.bytes))
		if err != nil {
			return err
		}
		copy(b, s.bytes[:])
	}
	g.stubs = nil
	return nil
}
