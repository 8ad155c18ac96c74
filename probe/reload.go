package probe

import "errors"

// Reload resets the guest, and puts every probe back: one by symbol where that
// symbol is now, one by address where the same instruction is still there. The
// others are gone: they are listed as such, cannot be enabled, and come back if a
// later reset brings their code back. Counts go on.
//
// The reset itself is the caller's: no vCPU runs any more when it calls save,
// which takes the counts that stand in the guest's memory. Behind it the memory is
// what the guest's image (perhaps another one than before) says, memory from
// AllocExec is forgotten, and no vCPU has run yet; or there is no guest, which it
// reports by false. Nobody else changes probes, or the guest's text, meanwhile.
//
// Errors are those of reset, ErrInHandler, ErrClosed and those of the target.
func (e *Engine) Reload(reset func(save func()) (bool, error)) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	there, err := reset(e.returns.save)
	if there {
		err = errors.Join(err, e.reloaded())
	}
	return err
}

// reloaded is what Reload does when the guest was reset. Callers hold mu.
func (e *Engine) reloaded() error {
	regs := e.allRegistrations()
	e.forget()
	b := newBatch(len(regs))
	b.anew = true
	lost := map[*registration]*Error{}
	tables := map[*registration]*instances{}
	for _, r := range regs {
		err := e.admit(b, r)
		if err == nil && r.ret != nil {
			tables[r], err = e.returns.prepare(r.ret, b.at[r])
		}
		if err != nil {
			lost[r] = err
		}
	}
	err := e.stop(func(w World) error {
		for i := range e.cpus {
			e.cpus[i].step, e.cpus[i].under = step{}, step{}
			e.cpus[i].entered = e.cpus[i].entered[:0]
		}
		e.forgetMirrors()
		e.sites.Clear()
		e.phys.Clear()
		for _, r := range regs {
			if r.ret != nil {
				r.ret.table.Store(tables[r])
			}
			if lost[r] == nil {
				e.putBack(r, b.at[r])
			}
		}
		e.rearm(w, lost)
		return nil
	})
	for r, why := range lost {
		if e.pending(r) || r.kind == kindMilestone || r.kind == kindLeave {
			continue
		}
		e.log.Warn("probe is gone after the guest was reset", "probe", r.name, "addr", r.site.addr, "symbol", r.site.symbol, "err", why)
	}
	e.collector.flush()
	e.awaitMilestones() // what is gone since is not among regs
	return errors.Join(err, e.watches.restore())
}

// allRegistrations returns all registrations, the newest first at each site, as the chains are;
// sites by address, so that the layout of the engine's memory does not depend on
// chance. Behind them are those that are gone.
func (e *Engine) allRegistrations() []*registration {
	var regs []*registration
	for _, st := range e.sortedSites() {
		regs = append(regs, *st.chain.Load()...)
	}
	for r := range e.gone {
		regs = append(regs, r)
	}
	return regs
}

// forget drops everything that depends on the guest's memory, its image and what
// the host can do for that.
func (e *Engine) forget() {
	e.view.Lock()
	defer e.view.Unlock()
	e.can = [2]Capabilities{e.target.Capabilities(false), e.target.Capabilities(true)}
	e.readProfile()
	for i := range e.moves {
		e.moves[i].Store(false)
	}
	e.collector.forget()
	e.places.forget()
	e.opt.forget()
	for i := range e.cpus {
		e.cpus[i].stopping, e.cpus[i].held = false, held{}
	}
	e.shown.Clear()
	for _, st := range e.sites.All() {
		st.armed.Store(false)
		st.jump.Store(noJump)
	}
}

// putBack makes st, which is fresh, the site of r. The world is stopped.
func (e *Engine) putBack(r *registration, st *site) {
	c := append(*st.chain.Load(), r)
	st.chain.Store(&c)
	e.addSite(st)
	delete(e.gone, r)
	r.site = st
	if r.probe != nil {
		r.probe.Addr = r.reportedAddr()
	}
	r.tellPlaced()
	r.enabled.Store(!r.disabled)
}

// rearm arms all sites that are to be, and buries what cannot be there. The world is
// stopped.
func (e *Engine) rearm(w World, lost map[*registration]*Error) {
	for _, st := range e.sortedSites() {
		if !e.wanted(st) {
			continue
		}
		if err := e.text.arm(w, st); err != nil {
			for _, r := range *st.chain.Load() {
				lost[r] = err
			}
			e.dropSite(st)
		}
	}
	for r := range lost {
		e.moveToGoneSite(r)
	}
	var none []error
	for _, st := range e.sites.All() {
		e.opt.review(w, st, &none) // changes no text: nothing is optimized yet
	}
}

// moveToGoneSite puts r on a site of its own that is in no table.
func (e *Engine) moveToGoneSite(r *registration) {
	old := r.site
	st := &site{addr: old.addr, user: old.user, symbol: old.symbol, start: old.start, head: old.head, gone: true}
	st.orig.Store(old.orig.Load())
	st.chain.Store(&chain{r})
	st.jump.Store(goneJump)
	r.site = st
	r.enabled.Store(false)
	e.gone[r] = true
}
