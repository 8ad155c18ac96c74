package machine

import "github.com/guestprobe/guestprobe/probe"

// refreshModules reads the list of modules, and reports whether it has changed.
// Any thread except a vCPU's.
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
	// The guest could cause the same message a thousand times.
	text := err.Error()
	if said := g.said.Swap(&text); said == nil || *said != text {
		m.log.Warn("modules of the guest are not known", "err", err)
	}
	return changed
}

// OnModules sets a function that is called when modules of a Linux guest's
// kernel were loaded or unloaded, before the engine looks and so before code of
// a new module runs. It is called on any thread except a vCPU's, also when
// nothing has changed, and may stop the machine.
func (m *Machine) OnModules(f func()) { m.modules.Store(&f) }

// tellEngine notifies the engine that the guest has changed.
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
