package session

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/probe"
)

// register registers probes, all or none, and makes the guest's kernel switch on
// their tracepoints. The index of an error is an index in as.
func (at *attacher) register(as []*Probe) error {
	err := batchOf(sortBySource(as), isAny).register(at.engine)
	if err == nil {
		if err = at.switchOn(as); err != nil {
			return errors.Join(err, at.unregister(as))
		}
	}
	var x *probe.Error
	if errors.As(err, &x) && x.Index < len(as) {
		y := *x
		y.Index = slices.Index(as, sortBySource(as)[x.Index])
		return &y
	}
	return err
}

// sortBySource returns the order for registering probes. The clauses of a script run
// in the order of its source if several are at one place: the newest probe of an
// instruction runs first, so these are registered in reverse; return probes of one
// function, and watches in debug registers, run in the order of registration.
func sortBySource(as []*Probe) []*Probe {
	if !slices.ContainsFunc(as, func(a *Probe) bool { return a.object != nil && a.object.script != nil }) {
		return as
	}
	var out, last []*Probe
	for _, a := range as {
		if a.on.newestFirst() {
			last = append(last, a)
		} else {
			out = append(out, a)
		}
	}
	slices.Reverse(last)
	return append(out, last...)
}

// unregister unregisters probes.
func (at *attacher) unregister(as []*Probe) error {
	err := batchOf(as, isAny).unregister(at.engine)
	if errors.Is(err, probe.ErrInHandler) {
		return err
	}
	return errors.Join(err, at.switchOff(as))
}

// switchOn has the guest do what enabled probes need of it: switch tracepoints on, and count in semaphores. On an error nothing is done.
func (at *attacher) switchOn(as []*Probe) error {
	err := at.semaphores.change(as, true)
	if err != nil {
		return err
	}
	if err = at.tracepoints.change(as, true); err != nil {
		err = errors.Join(err, at.semaphores.change(as, false))
	}
	return err
}

// switchOff undoes switchOn for probes that are disabled or go.
func (at *attacher) switchOff(as []*Probe) error {
	return errors.Join(at.semaphores.change(as, false), at.tracepoints.change(as, false))
}

// enable enables or disables probes, all or none, and returns those that have
// changed. The index of an error is an index in as.
func (at *attacher) enable(as []*Probe, on bool) (switched []*Probe, err error) {
	b := batchOf(as, func(a *Probe) bool { return a.on.disabled(at.engine) == on })
	set, undo, setWatch := at.engine.Disable, at.engine.Enable, at.engine.DisableWatch
	if on {
		set, undo, setWatch = undo, set, at.engine.EnableWatch
	}
	if err := set(b.kprobes...); err != nil {
		return nil, reindexError(err, b.order)
	}
	for _, i := range b.order {
		switched = append(switched, as[i])
	}
	change := at.switchOff
	if on {
		change = at.switchOn
	}
	if err := change(switched); err != nil {
		return nil, errors.Join(err, undo(b.kprobes...))
	}
	for k, w := range b.watches {
		i := b.watchOrder[k]
		if err := setWatch(w); err != nil {
			_, undo := at.enable(switched, !on)
			return nil, errors.Join(reindexError(err, []int{i}), undo)
		}
		switched = append(switched, as[i])
	}
	return switched, nil
}
