package probe

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// pageMask selects the offset in a 4 KiB page.
const pageMask = 4096 - 1

// live reports whether wp is to be watched.
func (wp *watchpoint) live() bool { return !wp.asleep && !wp.gone && !wp.reg.engine.disarmed }

// breaks reports whether wp is served by a breakpoint.
func (wp *watchpoint) breaks() bool { return wp.watch.Access == AccessExec && wp.watch.Emulate }

// applyWatches makes list the registered watchpoints, or fails and leaves all as
// it was. Callers hold mu.
func (e *Engine) applyWatches(list []*watchpoint) error {
	dr, table, pages, err := assign(list)
	if err != nil {
		return err
	}
	added, err2 := e.plantWatches(list)
	if err2 != nil {
		return err2
	}
	err2 = e.stop(func(World) error {
		old := e.watched.Load()
		// A guest that debugs itself is left alone, except that what is watched
		// already stays watched.
		if dr.Enabled() && old.dr == [NumDebugRegisters]*watchpoint{} {
			for i := range e.cpus {
				busy, err := e.watcher.GuestDebugs(i)
				if err != nil {
					return err
				}
				if busy {
					return newError(CodeDebugRegsInUse, "the guest uses its own debug registers", fmt.Sprintf("on vCPU %d", i))
				}
			}
		}
		e.watched.Store(table) // before the first trap can come
		if e.watcher != nil {
			if err := e.watcher.SetWatches(dr, pages); err != nil {
				e.watched.Store(old)
				return err
			}
		}
		for _, wp := range list {
			e.freshen(wp, old, table)
		}
		e.watches = list
		return nil
	})
	if err2 != nil {
		return errors.Join(err2, e.uproot(added))
	}
	var gone []*watchpoint
	for _, wp := range e.planted {
		if !slices.Contains(list, wp) {
			gone = append(gone, wp)
		}
	}
	return e.uproot(gone)
}

// freshen reads the value of a variable that was not watched until now.
func (e *Engine) freshen(wp *watchpoint, old, now *watchTable) {
	if !now.has(wp) || old.has(wp) {
		return
	}
	var b [8]byte
	if e.target.ReadMemory(0, wp.addr, b[:wp.n]) == nil {
		wp.value.Store(le.Uint64(b[:]))
	}
}

// has reports whether wp is watched.
func (t *watchTable) has(wp *watchpoint) bool {
	return slices.Contains(t.dr[:], wp) || slices.Contains(t.pages, wp)
}

// assign distributes the debug registers and the pages.
func assign(list []*watchpoint) (dr DebugRegisters, t *watchTable, pages []WatchedPage, refused error) {
	t = &watchTable{}
	next := 0
	for i, wp := range list {
		switch {
		case !wp.live() || wp.breaks():
			continue
		case wp.watch.Emulate:
			t.pages = append(t.pages, wp)
			page := WatchedPage{PA: wp.pa &^ pageMask, Read: wp.watch.Access&AccessRead != 0}
			j := slices.IndexFunc(pages, func(p WatchedPage) bool { return p.PA == page.PA })
			if j < 0 {
				pages = append(pages, page)
			} else {
				pages[j].Read = pages[j].Read || page.Read
			}
		case next == NumDebugRegisters:
			x := newError(CodeWatchRegisters, "all four debug registers are in use", "emulate, or unwatch one")
			x.Index = max(0, i-len(list)+1)
			return dr, nil, nil, x
		default:
			if !dr.Set(next, wp.addr, wp.n, wp.watch.Access) {
				panic(fmt.Sprintf("BUG: probe: watch %v:%d %v was admitted", wp.addr, wp.n, wp.watch.Access))
			}
			t.dr[next] = wp
			next++
		}
	}
	if len(t.pages) > maxWatches {
		return dr, nil, nil, newError(CodeWatchRegisters, fmt.Sprintf("%d watches of pages are in use", maxWatches), "unwatch one")
	}
	slices.SortFunc(pages, func(a, b WatchedPage) int { return cmp.Compare(a.PA, b.PA) })
	return dr, t, pages, nil
}

