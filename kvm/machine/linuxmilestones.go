package machine

import (
	"errors"
	"time"

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
	view := g.seen.Load()
	switch at {
	case probe.MemoryLeaves:
		return view.MemoryLeaves()
	case probe.TextRead:
		return view.TextRead()
	case probe.TextWritten:
		if name, _ := view.TextWritten(); name != "" {
			return []string{name}
		}
		return nil
	}
	return view.ModuleReady()
}

// Passes implements probe.Milestones.
func (m target) Passes(cpu int, at probe.Milestone) {
	v := m.vcpus[cpu]
	v.passes[at] = true
	if at == probe.TextWritten {
		r := v.trap.state.Regs
		v.poke = [4]uint64{r.RDI, r.RSI, r.RDX, r.RCX}
	}
}

// passMilestones lets the vCPU go on when what it has come to was seen to: the engine knows the module
// that is ready, or has taken everything out of memory that is about to be copied.
func (v *vcpu) passMilestones() {
	passes := v.passes
	clear(v.passes[:])
	g, ok := v.m.payload().(*linuxGuest)
	if !ok || v.where.stops() {
		return // runBeside sees it, soon
	}
	if passes[probe.TextWritten] {
		v.handleModuleWrite(g)
	}
	if !passes[probe.ModuleComes] && !passes[probe.MemoryLeaves] {
		return
	}
	v.runAside(stateWaiting, func(func() bool) {
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
	if err := m.withdraw(func() {
		g.abandonMemory(m, linux.HibernatedText)
		if err := g.pullStubs(m); err != nil {
			m.log.Error("the kernel's handlers are not what they were", "err", err)
		}
	}); err != nil {
		m.log.Error("probes in a guest that hibernates", "err", err)
	}
}

// withdraw takes everything of the engine's out of the guest, and calls gone then, with the world stopped. What is inside a probe's
// handlers is waited for; what has not come out after insideTime stays there, and the error says what it is.
func (m *Machine) withdraw(gone func()) error {
	begin := time.Now()
	for anyway := false; ; anyway = time.Since(begin) > insideTime {
		tried := false
		err := m.runTidied(func() error {
			for i, v := range m.vcpus {
				if !anyway && v.trapping() {
					return &probe.InsideError{CPU: i}
				}
			}
			tried = true
			return m.engine.Withdraw(anyway, gone)
		})
		switch {
		case errors.Is(err, probe.ErrInside) && !anyway:
			time.Sleep(insideWait) // others go on meanwhile, and come out
		case tried || errors.Is(err, ErrClosed):
			return err
		default: // a vCPU did not come to rest: perhaps it does now
			return errors.Join(err, m.engine.Withdraw(true, gone))
		}
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

// handleModuleWrite is for a vCPU at the beginning of the function that writes to text. That of the kernel itself it is stopped at (handleTextWrite);
// the text of modules is memory like other, so that the engine has to be told before.
func (v *vcpu) handleModuleWrite(g *linuxGuest) {
	m, view := v.m, g.seen.Load()
	_, first := view.TextWritten()
	at, from, n := guest.GVA(v.poke[first]), guest.GVA(v.poke[first+1]), v.poke[first+2]
	defer view.Poked()
	if view.Module(at) == "" || n == 0 || n > probe.MaxPoke || !m.engine.Probed(at, int(n)) {
		return
	}
	data := make([]byte, n)
	if err := m.target().ReadMemory(0, from, data); err != nil {
		m.log.Warn("what the guest's kernel writes to the text of a module is not known", "addr", at, "err", err)
		return
	}
	v.runAside(statePoking, func(waits func() bool) { v.pokeText(at, nil, data, waits) })
}
