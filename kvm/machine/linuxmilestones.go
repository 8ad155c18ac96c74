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

// NotePass implements probe.Milestones.
func (m target) NotePass(cpu int, at probe.Milestone) {
	v := m.vcpus[cpu]
	v.passes[at] = true
	if at == probe.TextWritten {
		r := v.trap.state.Regs
		v.poke = [4]uint64{r.RDI, r.RSI, r.RDX, r.RCX}
	}
}

// passMilestones lets the vCPU continue once the milestones that it has passed
// are handled: the engine knows a module that is ready, or has removed
// everything from memory that is about to be copied.
func (v *vcpu) passMilestones() {
	passes := v.passes
	clear(v.passes[:])
	g, ok := v.m.payload().(*linuxGuest)
	if !ok || v.where.stops() {
		return // runBeside handles it soon
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
			v.m.tellEngine() // always: the thread that has seen it before may not have reported it yet
		}
		if passes[probe.MemoryLeaves] {
			g.hibernate(v.m)
		}
	})
}

// hibernate abandons the guest's memory, after removing everything of ours. The
// kernel now copies its memory. Another boot will restore the copy, with the
// kernel and the engine's memory at other addresses. Or this is that boot, and
// the copy replaces it.
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

// withdraw removes everything of the engine's from the guest, and then calls
// gone, with the world stopped. It waits for code inside a probe's handlers.
// Code that has not left them after insideTime stays there, and the error names
// it.
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
			if g, ok := m.payload().(*linuxGuest); ok && !anyway && g.inCall(m) {
				return errInCall
			}
			tried = true
			return m.engine.Withdraw(anyway, gone)
		})
		switch {
		case errors.Is(err, probe.ErrInside) && !anyway:
			time.Sleep(insideWait) // others run and leave the handlers
		case tried || errors.Is(err, ErrClosed):
			return err
		default: // a vCPU did not come to rest: try again
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

// handleModuleWrite handles a vCPU at the beginning of the function that writes
// to text. Writes to the kernel's own text cause an exit (handleTextWrite). The
// text of modules is ordinary memory, so the engine has to be notified before
// the write.
func (v *vcpu) handleModuleWrite(g *linuxGuest) {
	m, view := v.m, g.seen.Load()
	_, first := view.TextWritten()
	at, from, n := guest.GVA(v.poke[first]), guest.GVA(v.poke[first+1]), v.poke[first+2]
	defer view.NotePoke()
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
