package probe

import "errors"

// Enable lets the handlers of ps run, and arms their sites unless everything is
// disarmed. It enables all or none: the error is an *Error whose Index identifies the
// probe that is not registered, gone, or cannot be armed. A probe that is already
// enabled stays so.
func (e *Engine) Enable(ps ...*Kprobe) error { return e.switchProbes(ps, false) }

// Disable stops the handlers of ps; a site loses its int3 when its last probe is
// disabled. When it returns, no handler of theirs runs. A probe that is already
// disabled (or gone) stays so. Errors are as for Enable.
func (e *Engine) Disable(ps ...*Kprobe) error { return e.switchProbes(ps, true) }

func (g *registry) switchProbes(ps []*Kprobe, disabled bool) error {
	if err := g.lock(); err != nil {
		return err
	}
	defer g.mu.Unlock()
	regs := make([]*registration, len(ps))
	for i, p := range ps {
		if regs[i] = g.registrationOf(p); regs[i] == nil {
			err := newError(CodeNotRegistered, "the probe is not registered", "")
			err.Index = i
			return err
		}
	}
	return g.setDisabled(regs, disabled)
}

// setDisabled disables or enables all of list, or none; the index of an error is in
// list. Callers hold mu.
func (g *registry) setDisabled(list []*registration, disabled bool) error {
	var regs []*registration
	index := map[*site]int{}
	for i, r := range list {
		switch {
		case r.site.gone && !disabled && !g.pending(r):
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
	var lost []error
	at := func(bad *site, err *Error) *Error {
		err.Index = index[bad]
		return err
	}
	if disabled {
		done := 0
		err := inStops(regs, func(part []*registration) error {
			err := g.stop(func(w World) error { return g.switchNow(w, part, true, at, &lost) })
			if err == nil {
				done += len(part)
			}
			return err
		})
		if err != nil && done > 0 {
			err = errors.Join(err, g.setDisabled(regs[:done], false))
		}
		if err != nil {
			return err
		}
		return errors.Join(lost...)
	}
	ahead, bad, err := g.armAhead(sitesOf(regs))
	if err != nil {
		var own *Error
		if errors.As(err, &own) && bad != nil {
			return at(bad, own)
		}
		return err
	}
	if err := g.stop(func(w World) error { return g.switchNow(w, regs, false, at, &lost) }); err != nil {
		g.disarmAhead(ahead)
		return err
	}
	return errors.Join(lost...)
}

// switchNow disables or enables regs, all or none. The world is stopped. at makes an error about a site
// one about a probe of the request.
func (g *registry) switchNow(w World, regs []*registration, disabled bool, at func(*site, *Error) *Error, lost *[]error) error {
	set := func(disabled bool) {
		for _, r := range regs {
			r.disabled = disabled
			if r.probe != nil {
				r.probe.Disabled = disabled
			}
			r.enabled.Store(!disabled && !r.site.gone)
		}
	}
	set(disabled)
	bad, err := g.text.updateArming(w, sitesOf(regs), lost)
	if err == nil {
		return nil
	}
	set(!disabled)
	return at(bad, err)
}

// Armed reports whether probes are armed at all: false after DisarmAll.
func (e *Engine) Armed() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	return !e.disarmed
}

// OptimizerStats may be called from any goroutine.
func (e *Engine) OptimizerStats() OptimizerStats {
	e.view.RLock()
	defer e.view.RUnlock()
	s := e.opt.stats
	s.Waiting = len(e.opt.waiting)
	return s
}

// Optimization reports whether sites are optimized at all: the last value of
// SetOptimization, true at first. Any goroutine.
func (e *Engine) Optimization() bool {
	e.view.RLock()
	defer e.view.RUnlock()
	return !e.opt.off
}

// SetOptimization is the kernel's sysctl debug.kprobes-optimization. When it returns
// after switching off, no site has a jump that could be an int3; after switching on,
// all that may be optimized wait for the next pass. Errors are ErrInHandler,
// ErrClosed and any error of the target.
func (e *Engine) SetOptimization(on bool) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if e.opt.off == !on {
		return nil
	}
	var lost []error
	sites := e.sortedSites()
	for first := true; first || len(sites) > 0; first = false {
		part := sites[:min(len(sites), stopSites)]
		sites = sites[len(part):]
		err := e.stop(func(w World) error {
			e.opt.off = !on
			for _, st := range part {
				e.opt.review(w, st, &lost)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return errors.Join(lost...)
}

// Optimize runs the optimizer now, instead of after the delay, and returns when no
// site waits: each is optimized or has a reason why not (Info.Unoptimized). Errors
// are ErrInHandler, ErrClosed and any error of the target.
func (e *Engine) Optimize() error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	return e.opt.pass()
}
