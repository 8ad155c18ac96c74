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

// nowhere makes the site of a registration that was nowhere yet.
func (r *registration) nowhere() *site {
	st := &site{symbol: r.where.symbol, gone: true}
	st.orig.Store(&original{})
	st.chain.Store(&chain{r})
	st.jump.Store(goneJump)
	return st
}

// awaitModules puts a probe of the engine's own on the function that the guest calls when a
// module is ready, while there are probes on modules by name: so they are armed before the
// module's first instruction runs. Where it cannot be there, they are when the target sees the
// module. What that will want to know of the kernel's text is found out now, not while a module waits.
func (e *Engine) awaitModules() {
	m, ok := e.target.(Modules)
	if !ok || e.ofModules == 0 {
		return
	}
	if r := e.modules; r != nil && e.gone[r] {
		e.view.Lock()
		delete(e.gone, r)
		e.view.Unlock()
		e.modules = nil
	}
	e.places.functions().ready()
	at := m.ModuleReady()
	if e.modules != nil || at == "" {
		return
	}
	r := &registration{tally: e.newTally("modules"), engine: e, kind: kindModules, where: where{symbol: at}, pre: func(c *Context) int {
		m.ModuleComes(c.CPU)
		return 0
	}}
	b := newBatch(1)
	var err error
	if no := e.admit(b, r); no != nil {
		err = no
	} else {
		err = e.install(b)
	}
	if err != nil {
		e.log.Info("modules are seen a moment after they were loaded", "symbol", at, "err", err)
		return
	}
	e.modules = r
}

// unawaitModules adds the engine's own probe to those that are taken off, if the others
// leave none on a module by name. The world is stopped.
func (e *Engine) unawaitModules(regs []*registration) []*registration {
	for _, r := range regs {
		if r.where.ofModule() {
			e.ofModules--
		}
	}
	if e.ofModules == 0 && e.modules != nil {
		regs = append(regs, e.modules)
		e.modules = nil
	}
	return regs
}

// readmit puts probes back that are gone, where they can be now: those whose module has
// come, and all where was had no executable memory and the target has, because a reset may
// have refused them for that. Those that still cannot be there stay gone, and jprobes,
// which are not alone.
func (e *Engine) readmit(was [2]Capabilities) error {
	var regs []*registration
	for _, r := range e.inOrder() {
		l := guest.Level(r.site.user)
		if e.gone[r] && r.jprobe == nil && (r.where.ofModule() && !e.pending(r) || was[l].NoExec != "" && e.can[l].NoExec == "") {
			regs = append(regs, r)
		}
	}
	return e.putOn(regs)
}

// putOn is readmit for those that may be back.
func (e *Engine) putOn(regs []*registration) error {
	b := newBatch(len(regs))
	for _, r := range regs {
		if err := e.admit(b, r); err != nil {
			if r.where.ofModule() && r.first(loggedStays) {
				e.log.Warn("probe is not put on its module", "probe", r.name, "symbol", r.where.symbol, "err", err)
			}
		} else if err := e.furnish(b, r); err != nil {
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
			errs = append(errs, e.putOn([]*registration{r}))
		}
		return errors.Join(errs...)
	}
	for _, r := range b.regs {
		e.log.Info("probe is back", "probe", r.name, "addr", r.site.addr, "symbol", r.site.symbol)
		if t := r.table(); t != nil && t.shared() {
			e.returns.watch()
		}
	}
	return nil
}
