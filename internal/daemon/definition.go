package daemon

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// compile makes a probe of a definition, not yet registered and without handlers.
// Names holds those of the batch so far. Callers hold changes.
func (st *store) compile(spec api.ProbeSpec, names map[string]bool) (*attached, error) {
	def, err := event.Parse(spec.Def)
	if err != nil {
		return nil, err
	}
	if err := specFits(def, spec); err != nil {
		return nil, err
	}
	if def, err = withArgs(def, spec.Args); err != nil {
		return nil, err
	}
	if def.Kind == event.KindReturn && spec.Post {
		return nil, &api.Error{
			Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "a return probe has no second record",
			Detail: "leave out post; with regs its record has the registers at the return", Column: new(int), Command: defText(spec),
		}
	}
	name := def.Name()
	if names[name] || st.taken(name) {
		return nil, nameTaken(def)
	}
	names[name] = true
	// Before Compile, which has only the kernel's words for it.
	if def.Place.Symbol != "" && def.Place.Module == "" {
		if _, err := st.guest.Image().Lookup(def.Place.Symbol); err != nil {
			return nil, def.Refused(toProbeError(def.Place.Symbol, err))
		}
	}
	layout, err := event.Compile(def, st.guest.Image(), event.Options{Tasks: st.programs.KnowsTasks(), Regs: spec.Regs || spec.Post})
	if err != nil {
		return nil, err
	}
	// The number is there before the first hit can be.
	st.lastID++
	a := &attached{id: st.lastID, spec: spec, def: def}
	a.source = st.hub.Source(layout, a)
	where := probe.Kprobe{Name: name, Symbol: def.Place.Symbol, Offset: def.Place.Offset, Addr: def.Place.Addr, Disabled: spec.Disabled, Space: guest.GPA(spec.Space)}
	switch {
	case def.Kind == event.KindWatch:
		st.handleWatch(a, where)
	case def.Kind == event.KindReturn:
		r := &probe.Kretprobe{Kprobe: where, MaxActive: def.MaxActive}
		a.probe, a.kprobe = r, &r.Kprobe
	case isJprobe(spec):
		st.handleJprobe(a, where)
	default:
		a.kprobe = &where
		a.probe = a.kprobe
	}
	return a, nil
}

// define makes the program of a's definition and filter the handlers of a, on the host
// and, where that can be, in the guest. Callers hold changes.
func (st *store) define(a *attached) error {
	var filter *event.Filter
	var err error
	if a.spec.Filter != "" {
		if filter, err = a.source.Layout.Filter(a.spec.Filter); err != nil {
			return err
		}
	}
	d, err := st.programs.Define(a.source.Layout, filter, a.source)
	if err != nil {
		return &api.Error{Code: api.CodeUnavailable, Errno: "E2BIG", Message: "the definition and its filter are too long: " + err.Error(), Column: new(int), Command: defText(a.spec)}
	}
	a.program = d
	if a.watch != nil {
		a.watch.Handler = d.Access
		return nil
	}
	r, returns := a.probe.(*probe.Kretprobe)
	if returns {
		r.Entry, r.Return, r.DataSize = d.Entry, d.Return, d.EntrySize()
	} else {
		a.kprobe.Filter = d.Hit
	}
	if a.spec.Post {
		if a.kprobe.Post, err = d.Post(); err != nil {
			return err
		}
	}
	addr, user, _, err := st.engine.Resolve(a.kprobe)
	switch {
	case err != nil: // registering it gives the reason
	case a.spec.OnHost:
		a.onHost = "it was asked for"
	case isJprobe(a.spec):
		a.onHost = "a jprobe takes an exit"
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

// nameTaken refuses a definition whose name a probe has already. The kernel
// would add it to that event; here each event is one probe, so that it can be
// told apart in every listing.
func nameTaken(def *event.Def) error {
	e := toAPI(def.Taken())
	e.Code, e.Message = api.CodeNameTaken, fmt.Sprintf("there is a probe %s already", def.Name())
	e.Detail = "detach that probe first, or choose another name"
	if def.AutoName {
		e.Detail = fmt.Sprintf("the name was made from the place: choose one, as in p:NAME %s", def.Place)
	}
	return e
}

// defText is a definition as error messages show it, its tokens one blank
// apart.
func defText(spec api.ProbeSpec) string { return strings.Join(strings.Fields(spec.Def), " ") }
