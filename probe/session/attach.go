package session

import (
	"errors"

	"github.com/guestprobe/guestprobe/probe"
)

// SetEnabled enables or disables the probes of these names, or all if no name is
// given: all or none of them. Choose documents the form of names.
func (st *Session) SetEnabled(on bool, names ...string) ([]Info, error) {
	return st.changeProbes(names, func(as []*Probe) error {
		_, err := st.enable(as, on)
		return err
	})
}

// SetFilter replaces the filter of the probes of these names, or of all: all or none
// of them. "" and "0" remove the filter. Counts continue. No hit passes between the
// old and the new filter: the guest is held during the change (Options.Hold), so the
// caller must not pause or resume it.
func (st *Session) SetFilter(filter string, names ...string) ([]Info, error) {
	return st.changeProbes(names, func(as []*Probe) error { return st.refilter(as, filter) })
}

// changeProbes changes the probes of names with f, and describes them afterwards.
func (st *Session) changeProbes(names []string, f func([]*Probe) error) ([]Info, error) {
	as, err := st.lockProbes(names)
	if err != nil {
		return nil, err
	}
	defer st.changes.Unlock()
	if err := f(as); err != nil {
		return nil, probeError(err, as)
	}
	return st.DescribePresent(as), nil
}

// lockProbes returns the probes of names that are still attached, or all, and takes
// the lock for changing them.
func (st *Session) lockProbes(names []string) ([]*Probe, error) {
	if err := st.lockChanges(); err != nil {
		return nil, err
	}
	as, err := st.Choose(names...)
	if err != nil {
		st.changes.Unlock()
		return nil, err
	}
	return as, nil
}

// Detach detaches the probes of these names, or all if no name is given, and returns
// their final state. Choose documents the form of names. If the error is about code
// that could not be restored, the probes are detached nevertheless.
func (st *Session) Detach(names ...string) ([]Info, error) {
	as, err := st.lockProbes(names)
	if err != nil {
		return nil, err
	}
	defer st.changes.Unlock()
	return st.remove(as)
}

// DetachIf detaches the probes for which drop returns true, like Detach. drop must
// not call methods of the Session.
func (st *Session) DetachIf(drop func(*Probe) bool) ([]Info, error) {
	st.changes.Lock()
	defer st.changes.Unlock()
	return st.remove(st.selectProbes(drop))
}

// EndOwner detaches the owner's probes without Spec.Stay, like Detach.
func (st *Session) EndOwner(o *Owner) ([]Info, error) {
	return st.DetachIf(func(a *Probe) bool { return a.owner == o && !a.stay })
}

// remove removes probes and returns their final state. A probe whose text could not
// be restored is removed nevertheless: the engine has logged it, and the error says
// so. Callers hold changes.
func (st *Session) remove(as []*Probe) ([]Info, error) {
	if len(as) == 0 {
		return nil, nil
	}
	out := st.DescribePresent(as)
	err := st.unregister(as)
	if errors.Is(err, probe.ErrInHandler) {
		return nil, err
	}
	for i, a := range as {
		a.mu.Lock()
		a.gone, a.last = true, &out[i] // nothing uses the other fields after this
		a.mu.Unlock()
	}
	st.dropPrograms(as)
	for _, a := range as {
		st.events.part(a)
		st.settleReturns(a)
		a.source.Close()
	}
	for i, a := range as {
		p := out[i]
		st.finalize(a, &p)
		a.mu.Lock()
		out[i] = p
		a.mu.Unlock()
		if a.owner != nil {
			a.owner.part(p)
		}
	}
	st.Sync()
	st.index.remove(as)
	return out, err
}

// selectProbes returns the probes for which want returns true, by number.
func (st *Session) selectProbes(want func(*Probe) bool) []*Probe {
	var as []*Probe
	for _, a := range st.snapshot() {
		if want(a) {
			as = append(as, a)
		}
	}
	return as
}

// Probes returns all probes, by number. The slice must not be changed.
func (st *Session) Probes() []*Probe { return st.snapshot() }

// Has reports whether the probe is attached.
func (st *Session) Has(p *Probe) bool { return st.index.has(p) }

// Changed returns a channel that is closed when probes have been detached, or Notify
// was called.
func (st *Session) Changed() <-chan struct{} { return st.index.changed() }

// Notify closes the channel of Changed.
func (st *Session) Notify() { st.index.tell() }
