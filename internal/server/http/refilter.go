package http

import (
	"errors"
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// former is what a probe had counted when its filter was changed, summed up over all
// changes.
type former struct {
	total    probe.Stats
	cpus     []probe.Stats
	events   event.Counts
	rejected uint64
}

// refilter gives probes another filter, all or none; "" and, as in the kernel, "0" are
// none. What is on the guest for a probe is replaced by the same with the new filter, in a
// guest that stands still: no hit is without a filter, or without a probe. Callers hold
// changes, and the server's resetMu.
func (st *store) refilter(as []*attached, filter string) (err error) {
	if filter = strings.TrimSpace(filter); filter == "0" {
		filter = ""
	}
	var changed, fresh []*attached
	defer func() { st.abandon(fresh) }() // those that are of no use
	for _, a := range as {
		switch p := st.describe([]*attached{a}); {
		case a.prog != nil:
			return &api.Error{Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: a.def.Name() + " is a program of an object, which has no filter"}
		case len(p) == 0 || p[0].Gone || p[0].Changed:
			return &api.Error{Code: api.CodeUnavailable, Errno: "ENOENT", Message: a.def.Name() + ": the code that it was on is not there any more"}
		case a.spec.Filter != filter:
			b, err := st.again(a, filter)
			if err != nil {
				return err
			}
			changed, fresh = append(changed, a), append(fresh, b)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	resume, err := st.still()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resume()) }()
	for _, a := range changed {
		a.mu.Lock() // what nobody sees: that it is not registered
	}
	defer func() {
		for _, a := range changed {
			a.mu.Unlock()
		}
	}()
	if err := st.unregister(changed); errors.Is(err, probe.ErrInHandler) {
		return err
	}
	// Anything else is text that could not be put back, which is logged.
	refused := ofProbe(st.register(fresh), changed)
	if refused != nil {
		st.abandon(fresh)
		fresh = nil
		for _, a := range changed {
			b, err := st.again(a, a.spec.Filter)
			if err != nil {
				return fmt.Errorf("%w; and the probes are disarmed for good: %w", refused, err)
			}
			fresh = append(fresh, b)
		}
		if err := st.register(fresh); err != nil {
			return fmt.Errorf("%w; and the probes are disarmed for good: %w", refused, err)
		}
	}
	st.replace(changed, fresh)
	fresh = nil
	return refused
}

// again makes what is on the guest for a once more, with this filter and not registered
// yet. Its events are those of a.
func (st *store) again(a *attached, filter string) (*attached, error) {
	b := &attached{id: a.id, spec: a.spec, def: a.def, injector: a.injector, source: st.hub.Source(a.source.Layout, a)}
	b.spec.Filter = filter
	if a.watch != nil {
		info, _ := st.engine.WatchInfo(a.watch)
		b.spec.Disabled = info.Disabled
	} else {
		b.spec.Disabled = a.kprobe.Disabled
	}
	st.place(b)
	if err := st.define(b); err != nil {
		st.abandon([]*attached{b})
		return nil, err
	}
	return b, nil
}

// abandon gives back what again has made.
func (st *store) abandon(bs []*attached) {
	st.dropPrograms(bs)
	for _, b := range bs {
		b.source.Close()
	}
}

// replace puts what is registered in fresh in the place of what was in as, and keeps what
// that has counted.
func (st *store) replace(as, fresh []*attached) {
	old := make([]*attached, len(as))
	for i, a := range as {
		b := fresh[i]
		old[i] = &attached{id: a.id, spec: a.spec, def: a.def, source: a.source, probe: a.probe, kprobe: a.kprobe, watch: a.watch, program: a.program, onHost: a.onHost}
		a.spec, a.source, a.probe, a.kprobe, a.watch, a.program, a.onHost = b.spec, b.source, b.probe, b.kprobe, b.watch, b.program, b.onHost
	}
	st.dropPrograms(old)
	for i, a := range as {
		o := old[i]
		st.settleReturns(o)
		total, cpus := st.engineStats(o)
		events := o.source.Counts()
		a.past.total.Add(total)
		if a.past.cpus == nil {
			a.past.cpus = make([]probe.Stats, len(cpus))
		}
		for k := range cpus {
			a.past.cpus[k].Add(cpus[k])
		}
		a.past.events.Stored, a.past.events.Lost = a.past.events.Stored+events.Stored, a.past.events.Lost+events.Lost
		if o.program != nil {
			a.past.rejected += o.program.Rejected()
		}
		o.source.Close()
	}
	st.sync()
}

// still has the guest stand still, if it runs, and returns what has it go on.
func (st *store) still() (resume func() error, err error) {
	if st.guest.State().Phase != machine.PhaseRunning {
		return func() error { return nil }, nil
	}
	var late *machine.StopTimeoutError
	if err := st.guest.Pause(); errors.As(err, &late) {
		return nil, errors.Join(err, st.guest.Resume())
	}
	return func() error {
		if st.guest.State().Phase != machine.PhasePaused {
			return nil // it has ended
		}
		return st.guest.Resume()
	}, nil
}
