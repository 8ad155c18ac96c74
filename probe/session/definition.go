package session

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/source"
)

// compile makes the probe of a definition, not yet registered and without handlers,
// in the order of the kernel's checks: the definition has been checked with the names
// of the image; then come our own options, then the rules of its event, then
// everything else about the image. Callers hold changes.
func (at *attacher) compile(a *Probe, def *event.Def) error {
	if err := specFits(def, *a.spec); err != nil {
		return err
	}
	def, err := def.WithParameters(a.spec.Args, at.scope(a.in))
	if err != nil {
		return err
	}
	a.def = def
	if err := at.events.join(a); err != nil {
		a.def = nil
		return err
	}
	layout, err := at.layout(a, false)
	if err != nil {
		return err
	}
	a.source = at.hub.Source(layout, a)
	at.place(a)
	return nil
}

// layout resolves a's definition; again is event.Options.Again.
func (at *attacher) layout(a *Probe, again bool) (*event.Layout, error) {
	_, moves := at.guest.Image().(probe.Kernel)
	return event.Compile(a.def, at.scope(a.in), event.Options{
		Tasks: at.programs.KnowsTasks(), Regs: a.spec.Regs || a.spec.Post, Stack: a.spec.Stack, Moves: moves, Again: again,
	})
}

// scope is the meaning of the names in definitions; in is as for variables.
func (at *attacher) scope(in string) event.Scope {
	return event.Scope{Symbols: at.guest.Image(), Types: at.types(), Variables: source.Variables{Image: at.guest.Image, Info: at.source, In: in}, Names: names{at.guest}}
}

// names maps addresses to names in the current boot.
type names struct{ guest Guest }

// Find implements event.Names.
func (n names) Find(addr guest.GVA) (guest.Symbol, bool) { return n.guest.Image().Find(addr) }

// locateModules makes the programs of definitions with addresses of modules again,
// because these may have changed since a module was loaded or unloaded. Any thread
// but a vCPU's. It does not wait for a change in progress: that may be a reset, which
// waits for the caller.
func (st *Session) locateModules() {
	ofModule := func(l *event.Layout) bool { return l.OfModule }
	if !slices.ContainsFunc(st.snapshot(), func(a *Probe) bool { return a.source != nil && ofModule(a.source.Layout) }) {
		return
	}
	locate := func() {
		defer st.changes.Unlock()
		_ = st.guest.Target().Stop(func(probe.World) error { // an error: it does not run
			st.locateAgain(ofModule)
			return nil
		})
	}
	if st.changes.TryLock() {
		locate()
		return
	}
	go func() {
		if st.lockChanges() == nil {
			locate()
		}
	}()
}

// locateAgain makes the programs of definitions again whose layouts are wanted: their
// addresses may have changed. No vCPU runs. Callers hold changes.
func (st *Session) locateAgain(wanted func(*event.Layout) bool) {
	for _, a := range st.snapshot() {
		if a.source == nil || !wanted(a.source.Layout) {
			continue
		}
		if err := a.runs.locate(&st.attacher, a); err != nil {
			st.log.Warn("what a definition reads by name is where it was before", "probe", a.def.Name(), "err", err)
		}
	}
}
