package probe

import (
	"errors"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// A probe on MODULE:SYMBOL belongs to that module, as a kprobe event of the kernel's does
// (kernel/trace/trace_kprobe.c, register_trace_kprobe and trace_kprobe_module_callback): it
// waits while the module is not there, is put on it each time that it comes, and is gone
// with it. Meanwhile it is on a site of its own that is in no table, like every probe
// whose code is gone. One that names its symbol alone does not come back.

// ofModule reports whether w names a module. What begins with a slash is in a file.
func (w where) ofModule() bool {
	return strings.Contains(w.symbol, ":") && !strings.HasPrefix(w.symbol, "/")
}

// absent reports whether w is in a module that is not there.
func (k *core) absent(w where) bool {
	if !w.ofModule() {
		return false
	}
	_, err := k.target.Symbols().Lookup(w.symbol)
	return errors.Is(err, guest.ErrModuleNotFound)
}

// pending reports whether r waits for its module.
func (k *core) pending(r *registration) bool {
	return (r.kind == kindKprobe || r.kind == kindKretprobe) && k.absent(r.where)
}

// moved reports whether the module that st is on has gone and come again with that place
// elsewhere, before it was known that it had gone: then st is not what it says any more.
func (e *Engine) moved(st *site) bool {
	if now, _ := st.patched(); st.armed.Load() && e.holds(st, now) {
		return false
	}
	for _, r := range *st.chain.Load() {
		if r.where.ofModule() {
			at, err := e.places.resolve(r.where)
			return err == nil && at.addr != st.addr
		}
	}
	return false
}

// newGoneSite makes the site of a registration that was nowhere yet.
func (r *registration) newGoneSite() *site {
	st := &site{symbol: r.where.symbol, gone: true}
	st.orig.Store(&original{})
	st.chain.Store(&chain{r})
	st.jump.Store(goneJump)
	return st
}

// readmit puts probes back that are gone, where they can be now: those whose module has
// come, and all where was had no executable memory and the target has, because a reset may
// have refused them for that. Those that still cannot be there stay gone, and jprobes,
// which are not alone. Callers hold mu.
func (e *Engine) readmit(was [2]Capabilities) error {
	var regs []*registration
	for _, r := range e.orderedRegistrations() {
		l := guest.Level(r.site.user)
		if e.gone[r] && r.jprobe == nil && (r.where.ofModule() && !e.pending(r) || was[l].NoExec != "" && e.can[l].NoExec == "") {
			regs = append(regs, r)
		}
	}
	return e.reattach(regs)
}

// reattach is readmit for those that may be back. Callers hold mu.
func (e *Engine) reattach(regs []*registration) error {
	b := newBatch(len(regs))
	for _, r := range regs {
		if err := e.admit(b, r); err != nil {
			if r.where.ofModule() && r.first(loggedStays) {
				e.log.Warn("probe is not put on its module", "probe", r.name, "symbol", r.where.symbol, "err", err)
			}
		} else if err := e.prepareReturn(b, r); err != nil {
			b.end()
			return err
		}
	}
	if len(b.regs) == 0 {
		return nil
	}
	err := e.install(b)
	if err != nil {
		b.end()
		if len(b.regs) == 1 {
			return err
		}
		var errs []error // one of them cannot be armed: the others can
		for _, r := range b.regs {
			errs = append(errs, e.reattach([]*registration{r}))
		}
		return errors.Join(errs...)
	}
	for _, r := range b.regs {
		e.log.Info("probe is back", "probe", r.name, "addr", r.site.addr, "symbol", r.site.symbol)
		if t := r.table(); t != nil && t.reaped() {
			e.returns.startReaper()
		}
	}
	return nil
}
