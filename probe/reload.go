package probe

import "errors"

// Reload resets the guest, and puts every probe back: one by symbol where that symbol
// is now, one by address where the same instruction is still there. The others are
// gone: they are listed as gone, cannot be enabled, and come back if a later reset
// restores their code. Counts continue.
//
// The caller performs the reset: when it calls save, no vCPU may run any more. save
// reads the counts from the guest's memory. After the reset the memory holds the
// guest's image (perhaps another one than before), memory from AllocExec is
// forgotten, and no vCPU has run yet. If there is no guest any more, reset returns
// false. Until then no other code changes probes or the guest's text.
//
// Errors are ErrInHandler, ErrClosed, and any error of reset or of the target.
func (e *Engine) Reload(reset func(save func()) (bool, error)) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	there, err := reset(e.returns.save)
	if there {
		err = errors.Join(err, e.reloadReset())
	}
	return err
}

// reloadReset is the part of Reload after the guest was reset. Callers hold mu.
func (g *registry) reloadReset() error {
	regs := g.listRegistrations()
	g.forget()
	b := newBatch(len(regs))
	b.newSite = true
	lost := map[*registration]*Error{}
	tables := map[*registration]*instances{}
	for _, r := range regs {
		err := g.admit(b, r)
		if err == nil {
			tables[r], err = r.kind.prepare(&g.returns, b.at[r])
		}
		if err != nil {
			lost[r] = err
		}
	}
	err := g.stop(func(w World) error {
		for i := range g.cpus {
			g.cpus[i].step, g.cpus[i].under = step{}, step{}
			g.cpus[i].entered = g.cpus[i].entered[:0]
		}
		g.forgetMirrors()
		g.sites.Clear()
		g.phys.Clear()
		for _, r := range regs {
			r.kind.follow(tables[r])
			if lost[r] == nil {
				g.putBack(r, b.at[r])
			}
		}
		g.rearm(w, lost)
		return nil
	})
	for r, why := range lost {
		if g.pending(r) || r.is(subordinate) {
			continue
		}
		g.log.Warn("probe is gone after the guest was reset", "probe", r.name, "addr", r.site.addr, "symbol", r.site.symbol, "err", why)
	}
	g.collector.flush()
	g.awaitMilestones() // probes that are gone since then are not among regs
	return errors.Join(err, g.watches.restore())
}

// listRegistrations returns all registrations, the newest first at each site, as the
// chains are; sites by address, so that the layout of the engine's memory does not
// depend on chance. The probes that are gone come last.
func (g *registry) listRegistrations() []*registration {
	var regs []*registration
	for _, st := range g.sortedSites() {
		regs = append(regs, *st.chain.Load()...)
	}
	for r := range g.gone {
		regs = append(regs, r)
	}
	return regs
}

// forget discards everything that depends on the guest's memory, its image and the
// host's capabilities for it.
func (g *registry) forget() {
	g.view.Lock()
	defer g.view.Unlock()
	g.can = [2]Capabilities{g.target.Capabilities(false), g.target.Capabilities(true)}
	g.readProfile()
	for i := range g.moves {
		g.moves[i].Store(false)
	}
	g.collector.forget()
	g.places.forget()
	g.opt.forget()
	for i := range g.cpus {
		g.cpus[i].stopping, g.cpus[i].held = false, held{}
	}
	g.shown.Clear()
	for _, st := range g.sites.All() {
		st.armed.Store(false)
		st.jump.Store(noJump)
	}
}

// putBack makes st, which is new, the site of r. The world is stopped.
func (g *registry) putBack(r *registration, st *site) {
	c := append(*st.chain.Load(), r)
	st.chain.Store(&c)
	g.addSite(st)
	delete(g.gone, r)
	r.site = st
	if r.probe != nil {
		r.probe.Addr = r.reportedAddr()
	}
	r.tellPlaced()
	r.enabled.Store(!r.disabled)
}

// rearm arms all sites that should be armed, and marks those that cannot be as gone.
// The world is stopped.
func (g *registry) rearm(w World, lost map[*registration]*Error) {
	for _, st := range g.sortedSites() {
		if !g.wanted(st) {
			continue
		}
		if err := g.text.arm(w, st); err != nil {
			for _, r := range *st.chain.Load() {
				lost[r] = err
			}
			g.dropSite(st)
		}
	}
	for r := range lost {
		g.moveToGoneSite(r)
	}
	var none []error
	for _, st := range g.sites.All() {
		g.opt.review(w, st, &none) // changes no text: nothing is optimized yet
	}
}

// moveToGoneSite puts r on a site of its own that is in no table.
func (g *registry) moveToGoneSite(r *registration) {
	old := r.site
	st := &site{addr: old.addr, user: old.user, symbol: old.symbol, start: old.start, head: old.head, gone: true}
	st.orig.Store(old.orig.Load())
	st.chain.Store(&chain{r})
	st.jump.Store(goneJump)
	r.site = st
	r.enabled.Store(false)
	g.gone[r] = true
}
