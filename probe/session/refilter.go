package session

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// former is the counts of a probe before changes of its filter, summed over all
// changes.
type former struct {
	total    probe.Stats
	cpus     []probe.Stats
	events   event.Counts
	rejected uint64
}

// refilter replaces the filter of probes, of all of them or none; "" and, as in the
// kernel, "0" remove it. The probe on the guest is replaced by an equal one with the
// new filter, while the guest is paused: no hit is without a filter, or without a
// probe. Callers hold changes.
func (st *Session) refilter(as []*Probe, filter string) (err error) {
	if filter = strings.TrimSpace(filter); filter == "0" {
		filter = ""
	}
	var changed, fresh []*Probe
	defer func() { st.abandon(fresh) }() // those that are not used
	for _, a := range as {
		if err := a.runs.checkRefilter(a.def); err != nil {
			return err
		}
		switch p := st.DescribePresent([]*Probe{a}); {
		case len(p) == 0 || p[0].Gone || p[0].Site.Changed:
			return &Error{Code: CodeUnavailable, Errno: syscall.ENOENT, Text: a.def.Name() + ": the code that it was on is not there any more"}
		case a.spec.Filter != filter:
			b, err := st.remake(a, filter)
			if err != nil {
				return err
			}
			changed, fresh = append(changed, a), append(fresh, b)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	resume, err := st.hold()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, resume()) }()
	for _, a := range changed {
		a.mu.Lock() // so that it is never seen unregistered
	}
	defer func() {
		for _, a := range changed {
			a.mu.Unlock()
		}
	}()
	if err := st.unregister(changed); errors.Is(err, probe.ErrInHandler) {
		return err
	}
	// Any other error is text that could not be restored, which was logged.
	refused := probeError(st.register(fresh), changed)
	if refused != nil {
		st.abandon(fresh)
		fresh = nil
		for _, a := range changed {
			b, err := st.remake(a, a.spec.Filter)
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

// remake makes the probe on the guest for a again, with this filter and not
// registered yet. Its events are events of a.
func (st *Session) remake(a *Probe, filter string) (*Probe, error) {
	spec := *a.spec
	spec.Def, spec.Filter, spec.Disabled = a.def.String(), filter, a.on.disabled(st.engine)
	b := &Probe{id: a.id, spec: &spec, def: a.def, injector: a.injector, source: st.hub.Source(a.source.Layout, a), runs: &definitionProgram{}}
	st.place(b)
	if err := b.runs.attach(&st.attacher, b); err != nil {
		st.abandon([]*Probe{b})
		return nil, err
	}
	return b, nil
}

// abandon releases probes of remake.
func (st *Session) abandon(bs []*Probe) {
	st.dropPrograms(bs)
	for _, b := range bs {
		b.source.Close()
	}
}

// replace replaces the former probes of as by the registered probes of fresh, and
// keeps their counts.
func (st *Session) replace(as, fresh []*Probe) {
	old := make([]*Probe, len(as))
	for i, a := range as {
		b := fresh[i]
		old[i] = &Probe{id: a.id, spec: a.spec, def: a.def, source: a.source, on: a.on, runs: a.runs, onHost: a.onHost}
		a.spec, a.source, a.on, a.runs, a.onHost = b.spec, b.source, b.on, b.runs, b.onHost
	}
	st.dropPrograms(old)
	for i, a := range as {
		o := old[i]
		st.settleReturns(o)
		total, cpus := o.on.counts(st.engine)
		events := o.source.Counts()
		if a.past == nil {
			a.past = &former{}
		}
		a.past.total.Add(total)
		if a.past.cpus == nil {
			a.past.cpus = make([]probe.Stats, len(cpus))
		}
		for k := range cpus {
			a.past.cpus[k].Add(cpus[k])
		}
		a.past.events.Stored, a.past.events.Lost = a.past.events.Stored+events.Stored, a.past.events.Lost+events.Lost
		a.past.rejected += o.runs.countRejected()
		o.source.Close()
	}
	st.Sync()
}

// hold pauses the guest, and returns the function that resumes it.
func (st *Session) hold() (resume func() error, err error) {
	if st.opt.Hold == nil {
		return nil, &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "filters cannot be changed: the guest cannot be held (Options.Hold)"}
	}
	return st.opt.Hold()
}
