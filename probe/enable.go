package probe

import "errors"

// Enable lets the handlers of ps run, and arms their sites unless everything is
// disarmed. All or none: the error is an *Error whose Index says which probe is
// not registered, gone, or cannot be armed. A probe that is enabled already
// stays so.
func (e *Engine) Enable(ps ...*Kprobe) error { return e.switchProbes(ps, false) }

// Disable stops the handlers of ps; the int3 goes when the last probe of a
// site is disabled. When it returns, no handler of theirs runs. A probe that
// is disabled (or gone) already stays so. Errors are as for Enable.
func (e *Engine) Disable(ps ...*Kprobe) error { return e.switchProbes(ps, true) }

func (e *Engine) switchProbes(ps []*Kprobe, disabled bool) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	regs := make([]*registration, len(ps))
	for i, p := range ps {
		if regs[i] = e.registered(p); regs[i] == nil {
			err := newError(CodeNotRegistered, "the probe is not registered", "")
			err.Index = i
			return err
		}
	}
	return e.setDisabled(regs, disabled)
}

// setDisabled disables or enables all of list, or none; the index of an error is in
// list. Callers hold mu.
func (e *Engine) setDisabled(list []*registration, disabled bool) error {
	var regs []*registration
	index := map[*site]int{}
	for i, r := range list {
		switch {
		case r.site.gone && !disabled && !e.pending(r):
			err := newError(CodeGone, "the probed code went away", "")
			err.Index = i
			return err
		case r.disabled == disabled:
			continue
		}
		regs = append(regs, r)
		if _, ok := index[r.site]; !ok {
			index[r.site] = i
		}
	}
	if len(regs) == 0 {
		return nil
	}
	set := func(disabled bool) {
		for _, r := range regs {
			r.disabled = disabled
			if r.probe != nil {
				r.probe.Disabled = disabled
			}
			r.enabled.Store(!disabled && !r.site.gone)
		}
	}
	var lost []error
	err := e.stop(func(w World) error {
		set(disabled)
		bad, err := e.text.updateArming(w, sitesOf(regs), &lost)
		if err == nil {
			return nil
		}
		set(!disabled)
		err.Index = index[bad]
		return err
	})
	if err != nil {
		return err
	}
	return errors.Join(lost...)
}

// ArmAll puts back the breakpoints that DisarmAll took away, for the probes
// that are not disabled one by one. All or none.
func (e *Engine) ArmAll() error { return e.setDisarmed(false) }

// DisarmAll takes away every breakpoint. The probes stay registered and keep
// their own enable state; new ones may be registered and are not armed.
func (e *Engine) DisarmAll() error { return e.setDisarmed(true) }

func (e *Engine) setDisarmed(disarmed bool) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.disarmed == disarmed {
		return nil
	}
	sites := make([]*site, 0, e.sites.Len())
	for _, st := range e.sites.All() {
		sites = append(sites, st)
	}
	var lost []error
	err := e.stop(func(w World) error {
		e.disarmed = disarmed
		if _, err := e.text.updateArming(w, sites, &lost); err != nil {
			e.disarmed = !disarmed
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(e.watches.list) != 0 {
		lost = append(lost, e.watches.apply(e.watches.list))
	}
	return errors.Join(lost...)
}

// Armed reports whether probes are armed at all: false after DisarmAll.
func (e *Engine) Armed() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	return !e.disarmed
}
