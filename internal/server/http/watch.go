package http

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// specFits refuses options that the kind of probe does not have.
func specFits(def *event.Def, spec api.ProbeSpec) error {
	refuse := func(message, detail string) error {
		return &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: message, Detail: detail, Column: new(int), Command: defText(spec)}
	}
	if err := jprobeValues(spec); err != nil {
		return err
	}
	if err := overrideValues(spec, refuse); err != nil {
		return err
	}
	of := spec
	of.AtRets = spec.AtRets && def.Kind != event.KindProbe // else it is one of the definitions that atRets has made
	if err := kindFits(def, of, refuse); err != nil {
		return err
	}
	switch {
	case isJprobe(spec) && spec.Post:
		return refuse("a jprobe has no second record", "leave out post: attach a probe without args and mirror for it")
	case spec.Override == nil:
	case spec.AtRets:
		return refuse("only a p definition can make its function return", "a function returns early at its entry: p FUNCTION")
	case isJprobe(spec):
		return refuse("a jprobe cannot make its function return", "leave out args and mirror: a definition has arguments as $arg1")
	case spec.Post:
		return refuse("an override skips the function, so there is no second record", "leave out post")
	}
	return nil
}

// kindFits refuses options that the kind of probe does not have.
func kindFits(def *event.Def, spec api.ProbeSpec, refuse func(message, detail string) error) error {
	kind := def.Kind.String()
	for i := range api.KindOptions {
		if o := &api.KindOptions[i]; o.Given(&spec) && !o.Has(kind) {
			why := o.Refusal(kind)
			return refuse(why.Message, why.Detail)
		}
	}
	return nil
}

// handleWatch makes a the watch of its definition.
func (st *store) handleWatch(a *attached, where probe.Kprobe) {
	a.kprobe = &where
	a.watch = &probe.Watch{
		Name: where.Name, Symbol: where.Symbol, Offset: where.Offset, Addr: where.Addr, Disabled: where.Disabled,
		Len: a.def.WatchLen(st.guest.Image()), Access: a.def.Access, Emulate: a.spec.Emulate,
	}
}

// register puts probes on the guest, all or none. The index of a refusal is that in as.
func (st *store) register(as []*attached) error {
	err := st.put(inSourceOrder(as))
	var x *probe.Error
	if errors.As(err, &x) && x.Index < len(as) {
		y := *x
		y.Index = slices.Index(as, inSourceOrder(as)[x.Index])
		return &y
	}
	return err
}

// inSourceOrder returns the order in which probes are registered. The clauses of a script run in the order of its
// source where several are at one place: the newest probe of an instruction runs first, so these are registered in
// reverse; return probes of one function, and watches in debug registers, run in the order in which they come.
func inSourceOrder(as []*attached) []*attached {
	if !slices.ContainsFunc(as, func(a *attached) bool { return a.object != nil && a.object.script != nil }) {
		return as
	}
	reversed := func(a *attached) bool {
		if a.watch != nil {
			return a.watch.Access == probe.AccessExec && a.watch.Emulate // it has a breakpoint
		}
		_, returns := a.probe.(*probe.Kretprobe)
		return !returns
	}
	var out, last []*attached
	for _, a := range as {
		if reversed(a) {
			last = append(last, a)
		} else {
			out = append(out, a)
		}
	}
	slices.Reverse(last)
	return append(out, last...)
}

// put is register in the order of the list.
func (st *store) put(as []*attached) error {
	var probes []probe.Probe
	var watches []*probe.Watch
	var order, watchOrder []int
	for i, a := range as {
		if a.watch != nil {
			watches, watchOrder = append(watches, a.watch), append(watchOrder, i)
		} else {
			probes, order = append(probes, a.probe), append(order, i)
		}
	}
	if len(watches) > 0 {
		if err := st.engine.Watch(watches...); err != nil {
			return indexed(err, watchOrder)
		}
	}
	if len(probes) == 0 {
		return nil
	}
	err := st.engine.Register(probes...)
	if err != nil && len(watches) > 0 {
		err = errors.Join(err, st.engine.Unwatch(watches...))
	}
	return indexed(err, order)
}

// indexed gives a refusal the index that the refused probe has in a longer list.
func indexed(err error, order []int) error {
	var x *probe.Error
	if errors.As(err, &x) && x.Index < len(order) {
		y := *x
		y.Index = order[x.Index]
		return &y
	}
	return err
}

// unregister takes probes off the guest.
func (st *store) unregister(as []*attached) error {
	var kprobes []*probe.Kprobe
	var watches []*probe.Watch
	for _, a := range as {
		if a.watch != nil {
			watches = append(watches, a.watch)
		} else {
			kprobes = append(kprobes, a.kprobe)
		}
	}
	var err error
	if len(watches) > 0 {
		if err = st.engine.Unwatch(watches...); errors.Is(err, probe.ErrInHandler) {
			return err
		}
	}
	return errors.Join(err, st.engine.Unregister(kprobes...))
}

// enable switches probes on or off, all or none, and returns those that were not so
// already. The index of a refusal is that in as.
func (st *store) enable(as []*attached, on bool) (switched []*attached, err error) {
	var kprobes []*probe.Kprobe
	var order []int
	set, setWatch := st.engine.Disable, st.engine.DisableWatch
	if on {
		set, setWatch = st.engine.Enable, st.engine.EnableWatch
	}
	for i, a := range as {
		if a.watch == nil && a.kprobe.Disabled == on {
			kprobes, order, switched = append(kprobes, a.kprobe), append(order, i), append(switched, a)
		}
	}
	if err := set(kprobes...); err != nil {
		return nil, indexed(err, order)
	}
	for i, a := range as {
		if a.watch == nil {
			continue
		}
		if info, _ := st.engine.WatchInfo(a.watch); info.Disabled != on {
			continue
		}
		if err := setWatch(a.watch); err != nil {
			_, undo := st.enable(switched, !on)
			return nil, errors.Join(indexed(err, []int{i}), undo)
		}
		switched = append(switched, a)
	}
	return switched, nil
}

// wireWatch describes a watch. Callers hold its mu, or changes.
func (st *store) wireWatch(a *attached) api.Probe {
	i, _ := st.engine.WatchInfo(a.watch)
	p := api.Probe{
		ID: a.id, Name: a.kprobe.Name, Def: a.def.String(), Kind: "w",
		Symbol: i.Symbol, Offset: i.Offset, Addr: api.Hex(i.Addr), User: i.User,
		Enabled: !i.Disabled, Armed: i.Armed, Gone: i.Gone,
		Regs: a.spec.Regs, Stack: a.spec.Stack, Stay: a.stay, Origin: a.origin, Filter: a.spec.Filter, Access: i.Access.String(), Len: i.Len, Cost: i.Cost, Plan: i.By, Stats: st.stats(a),
	}
	if p.Program = a.wireProgram(); p.Program != nil {
		p.Runs, p.OnHost = api.RunsOnHost, a.onHost
	}
	if sym, ok := st.guest.Image().Find(i.Addr); ok {
		p.Size = sym.Size
	}
	return p
}

// engineStats returns what the engine has counted for a.
func (st *store) engineStats(a *attached) (total probe.Stats, cpus []probe.Stats) {
	if a.watch == nil {
		total, cpus, _ = st.engine.Stats(a.kprobe)
		return total, cpus
	}
	i, _ := st.engine.WatchInfo(a.watch)
	return i.Stats, st.engine.WatchStats(a.watch)
}
