package session

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/probe"
)

// handleWatch makes a the watch of its definition.
func (st *Session) handleWatch(a *Probe, where probe.Kprobe) {
	a.kprobe = &where
	a.watch = &probe.Watch{
		Name: where.Name, Symbol: where.Symbol, Offset: where.Offset, Addr: where.Addr, Disabled: where.Disabled,
		Len: a.def.WatchLen(st.guest.Image()), Access: a.def.Access, Emulate: a.spec.Emulate,
	}
}

// register puts probes on the guest, all or none. The index of a refusal is that in as.
func (st *Session) register(as []*Probe) error {
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
func inSourceOrder(as []*Probe) []*Probe {
	if !slices.ContainsFunc(as, func(a *Probe) bool { return a.object != nil && a.object.script != nil }) {
		return as
	}
	reversed := func(a *Probe) bool {
		if a.watch != nil {
			return a.watch.Access == probe.AccessExec && a.watch.Emulate // it has a breakpoint
		}
		_, returns := a.probe.(*probe.Kretprobe)
		return !returns
	}
	var out, last []*Probe
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
func (st *Session) put(as []*Probe) error {
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
func (st *Session) unregister(as []*Probe) error {
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
func (st *Session) enable(as []*Probe, on bool) (switched []*Probe, err error) {
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

// engineStats returns what the engine has counted for a.
func (st *Session) engineStats(a *Probe) (total probe.Stats, cpus []probe.Stats) {
	if a.watch == nil {
		total, cpus, _ = st.engine.Stats(a.kprobe)
		return total, cpus
	}
	i, _ := st.engine.WatchInfo(a.watch)
	return i.Stats, st.engine.WatchStats(a.watch)
}
