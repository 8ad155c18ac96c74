package session

import (
	"slices"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/source"
)

// compile makes the probe of a's definition, not yet registered and without handlers,
// in the order of the kernel's checks: the text with the names of the image, then whether the event
// can have it, then everything else that the image knows. Our own checks come after the text. a.def may be there already: see atRets. Callers hold
// changes.
func (st *Session) compile(a *Probe) error {
	spec := a.spec
	def, err := a.def, error(nil)
	if def == nil {
		def, err = event.ParseIn(spec.Def, st.scope(a.in))
	}
	if err != nil {
		return err
	}
	a.def = nil
	if err := specFits(def, spec); err != nil {
		return err
	}
	if def, err = withArgs(def, spec.Args, st.scope(a.in)); err != nil {
		return err
	}
	a.def = def
	if err := st.events.join(a); err != nil {
		a.def = nil
		return err
	}
	layout, err := st.layout(a, false)
	if err != nil {
		return err
	}
	a.source = st.hub.Source(layout, a)
	st.place(a)
	return nil
}

// layout resolves a's definition; again is event.Options.Again.
func (st *Session) layout(a *Probe, again bool) (*event.Layout, error) {
	_, moves := st.guest.Image().(probe.Kernel)
	return event.Compile(a.def, st.scope(a.in), event.Options{
		Tasks: st.programs.KnowsTasks(), Regs: a.spec.Regs || a.spec.Post, Stack: a.spec.Stack, Moves: moves, Again: again,
	})
}

// scope is what the names in definitions can mean; in as variables has it.
func (st *Session) scope(in string) event.Scope {
	return event.Scope{Symbols: st.guest.Image(), Types: st.types(), Variables: source.Variables{Image: st.guest.Image, Info: st.source, In: in}, Names: names{st.guest}}
}

// names are what addresses are called in the boot that there is.
type names struct{ guest Guest }

// Find implements event.Names.
func (n names) Find(addr guest.GVA) (guest.Symbol, bool) { return n.guest.Image().Find(addr) }

// locateModules makes the programs of definitions again that have addresses of modules, which may
// be others since a module has come or gone. Any thread but a vCPU's. A change that is under way is not
// waited for: it may be a reset, which waits for the caller.
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
		if st.change() == nil {
			locate()
		}
	}()
}

// locateAgain makes the programs of definitions again whose layouts are asked for: their addresses may
// be others. No vCPU runs. Callers hold changes.
func (st *Session) locateAgain(wanted func(*event.Layout) bool) {
	for _, a := range st.snapshot() {
		if a.source == nil || a.program == nil || !wanted(a.source.Layout) {
			continue
		}
		l, err := st.layout(a, true)
		var filter *event.Filter
		if err == nil && a.spec.Filter != "" {
			filter, err = l.Filter(a.spec.Filter)
		}
		if err == nil {
			err = a.program.Again(l, filter)
		}
		if err != nil {
			st.log.Warn("what a definition reads by name is where it was before", "probe", a.def.Name(), "err", err)
		}
	}
}

// place makes the engine's probe of a.
func (st *Session) place(a *Probe) {
	p := a.def.Place
	where := probe.Kprobe{Name: a.def.Name(), Symbol: p.Qualified(), Offset: p.Offset, Addr: p.Addr, Disabled: a.spec.Disabled, Space: guest.GPA(a.spec.Space)}
	switch {
	case a.def.Kind == event.KindWatch:
		st.handleWatch(a, where)
	case a.def.Kind == event.KindReturn:
		r := &probe.Kretprobe{Kprobe: where, MaxActive: a.def.MaxActive}
		a.probe, a.kprobe = r, &r.Kprobe
	case a.spec.isJprobe():
		st.handleJprobe(a, where)
	default:
		a.kprobe = &where
		a.probe = a.kprobe
	}
}

// define makes the program of a's definition and filter the handlers of a, on the host
// and, where that can be, in the guest. Callers hold changes.
func (st *Session) define(a *Probe) error {
	var filter *event.Filter
	var err error
	if a.spec.Filter != "" {
		if filter, err = a.source.Layout.Filter(a.spec.Filter); err != nil {
			return err
		}
	}
	d, err := st.programs.Define(a.source.Layout, filter, a.source)
	if err != nil {
		return &Error{Code: CodeUnavailable, Errno: syscall.E2BIG, Text: "the definition and its filter are too long: " + err.Error(), Column: new(int), Command: defText(a.spec)}
	}
	a.program = d
	if a.watch != nil {
		a.watch.Handler = d.Access
		if a.spec.Stop != "" {
			return st.stops(a, d.Hit)
		}
		return nil
	}
	r, returns := a.probe.(*probe.Kretprobe)
	if returns {
		r.Entry, r.Return, r.DataSize = d.Entry, d.Return, d.EntrySize()
	} else {
		a.kprobe.Filter = d.Hit
	}
	if err := st.override(a); err != nil {
		return err
	}
	if a.spec.Post {
		if a.kprobe.Post, err = d.Post(); err != nil {
			return err
		}
	}
	if a.spec.Stop != "" {
		if err := st.stops(a, d.Hit); err != nil {
			return err
		}
	}
	addr, user, _, err := st.engine.Resolve(a.kprobe)
	switch {
	case err != nil: // registering it gives the reason
	case a.spec.OnHost:
		a.onHost = "it was asked for"
	case a.injector != nil:
		a.onHost = "its function returns without running, which only the engine may do"
	case a.spec.isJprobe():
		a.onHost = "a jprobe takes an exit"
	case a.spec.Stop != "":
		a.onHost = "it stops the vCPU, which takes an exit"
	case a.spec.Post:
		a.onHost = "its second record takes an exit"
	case a.spec.Space != 0:
		a.onHost = "it is for one address space"
	default:
		if a.onHost = st.noStage(user); a.onHost != "" {
			break
		}
		stage, entry, err := d.ToGuest(addr, user)
		switch {
		case err != nil:
			a.onHost = err.Error()
		case returns:
			r.ReturnStage, r.Stage = stage, entry
		default:
			a.kprobe.Stage = stage
		}
	}
	return nil
}
