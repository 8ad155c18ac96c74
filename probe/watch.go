package probe

import (
	"fmt"
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
// write) are not seen.
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
	watch  *Watch
	addr   guest.GVA
	pa     guest.GPA
	n      int
	symbol string
	off    uint64
	user   bool
	named  bool          // by symbol
	dr     int           // debug register, or -1
	brk    *Kprobe       // of an execute watch that a breakpoint serves
	reg    *registration // for counts and trouble; on no site's chain
	value  atomic.Uint64 // as last seen
	asleep bool          // disabled; guarded by Engine.view
	gone   bool
}

// watchTable is what the hit path sees.
type watchTable struct {
	dr    [NumDebugRegisters]*watchpoint
	pages []*watchpoint
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
	list := slices.Clone(e.watches)
	var fresh []*watchpoint
	for i, w := range ws {
		wp, err := e.admitWatch(w, fresh)
		if err != nil {
			err.Index = i
			return err
		}
		fresh = append(fresh, wp)
	}
	if err := e.applyWatches(append(list, fresh...)); err != nil {
		return err
	}
	e.view.Lock()
	defer e.view.Unlock()
	for _, wp := range fresh {
		wp.watch.wp, wp.watch.Addr, wp.watch.Len = wp, wp.addr, wp.n
	}
	return nil
}

// admitWatch checks w.
func (e *Engine) admitWatch(w *Watch, batch []*watchpoint) (*watchpoint, *Error) {
	if w == nil || (w.Symbol == "") == (w.Addr == 0) {
		return nil, newError(CodeBothOrNeither, "a watch needs either a symbol or an address", "")
	}
	if w.wp != nil || slices.ContainsFunc(batch, func(p *watchpoint) bool { return p.watch == w }) {
		return nil, newError(CodeRegistered, "the watch is registered already", "")
	}
	wp := &watchpoint{watch: w, named: w.Symbol != "", dr: -1, asleep: w.Disabled}
	wp.reg = &registration{engine: e, probe: &Kprobe{Name: w.Name}, cells: make([]cell, len(e.cpus))}
	if err := e.placeWatch(wp); err != nil {
		return nil, err
	}
	return wp, nil
}

// placeWatch finds out where wp is, and whether it can be watched there.
func (e *Engine) placeWatch(wp *watchpoint) *Error {
	w := wp.watch
	addr := w.Addr
	var sym guest.Symbol
	if wp.named {
		var err *Error
		if sym, err = e.variable(w.Symbol); err != nil {
			return err
		}
		addr = sym.Addr
	}
	addr += guest.GVA(w.Offset)
	n := w.Len
	switch {
	case n != 0:
	case w.Access == AccessExec:
		n = 1
	case wp.named && w.Offset == 0 && (sym.Size == 1 || sym.Size == 2 || sym.Size == 4):
		n = int(sym.Size)
	default:
		n = 8
	}
	if err := checkWatch(addr, n, w.Access); err != nil {
		return err
	}
	if s, ok := e.target.Symbols().Find(addr); ok && !wp.named {
		sym = s
	}
	if wp.named && sym.Size != 0 && w.Offset >= sym.Size {
		return newError(CodeOffsetOutside, fmt.Sprintf("offset %#x is outside %s", w.Offset, w.Symbol), fmt.Sprintf("it has %#x bytes", sym.Size))
	}
	wp.addr, wp.n, wp.symbol, wp.user = addr, n, sym.Name, sym.User
	if sym.Name != "" {
		wp.off = uint64(addr - sym.Addr)
	}
	if w.Access == AccessRead && !w.Emulate {
		return newError(CodeWatchAccess, "the debug registers have no watch for reads alone", "rw, or emulate")
	}
	why := "this target cannot watch memory"
	if e.watcher != nil {
		why = e.watcher.CannotWatch(w.Access, wp.user, w.Emulate)
	}
	if w.Access == AccessExec && w.Emulate {
		why = e.can[guest.Level(wp.user)].NoBreakpoint
	}
	if why != "" {
		x := newError(CodeHostCannot, fmt.Sprintf("this host cannot watch for %v", w.Access), why)
		if w.Emulate {
			x.Text += " in this way"
		}
		return x
	}
	var now [8]byte
	if err := e.target.ReadMemory(0, addr, now[:n]); err != nil {
		x := newError(CodeUnreadable, "the address is not mapped", fmt.Sprintf("at %v", addr))
		x.Cause = err
		return x
	}
	if w.Emulate && w.Access != AccessExec {
		if e.oneSpace {
			return newError(CodeHostCannot, "this target cannot protect pages", "")
		}
		wp.pa, _ = e.pages.Translate(0, addr)
	}
	wp.value.Store(le.Uint64(now[:]))
	wp.reg.site = &site{addr: addr, user: wp.user, symbol: sym.Name, start: sym.Addr}
	return nil
}

// variable finds a symbol.
func (e *Engine) variable(name string) (guest.Symbol, *Error) {
	p := &Kprobe{Symbol: name}
	sym, err := e.target.Symbols().Lookup(name)
	if err != nil {
		_, x := e.resolve(p)
		return sym, x
	}
	return sym, nil
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
		case w != nil && w.wp != nil && w.wp.reg.engine == e:
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

// unwatch removes watchpoints. Callers hold mu.
func (e *Engine) unwatch(out []*watchpoint) error {
	if len(out) == 0 {
		return nil
	}
	out = slices.Clone(out)
	left := slices.DeleteFunc(slices.Clone(e.watches), func(wp *watchpoint) bool { return slices.Contains(out, wp) })
	if err := e.applyWatches(left); err != nil {
		return err
	}
	e.view.Lock()
	defer e.view.Unlock()
	for _, wp := range out {
		wp.watch.last, wp.watch.wp = wp, nil
	}
	return nil
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
	if w == nil || w.wp == nil || w.wp.reg.engine != e {
		return newError(CodeNotRegistered, "the watch is not registered", "")
	}
	if w.wp.gone && !off {
		return newError(CodeGone, "the variable went away", "")
	}
	was := w.wp.asleep
	set := func(v bool) {
		e.view.Lock()
		w.wp.asleep = v
		e.view.Unlock()
	}
	set(off)
	if err := e.applyWatches(e.watches); err != nil {
		set(was)
		return err
	}
	return nil
}
