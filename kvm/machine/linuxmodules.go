package machine

import "github.com/guestprobe/guestprobe/probe"

// refreshModules looks which modules there are, and reports whether that has changed. Any
// thread but a vCPU's.
func (g *linuxGuest) refreshModules(m *Machine) bool {
	if g.left.Load() {
		return false
	}
	view := g.seen.Load()
	view.Refresh() // it may load the first as soon as it has threads
	changed, err := view.RefreshModules()
	if err == nil {
		return changed
	}
	// The guest could say the same a thousand times.
	text := err.Error()
	if said := g.said.Swap(&text); said == nil || *said != text {
		m.log.Warn("modules of the guest are not known", "err", err)
	}
	return changed
}

// tellEngine has the engine look again at a guest that has changed.
func (m *Machine) tellEngine() {
	err := m.target().Stop(func(probe.World) error { return nil })
	if err == nil {
		err = m.engine.TargetChanged()
	}
	if err != nil {
		m.log.Warn("probes of a guest that has changed", "err", err)
	}
}
