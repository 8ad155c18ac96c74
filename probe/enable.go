package probe

import "errors"

// Enable lets the handlers of ps run, and arms their sites unless everything is
// disarmed. All or none: the error is an *Error whose Index says which probe is
// not registered, gone, or cannot be armed. A probe that is enabled already
// stays so.
func (e *Engine) Enable(ps ...*Kprobe) error { return e.setDisabled(ps, false) }

// Disable stops the handlers of ps; the int3 goes when the last probe of a
// site is disabled. When it returns, no handler of theirs runs. A probe that
// is disabled (or gone) already stays so. Errors are as for Enable.
func (e *Engine) Disable(ps ...*Kprobe) error { return e.setDisabled(ps, true) }

func (e *Engine) setDisabled(ps []*Kprobe, disabled bool) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	return e.setDisabledLocked(ps, disabled)
}

// setDisabledLocked is setDisabled for callers that hold mu.
func (e *Engine) setDisabledLocked(ps []*Kprobe, disabled bool) error {
	var regs []*registration
	index := map[*site]int{}
	for i, p := range ps {
		r := e.registered(p)
		var err *Error
		switch {
		case r == nil:
			err = newError(CodeNotRegistered, "the probe is not registered", "")
		case r.site.gone && !disabled:
			err = newError(CodeGone, "the probed code went away", "")
		case r.disabled == disabled:
			continue
		default:
			regs = append(regs, r)
			if _, ok := index[r.site]; !ok {
				index[r.site] = i
			}
		}
		if err != nil {
			err.Index = i
			return err
		}
	}
	if len(regs) == 0 {
		return nil
	}
	set := func(disabled bool) {
		for _, r := range regs {
			r.disabled, r.probe.Disabled = disabled, disabled
			r.enabled.Store(!disabled && !r.site.gone)
		}
	}
	var lost []error
	err := e.stop(func(w World) error {
		set(disabled)
		bad, err := e.settle(w, sitesOf(regs), &lost)
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
	sites := make([]*site, 0, len(e.sites))
	for _, st := range e.sites {
		sites = append(sites, st)
	}
	var lost []error
	err := e.stop(func(w World) error {
		e.disarmed = disarmed
		if _, err := e.settle(w, sites, &lost); err != nil {
			e.disarmed = !disarmed
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(e.watches) != 0 {
		lost = append(lost, e.applyWatches(e.watches))
	}
	return errors.Join(lost...)
}

// Armed reports whether probes are armed at all: false after DisarmAll.
func (e *Engine) Armed() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	return !e.disarmed
}
