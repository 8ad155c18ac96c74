package probe

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// Watch begins to watch all of ws, or none: on failure the error is an *Error whose
// Index identifies the rejected one, with the reason. Other errors: ErrInHandler,
// ErrClosed.
func (e *Engine) Watch(ws ...*Watch) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if len(ws) == 0 {
		return newError(CodeEmptyBatch, "nothing to watch", "")
	}
	var fresh []*watchpoint
	b := newBatch(len(ws))
	for i, w := range ws {
		wp, err := e.admitWatch(b, w, fresh)
		if err != nil {
			err.Index = i
			return err
		}
		fresh = append(fresh, wp)
	}
	if len(b.regs) != 0 {
		if err := e.install(b); err != nil {
			return err
		}
		e.awaited.count(b.regs, 1)
		e.awaitMilestones()
	}
	if err := e.watches.apply(append(slices.Clone(e.watches.list), fresh...)); err != nil {
		return errors.Join(err, e.remove(b.regs))
	}
	e.view.Lock()
	defer e.view.Unlock()
	for _, wp := range fresh {
		wp.watch.wp, wp.watch.Addr, wp.watch.Len = wp, wp.addr, wp.n
	}
	return nil
}

// CheckWatch does everything Watch would do for w, except watching: it returns nil,
// or the rejection.
func (e *Engine) CheckWatch(w *Watch) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	wp, err := e.admitWatch(newBatch(1), w, nil)
	if err != nil {
		return err
	}
	return e.watches.check(append(slices.Clone(e.watches.list), wp))
}

// admitWatch checks w, and adds the breakpoint that it needs to b.
func (g *registry) admitWatch(b *batch, w *Watch, fresh []*watchpoint) (*watchpoint, *Error) {
	if w == nil || (w.Symbol == "") == (w.Addr == 0) {
		return nil, newError(CodeBothOrNeither, "a watch needs either a symbol or an address", "")
	}
	if w.wp != nil || slices.ContainsFunc(fresh, func(p *watchpoint) bool { return p.watch == w }) {
		return nil, newError(CodeRegistered, "the watch is registered already", "")
	}
	wp := &watchpoint{owner: g, watch: w, where: where{w.Symbol, w.Offset, w.Addr}, asleep: w.Disabled}
	if err := g.watches.locate(wp); err != nil {
		return nil, err
	}
	t := g.newTally(w.Name)
	wp.tally = &t
	switch {
	case !w.Emulate:
		wp.by = byRegister{}
	case w.Access != AccessExec:
		wp.by = byPage{}
	default:
		r := &registration{tally: g.newTally(w.Name), owner: g, kind: executeWatch{}, where: wp.where, disabled: w.Disabled, pre: wp.handleExecute}
		wp.tally, wp.by = &r.tally, byProbe{r}
		return wp, g.admit(b, r)
	}
	return wp, nil
}

// Unwatch ends the watching of ws. When it returns, no handler of theirs runs or will
// run. If one is not registered the error is an *Error for it, and the others are
// still processed.
func (e *Engine) Unwatch(ws ...*Watch) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	var out []*watchpoint
	var unknown *Error
	for i, w := range ws {
		switch {
		case e.watching(w):
			if !slices.Contains(out, w.wp) {
				out = append(out, w.wp)
			}
		case unknown == nil:
			unknown = newError(CodeNotRegistered, "the watch is not registered", "")
			unknown.Index = i
		}
	}
	if err := e.unwatch(out); err != nil {
		return err
	}
	if unknown != nil {
		return unknown
	}
	return nil
}

// watching reports whether w is registered with this engine.
func (g *registry) watching(w *Watch) bool { return w != nil && w.wp != nil && w.wp.owner == g }