// plantWatches registers the breakpoints of execute watches that have none, and
// switches those of the others on or off.
func (e *Engine) plantWatches(list []*watchpoint) (added []*watchpoint, err error) {
	for _, wp := range list {
		if !wp.breaks() || wp.gone {
			continue
		}
		if slices.Contains(e.planted, wp) {
			if err := e.setDisabledLocked([]*Kprobe{wp.brk}, wp.asleep); err != nil {
				return nil, errors.Join(err, e.uproot(added))
			}
			continue
		}
		p := &Kprobe{Name: wp.watch.Name, Addr: wp.addr, Disabled: wp.asleep}
		p.Pre = func(c *Context) int {
			if wp.watch.Handler != nil {
				regs := *c.Regs
				c.Regs.RIP = uint64(wp.addr)
				c.Watched = Watched{Watch: wp.watch, Exact: true}
				wp.watch.Handler(c)
				*c.Regs = regs
			}
			return 0
		}
		b := e.newBatch(1)
		if x := e.admit(b, p); x != nil {
			return nil, errors.Join(x, e.uproot(added))
		}
		b.regs[0].hidden = true
		if err := e.install(b); err != nil {
			return nil, errors.Join(err, e.uproot(added))
		}
		wp.brk = p
		e.planted = append(e.planted, wp)
		added = append(added, wp)
	}
	return added, nil
}

// uproot takes the breakpoints of watchpoints away.
func (e *Engine) uproot(out []*watchpoint) error {
	if len(out) == 0 {
		return nil
	}
	var regs []*registration
	for _, wp := range out {
		if r := wp.brk.reg; r != nil {
			regs = append(regs, r)
		}
	}
	e.planted = slices.DeleteFunc(slices.Clone(e.planted), func(wp *watchpoint) bool { return slices.Contains(out, wp) })
	return e.remove(regs)
}

// rewatch puts the watches back after the guest was reset. A variable that is
// no longer there is gone. Callers hold mu.
func (e *Engine) rewatch() error {
	if len(e.watches) == 0 {
		return nil
	}
	e.watched.Store(&watchTable{})
	for _, wp := range e.watches {
		if wp.breaks() {
			wp.gone = wp.brk != nil && wp.brk.reg != nil && wp.brk.reg.site.gone
			continue
		}
		if !wp.named {
			wp.watch.Addr = wp.addr - guest.GVA(wp.watch.Offset)
		} else {
			wp.watch.Addr = 0
		}
		err := e.placeWatch(wp)
		wp.watch.Addr = wp.addr
		wp.gone = err != nil
		if err != nil {
			e.log.Warn("watch is gone after the guest was reset", "watch", wp.watch.Name, "symbol", wp.symbol, "err", err)
		}
	}
	return e.applyWatches(e.watches)
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
	out := make([]WatchInfo, 0, len(e.watches))
	for _, wp := range e.watches {
		out = append(out, e.watchInfo(wp))
	}
	return out
}

// WatchInfo describes w, which is, or ok is false, registered or was.
func (e *Engine) WatchInfo(w *Watch) (_ WatchInfo, ok bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	wp := w.wp
	if wp == nil {
		wp = w.last
	}
	if wp == nil || wp.reg.engine != e {
		return WatchInfo{}, false
	}
	return e.watchInfo(wp), true
}

// Costs of the ways to watch.
const (
	costRegister   = "one exit per access, none otherwise; the guest's own debug register breakpoints do not fire meanwhile"
	costBreakpoint = "one exit per execution, as of a probe"
	costWrites     = "one exit per write to the whole 4 KiB page; vCPUs take turns meanwhile"
	costAccesses   = "one exit per read and per write of the whole 4 KiB page; vCPUs take turns meanwhile"
)

func (e *Engine) watchInfo(wp *watchpoint) WatchInfo {
	w := wp.watch
	i := WatchInfo{
		Watch: w, Name: w.Name, Addr: wp.addr, Len: wp.n, Access: w.Access, Symbol: wp.symbol, Offset: wp.off,
		User: wp.user, Disabled: wp.asleep, Gone: wp.gone, Armed: wp.live(), By: "debug_register", Cost: costRegister,
	}
	r := wp.reg
	switch {
	case wp.breaks():
		i.By, i.Cost = "breakpoint", costBreakpoint
		if p := wp.brk; p != nil {
			if r = p.reg; r == nil {
				r = p.last
			}
		}
	case w.Emulate && w.Access&AccessRead != 0:
		i.By, i.Cost = "page", costAccesses
	case w.Emulate:
		i.By, i.Cost = "page", costWrites
	}
	if r != nil {
		for j := range r.cells {
			i.Stats.add(r.stats(j))
		}
	}
	return i
}

// WatchStats returns the counts of w by vCPU, after Unwatch the final ones.
func (e *Engine) WatchStats(w *Watch) []Stats {
	e.view.RLock()
	defer e.view.RUnlock()
	wp := w.wp
	if wp == nil {
		wp = w.last
	}
	if wp == nil || wp.reg.engine != e {
		return nil
	}
	r := wp.reg
	if p := wp.brk; p != nil {
		if r = p.reg; r == nil {
			r = p.last
		}
	}
	var out []Stats
	for j := range r.cells {
		out = append(out, r.stats(j))
	}
	return out
}
