package machine

import "github.com/guestprobe/guestprobe/probe"

// ModuleReady implements probe.Modules.
func (m target) ModuleReady() string {
	g, ok := m.payload().(*linuxGuest)
	if !ok {
		return ""
	}
	return g.seen.Load().ModuleReady()
}

// ModuleComes implements probe.Modules.
func (m target) ModuleComes(cpu int) { m.vcpus[cpu].module = true }

// awaitModule lets the vCPU go on when the engine knows the module that is ready on it.
func (v *vcpu) awaitModule() {
	v.module = false
	g, ok := v.m.payload().(*linuxGuest)
	if !ok || v.stopper {
		return // beside sees it, soon
	}
	v.meanwhile(func(func() bool) {
		g.refreshModules(v.m)
		v.m.tellEngine() // in any case: who has seen it before may not have told yet
	})
}

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