// unwatch removes watchpoints. Callers hold mu.
func (g *registry) unwatch(out []*watchpoint) error {
	if len(out) == 0 {
		return nil
	}
	var regs []*registration
	for _, wp := range out {
		regs = append(regs, wp.by.probes()...)
	}
	left := slices.DeleteFunc(slices.Clone(g.watches.list), func(wp *watchpoint) bool { return slices.Contains(out, wp) })
	if err := g.watches.apply(left); err != nil {
		return err
	}
	g.view.Lock()
	for _, wp := range out {
		wp.watch.last, wp.watch.wp = wp, nil
	}
	g.view.Unlock()
	if len(regs) == 0 {
		return nil
	}
	return g.remove(regs)
}

// EnableWatch and DisableWatch switch a registered watch on and off. A disabled watch
// uses no debug register.
func (e *Engine) EnableWatch(w *Watch) error { return e.switchWatch(w, false) }

// DisableWatch is described at EnableWatch.
func (e *Engine) DisableWatch(w *Watch) error { return e.switchWatch(w, true) }

func (g *registry) switchWatch(w *Watch, off bool) error {
	if err := g.lock(); err != nil {
		return err
	}
	defer g.mu.Unlock()
	if !g.watching(w) {
		return newError(CodeNotRegistered, "the watch is not registered", "")
	}
	wp := w.wp
	if wp.by.gone(wp) && !off {
		return newError(CodeGone, "the variable went away", "")
	}
	return wp.by.enable(g, wp, off)
}

func (b byProbe) enable(g *registry, _ *watchpoint, off bool) error {
	return g.setDisabled(b.probes(), off)
}

func (byRegister) enable(g *registry, wp *watchpoint, off bool) error {
	was := wp.asleep
	ended := wp.ended.Load()
	set := func(off, ended bool) {
		g.view.Lock()
		wp.asleep = off
		g.view.Unlock()
		wp.ended.Store(ended)
	}
	set(off, false)
	if err := g.watches.apply(g.watches.list); err != nil {
		set(was, ended)
		return err
	}
	return nil
}

func (b byProbe) restore(_ *registry, wp *watchpoint) { wp.addr = b.reg.reportedAddr() }

func (byRegister) restore(g *registry, wp *watchpoint) {
	err := g.watches.locate(wp)
	wp.watch.Addr = wp.addr
	wp.lost = err != nil
	if err != nil {
		g.log.Warn("watch is gone after the guest was reset", "watch", wp.watch.Name, "symbol", wp.symbol, "err", err)
	}
}

// WatchEnded says that the target has stopped protecting the page at pa, because
// something now accesses it implicitly: its watches are disabled, and stay
// registered. It is called on any thread, with the world stopped, and takes no lock.
func (e *Engine) WatchEnded(pa guest.GPA, why string) { e.endWatch(pa, why) }

// Watches returns all registered watches, in the order of registration.
func (e *Engine) Watches() []WatchInfo {
	e.view.RLock()
	defer e.view.RUnlock()
	out := make([]WatchInfo, 0, len(e.watches.list))
	for _, wp := range e.watches.list {
		out = append(out, wp.info())
	}
	return out
}

// latestWatchpoint returns the watchpoint of w that is or was registered with e.
func (g *registry) latestWatchpoint(w *Watch) *watchpoint {
	wp := w.wp
	if wp == nil {
		wp = w.last
	}
	if wp == nil || wp.owner != g {
		return nil
	}
	return wp
}

// WatchInfo describes w; ok is false if w was never registered with e.
func (e *Engine) WatchInfo(w *Watch) (_ WatchInfo, ok bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	wp := e.latestWatchpoint(w)
	if wp == nil {
		return WatchInfo{}, false
	}
	return wp.info(), true
}

// WatchStats returns the counts of w by vCPU, after Unwatch the final ones.
func (e *Engine) WatchStats(w *Watch) []Stats {
	e.view.RLock()
	defer e.view.RUnlock()
	wp := e.latestWatchpoint(w)
	if wp == nil {
		return nil
	}
	var out []Stats
	for i := range wp.cells {
		out = append(out, wp.stats(i))
	}
	return out
}
