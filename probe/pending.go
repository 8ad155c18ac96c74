package probe

import (
	"errors"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// A probe on MODULE:SYMBOL belongs to that module, as a kprobe event of the kernel's
// does (kernel/trace/trace_kprobe.c, register_trace_kprobe and
// trace_kprobe_module_callback): it waits until the module is loaded, is attached
// each time the module is loaded, and is gone when it is unloaded. While it waits it
// is on a site of its own that is in no table, like every probe whose code is gone. A
// probe that names its symbol alone does not come back.

// ofModule reports whether w names a module. A name that begins with a slash is in a
// file.
func (w where) ofModule() bool {
	return strings.Contains(w.symbol, ":") && !strings.HasPrefix(w.symbol, "/")
}

// absent reports whether w is in a module that is not loaded.
func (k *core) absent(w where) bool {
	if !w.ofModule() {
		return false
	}
	_, err := k.target.Symbols().Lookup(w.symbol)
	return errors.Is(err, guest.ErrModuleNotFound)
}

// pending reports whether r waits for its module.
func (k *core) pending(r *registration) bool {
	return r.is(returning) && k.absent(r.where)
}

// moved reports whether the module of st was unloaded and loaded again at another
// address before the engine noticed the unload: then st no longer matches its place.
func (g *registry) moved(st *site) bool {
	if now, _ := st.patchedText(); st.armed.Load() && g.holds(st, now) {
		return false
	}
	for _, r := range *st.chain.Load() {
		if r.where.ofModule() {
			at, err := g.places.resolve(r.where)
			return err == nil && at.addr != st.addr
		}
	}
	return false
}

// newGoneSite makes the site of a registration that never had a place.
func (r *registration) newGoneSite() *site {
	st := &site{symbol: r.where.symbol, gone: true}
	st.orig.Store(&original{})
	st.chain.Store(&chain{r})
	st.jump.Store(goneJump)
	return st
}

// readmit puts probes that are gone back where possible: those whose module was
// loaded, and all if the target had no executable memory before and has it now,
// because a reset may have rejected them for that. Probes that still cannot be placed
// stay gone, and so do jprobes, which have other probes with them, and the engine's
// own. Callers hold mu.
func (g *registry) readmit(was [2]Capabilities) error {
	var regs []*registration
	for _, r := range g.orderedRegistrations() {
		l := guest.Level(r.site.user)
		if g.gone[r] && r.is(returning) && (r.where.ofModule() && !g.pending(r) || was[l].NoExec != "" && g.can[l].NoExec == "") {
			regs = append(regs, r)
		}
	}
	return g.reattach(regs)
}

// reattach is readmit for the probes that may return. Callers hold mu.
func (g *registry) reattach(regs []*registration) error {
	b := newBatch(len(regs))
	for _, r := range regs {
		if err := g.admit(b, r); err != nil {
			if r.where.ofModule() && r.first(loggedStays) {
				g.log.Warn("probe is not put on its module", "probe", r.name, "symbol", r.where.symbol, "err", err)
			}
		} else if err := g.prepareReturn(b, r); err != nil {
			b.end()
			return err
		}
	}
	if len(b.regs) == 0 {
		return nil
	}
	err := g.install(b)
	if err != nil {
		b.end()
		if len(b.regs) == 1 {
			return err
		}
		var errs []error // one of them cannot be armed: the others can
		for _, r := range b.regs {
			errs = append(errs, g.reattach([]*registration{r}))
		}
		return errors.Join(errs...)
	}
	for _, r := range b.regs {
		g.log.Info("probe is back", "probe", r.name, "addr", r.site.addr, "symbol", r.site.symbol)
		if t := r.kind.table(); t != nil && t.reaped() {
			g.returns.startReaper()
		}
	}
	return nil
}
