package machine

import (
	"encoding/binary"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// How far a Linux kernel has come, by its system_state (include/linux/kernel.h, enum
// system_states). From stateScheduling on its other threads run: it has applied its
// alternatives, set up ftrace, and cleared the mapping behind its image. From stateFreeing on
// what it needed to boot alone is gone.
const (
	stateScheduling = 1
	stateFreeing    = 2
)

// phasePoll is how often a guest that boots is asked how far it has come. Nothing depends
// on it: sites wait for their jumps until then.
const phasePoll = 10 * time.Millisecond

// state returns the kernel's system_state, and false for a kernel whose names are not known.
func (g *linuxGuest) state(m *Machine) (uint32, bool) {
	if g.stateAt == 0 {
		return 0, false
	}
	b, err := m.mem.Slice(g.stateAt, 4)
	if err != nil {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b), true
}

// stopped sees how far the guest has come, and gives the engine its memory when that can be.
// Precondition: the world is stopped.
func (g *linuxGuest) stopped(m *Machine) {
	if g.engine.mapped() || g.refused.Load() != nil {
		return
	}
	if s, ok := g.state(m); !ok || s < stateScheduling {
		return
	}
	if err := g.engine.attach(m.booted.Load().space); err != nil {
		text := "no memory of the engine's in the guest: " + err.Error()
		g.refused.Store(&text)
		m.log.Warn("no jumps: the engine has no memory in the guest", "err", err)
		return
	}
	m.log.Info("the engine has its memory in the guest", "code", g.engine.execAt, "data", g.engine.dataAt)
}

// noExec implements payload.
func (g *linuxGuest) noExec(user bool) string {
	switch why := g.refused.Load(); {
	case user:
		return "user code of a Linux guest has no room for the engine's"
	case why != nil:
		return *why
	case !g.engine.mapped():
		return errNotMapped.Error()
	}
	return ""
}

// beside waits until the kernel has come so far that there is nothing to wait for, and tells
// the engine each time that something has changed for it.
func (g *linuxGuest) beside(m *Machine, stop <-chan struct{}) {
	clock := time.NewTicker(phasePoll)
	defer clock.Stop()
	for last := uint32(0); last < stateFreeing; {
		select {
		case <-stop:
			return
		case <-clock.C:
		}
		s, ok := g.state(m)
		if !ok {
			return
		}
		if s == last {
			continue
		}
		last = s
		err := m.target().Stop(func(probe.World) error { return nil })
		if err == nil {
			err = m.engine.Reconcile()
		}
		if err != nil {
			m.log.Warn("probes of a guest that has booted further", "err", err)
		}
	}
}

// findState remembers where the kernel has its system_state.
func (g *linuxGuest) findState(home guest.Home) {
	g.stateAt = 0
	if s, err := g.view().Lookup("system_state"); err == nil {
		g.stateAt = home.PA + guest.GPA(s.Addr-home.Start)
	}
}
