package linux

import "maps"

// Copy returns a view of another run of the kernel at the same address: it begins
// with the state of v, and changes independently. It does not include files of the
// guest. It costs next to nothing.
func (v *View) Copy() *View {
	v.running.mu.Lock()
	defer v.running.mu.Unlock()
	c := &View{id: v.id, read: v.read, core: v.core, locks: v.locks, state: v.state, noName: v.noName, padding: v.padding, running: v.running.copy()}
	c.now.Store(v.now.Load())
	return c
}

// copy is View.Copy. Precondition: r.mu held.
func (r *running) copy() *running {
	c := &running{types: r.types, tasks: r.tasks, modules: r.modules, files: r.files, kprobes: r.kprobes.copy(), noTypes: r.noTypes, loaded: maps.Clone(r.loaded), lastSeen: r.lastSeen}
	for at, m := range c.loaded {
		m.types = nil // one goroutine at a time may use them
		c.loaded[at] = m
	}
	c.known.Store(r.known.Load())
	return c
}
