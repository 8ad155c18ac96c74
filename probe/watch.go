package probe

import (
	"errors"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// Watch is a watchpoint: a probe on accesses to guest memory. Fill in what to
// watch and the handler, then Engine.Watch it; after that its fields belong to
// the engine until Unwatch has returned.
//
// It is served by one of the four debug registers, on all vCPUs: no exit but
// for the accesses themselves. While one is in use, breakpoints that the guest
// sets in its own debug registers do not fire; a guest that has set some
// already is left alone, and the watch refused. A debug register watches a
// virtual address, in every address space.
//
// With Emulate, and only then, it is served by protecting the 4 KiB page: each
// write to it (with AccessRead, each access) costs an exit, other variables' on
// the page too, KVM emulates the instruction, and vCPUs take turns meanwhile,
// so that atomic instructions stay atomic. It watches physical memory: whatever
// the address through which it is reached. An AccessExec watch is then a
// breakpoint.
//
// Accesses that the engine makes in the guest's place (a probed push, a handler's
// write) are not seen. A page that the processor or the hypervisor accesses by itself
// (descriptor tables, stacks of exceptions, page tables) cannot be protected: the
// watch is refused (CodeImplicit), and one whose page becomes such is disabled
// (Engine.WatchEnded).
type Watch struct {
	Name string // for listings

	// Symbol with Offset, or Addr, says where. After Engine.Watch Addr is the
	// resolved address.
	Symbol string
	Offset uint64
	Addr   guest.GVA

	// Len is 1, 2, 4 or 8 bytes, and the address a multiple of it; 1 for
	// AccessExec. 0 stands for the symbol's size where that is one of these, and
	// otherwise for 8, or 1 for AccessExec.
	Len    int
	Access Access

	Emulate  bool
	Disabled bool // watch later

	// Handler runs at each access, on the thread of the vCPU that made it, with
	// Context.Watched; for data the access is done. Changes of registers have no
	// effect. nil only counts.
	Handler func(*Context)

	wp, last *watchpoint
}

// Watched is one access to watched memory. The values are those of the watched
// bytes, as a little-endian number.
type Watched struct {
	Watch    *Watch
	Write    bool // with AccessReadWrite on debug registers: the value has changed
	Old, New uint64
	Exact    bool // Context.Addr is the instruction; else where the vCPU was behind it
}

// watchpoint is one Watch from Engine.Watch to Unwatch.
type watchpoint struct {
	*tally
	engine *Engine
	watch  *Watch
	where  where         // as the user gave it
	brk    *registration // of an execute watch that a breakpoint serves, else nil

	addr   guest.GVA
	pa     guest.GPA
	n      int
	symbol string
	off    uint64
	user   bool
	value  atomic.Uint64 // as last seen
	asleep bool          // disabled, without brk; guarded by Engine.view
	ended  atomic.Bool   // WatchEnded has ended it, until it is enabled again
	lost   bool          // the variable is gone, without brk; likewise
}

// watchTable is what the hit path sees.
type watchTable struct {
	dr    [NumDebugRegisters]*watchpoint
	pages []*watchpoint
}

// has reports whether wp is watched.
func (t *watchTable) has(wp *watchpoint) bool {
	return slices.Contains(t.dr[:], wp) || slices.Contains(t.pages, wp)
}

// maxWatches bounds how many watches are served by protecting pages.
const maxWatches = 16

// Watch begins to watch all of ws, or none: the error is then an *Error whose
// Index says which one was refused and why. Other errors: ErrInHandler,
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

// admitWatch checks w, and adds the breakpoint that it needs to b.
func (e *Engine) admitWatch(b *batch, w *Watch, fresh []*watchpoint) (*watchpoint, *Error) {
	if w == nil || (w.Symbol == "") == (w.Addr == 0) {
		return nil, newError(CodeBothOrNeither, "a watch needs either a symbol or an address", "")
	}
	if w.wp != nil || slices.ContainsFunc(fresh, func(p *watchpoint) bool { return p.watch == w }) {
		return nil, newError(CodeRegistered, "the watch is registered already", "")
	}
	wp := &watchpoint{engine: e, watch: w, where: where{w.Symbol, w.Offset, w.Addr}, asleep: w.Disabled}
	if err := e.watches.locate(wp); err != nil {
		return nil, err
	}
	if w.Access != AccessExec || !w.Emulate {
		t := e.newTally(w.Name)
		wp.tally = &t
		return wp, nil
	}
	wp.brk = &registration{tally: e.newTally(w.Name), engine: e, kind: kindWatch, where: wp.where, disabled: w.Disabled, pre: wp.executed}
	wp.tally = &wp.brk.tally
	return wp, e.admit(b, wp.brk)
}

// Unwatch ends the watching of ws. When it returns, no handler of theirs runs
// or will run. One that is not registered is reported by an *Error, after the
// others were processed.
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
func (e *Engine) watching(w *Watch) bool { return w != nil && w.wp != nil && w.wp.engine == e }

// unwatch removes watchpoints. Callers hold mu.
func (e *Engine) unwatch(out []*watchpoint) error {
	if len(out) == 0 {
		return nil
	}
	var regs []*registration
	for _, wp := range out {
		if wp.brk != nil {
			regs = append(regs, wp.brk)
		}
	}
	left := slices.DeleteFunc(slices.Clone(e.watches.list), func(wp *watchpoint) bool { return slices.Contains(out, wp) })
	if err := e.watches.apply(left); err != nil {
		return err
	}
	e.view.Lock()
	for _, wp := range out {
		wp.watch.last, wp.watch.wp = wp, nil
	}
	e.view.Unlock()
	if len(regs) == 0 {
		return nil
	}
	return e.remove(regs)
}

// EnableWatch and DisableWatch switch a registered watch on and off. One that is
// off takes no debug register.
func (e *Engine) EnableWatch(w *Watch) error { return e.switchWatch(w, false) }

// DisableWatch is described at EnableWatch.
func (e *Engine) DisableWatch(w *Watch) error { return e.switchWatch(w, true) }

func (e *Engine) switchWatch(w *Watch, off bool) error {
	if err := e.lock(); err != nil {
		return err
	}
	defer e.mu.Unlock()
	if !e.watching(w) {
		return newError(CodeNotRegistered, "the watch is not registered", "")
	}
	wp := w.wp
	if wp.gone() && !off {
		return newError(CodeGone, "the variable went away", "")
	}
	if wp.brk != nil {
		return e.setDisabled([]*registration{wp.brk}, off)
	}
	was := wp.asleep
	ended := wp.ended.Load()
	set := func(off, ended bool) {
		e.view.Lock()
		wp.asleep = off
		e.view.Unlock()
		wp.ended.Store(ended)
	}
	set(off, false)
	if err := e.watches.apply(e.watches.list); err != nil {
		set(was, ended)
		return err
	}
	return nil
}

// WatchEnded says that the target has stopped protecting the page at pa, because of what now accesses it by itself: its
// watches are disabled, and stay registered. It is called on any thread, with the world stopped, and takes no lock.
func (e *Engine) WatchEnded(pa guest.GPA, why string) {
	old := e.watched.Load()
	left := &watchTable{dr: old.dr}
	defer e.watched.Store(left)
	for _, wp := range old.pages {
		if wp.pa&^pageMask != pa {
			left.pages = append(left.pages, wp)
		} else if !wp.ended.Swap(true) {
			e.log.Warn("a watch is disabled: its page must not be protected any more", "watch", wp.watch.Name, "addr", wp.addr, "why", why, "code", CodeImplicit)
		}
	}
}

// gone reports whether what wp watches is not there any more.
func (wp *watchpoint) gone() bool {
	if wp.brk != nil {
		return wp.brk.site.gone
	}
	return wp.lost
}

// disabled reports whether wp is off by the user's wish.
func (wp *watchpoint) disabled() bool {
	if wp.brk != nil {
		return wp.brk.disabled
	}
	return wp.asleep || wp.ended.Load()
}

// WatchInfo describes one registered watch.
type WatchInfo struct {
	Watch    *Watch
	Name     string
	Addr     guest.GVA
	Len      int
	Access   Access
	Symbol   string // that holds the address; may be empty
	Offset   uint64 // within Symbol
	User     bool   // a variable of user code
	Disabled bool
	Gone     bool
	Armed    bool   // it is being watched
	By       string // "debug_register", "page" or "breakpoint"
	Cost     string // one line for people
	Stats    Stats
}

// String returns a line in the form of Info.String, with the letter w.
func (i WatchInfo) String() string {
	return Info{Type: 'w', Addr: i.Addr, Symbol: i.Symbol, Offset: i.Offset, Gone: i.Gone, Disabled: i.Disabled}.String()
}

// Watches returns all registered watches, in the order in which they came.
func (e *Engine) Watches() []WatchInfo {
	e.view.RLock()
	defer e.view.RUnlock()
	out := make([]WatchInfo, 0, len(e.watches.list))
	for _, wp := range e.watches.list {
		out = append(out, wp.info())
	}
	return out
}

// latestWatchpoint returns the watchpoint of w that is registered with e, or was.
func (e *Engine) latestWatchpoint(w *Watch) *watchpoint {
	wp := w.wp
	if wp == nil {
		wp = w.last
	}
	if wp == nil || wp.engine != e {
		return nil
	}
	return wp
}

// WatchInfo describes w, which is, or ok is false, registered or was.
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

// Costs of the ways to watch.
const (
	costRegister   = "one exit per access, none otherwise; the guest's own debug register breakpoints do not fire meanwhile"
	costBreakpoint = "one exit per execution, as of a probe"
	costWrites     = "one exit per write to the whole 4 KiB page; vCPUs take turns meanwhile"
	costAccesses   = "one exit per read and per write of the whole 4 KiB page; vCPUs take turns meanwhile"
)

func (wp *watchpoint) info() WatchInfo {
	w := wp.watch
	i := WatchInfo{
		Watch: w, Name: w.Name, Addr: wp.addr, Len: wp.n, Access: w.Access, Symbol: wp.symbol, Offset: wp.off,
		User: wp.user, Disabled: wp.disabled(), Gone: wp.gone(), Armed: wp.live(), By: "debug_register", Cost: costRegister,
	}
	switch {
	case wp.brk != nil:
		i.By, i.Cost = "breakpoint", costBreakpoint
	case w.Emulate && w.Access&AccessRead != 0:
		i.By, i.Cost = "page", costAccesses
	case w.Emulate:
		i.By, i.Cost = "page", costWrites
	}
	for j := range wp.cells {
		i.Stats.Add(wp.stats(j))
	}
	return i
}
