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

// OnModules has f called when modules of a Linux guest's kernel have come or gone, before the engine
// looks: before code of one that has come runs. It is called on any thread but a vCPU's, also when nothing
// has changed, and may stop the machine.
func (m *Machine) OnModules(f func()) { m.modules.Store(&f) }

// tellEngine has the engine look again at a guest that has changed.
func (m *Machine) tellEngine() {
	if f := m.modules.Load(); f != nil {
		(*f)()
	}
	err := m.target().Stop(func(probe.World) error { return nil })
	if err == nil {
		err = m.engine.TargetChanged()
	}
	if err != nil {
		m.log.Warn("probes of a guest that has changed", "err", err)
	}
}
