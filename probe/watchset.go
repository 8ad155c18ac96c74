package probe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// pageMask selects the offset in a 4 KiB page.
const pageMask = 4096 - 1

// watches are the registered watchpoints, and what serves those without a
// breakpoint: debug registers and protected pages. It is guarded by Engine.mu.
type watches struct {
	*control
	places  *places
	watcher Watcher       // nil: nothing can be watched
	list    []*watchpoint // in the order in which they came; written with view held as well
}

// locate finds out where wp is, and whether it can be watched there.
func (ws *watches) locate(wp *watchpoint) *Error {
	w := wp.watch
	addr := wp.where.addr + guest.GVA(wp.where.offset)
	var sym guest.Symbol
	if wp.where.symbol != "" {
		var err *Error
		if sym, err = ws.places.symbol("symbol", wp.where.symbol); err != nil {
			return err
		}
		addr = sym.Addr + guest.GVA(wp.where.offset)
		if sym.Size != 0 && wp.where.offset >= sym.Size {
			return outsideError(wp.where, sym)
		}
	} else if s, ok := ws.target.Symbols().Find(addr); ok {
		sym = s
	}
	n := w.Len
	switch {
	case n != 0:
	case w.Access == AccessExec:
		n = 1
	case wp.where.symbol != "" && wp.where.offset == 0 && (sym.Size == 1 || sym.Size == 2 || sym.Size == 4):
		n = int(sym.Size)
	default:
		n = 8
	}
	if err := checkWatch(addr, n, w.Access); err != nil {
		return err
	}
	wp.addr, wp.n, wp.symbol, wp.user = addr, n, sym.Name, sym.User
	if sym.Name != "" {
		wp.off = uint64(addr - sym.Addr)
	}
	if err := ws.checkServed(wp); err != nil {
		return err
	}
	var now [8]byte
	if err := ws.target.ReadMemory(0, addr, now[:n]); err != nil {
		x := newError(CodeUnreadable, "the address is not mapped", fmt.Sprintf("at %v", addr))
		x.Cause = err
		return x
	}
	if w.Emulate && w.Access != AccessExec {
		if ws.oneSpace {
			return newError(CodeHostCannot, "this target cannot protect pages", "")
		}
		wp.pa, _ = ws.pages.Translate(0, addr)
	}
	wp.value.Store(le.Uint64(now[:]))
	return nil
}

// checkServed refuses what neither the debug registers nor, with Emulate, other means of
// this host can watch.
func (ws *watches) checkServed(wp *watchpoint) *Error {
	w := wp.watch
	if w.Access == AccessRead && !w.Emulate {
		return newError(CodeWatchAccess, "the debug registers have no watch for reads alone", "rw, or emulate")
	}
	why := "this target cannot watch memory"
	switch {
	case w.Access == AccessExec && w.Emulate:
		why = ws.can[guest.Level(wp.user)].NoBreakpoint
	case ws.watcher != nil:
		why = ws.watcher.CannotWatch(w.Access, wp.user, w.Emulate)
	}
	if why == "" {
		return nil
	}
	x := newError(CodeHostCannot, fmt.Sprintf("this host cannot watch for %v", w.Access), why)
	if w.Emulate {
		x.Text += " in this way"
	}
	return x
}

// live reports whether wp is to be watched.
func (wp *watchpoint) live() bool { return !wp.disabled() && !wp.gone() && !wp.engine.disarmed }

// apply makes list the registered watchpoints, or fails and leaves all as it was. Callers hold mu.
func (ws *watches) apply(list []*watchpoint) error {
	known := len(ws.list)
	dr, table, pages, refused := assign(list, known)
	if refused != nil {
		return refused
	}
	return ws.stop(func(World) error {
		old := ws.watched.Load()
		// A guest that debugs itself is left alone, except that what is watched
		// already stays watched.
		if dr.Enabled() && old.dr == [NumDebugRegisters]*watchpoint{} {
			for i := range ws.cpus {
				busy, err := ws.watcher.GuestDebugs(i)
				if err != nil {
					return err
				}
				if busy {
					return newError(CodeDebugRegsInUse, "the guest uses its own debug registers", fmt.Sprintf("on vCPU %d", i))
				}
			}
		}
		if len(pages) != 0 {
			if refused := ws.endImplicit(list, pages, old, known); refused != nil {
				return refused
			}
			if dr, table, pages, refused = assign(list, known); refused != nil {
				return refused
			}
		}
		ws.watched.Store(table) // before the first trap can come
		if ws.watcher != nil {
			if err := ws.watcher.SetWatches(dr, pages); err != nil {
				ws.watched.Store(old)
				return err
			}
		}
		for _, wp := range list {
			if table.has(wp) && !old.has(wp) {
				ws.readValue(wp)
			}
		}
		ws.list = list
		return nil
	})
}

// endImplicit refuses the watches of pages that are accessed without an instruction of the guest's naming them, and ends those that
// were watched already. The world is stopped.
func (ws *watches) endImplicit(list []*watchpoint, pages []WatchedPage, old *watchTable, known int) error {
	whys := ws.watcher.Implicit(pages)
	for i, wp := range list {
		if wp.brk != nil || !wp.watch.Emulate || !wp.live() {
			continue
		}
		why := whys[slices.IndexFunc(pages, func(p WatchedPage) bool { return p.PA == wp.pa&^pageMask })]
		switch {
		case why == "":
		case old.has(wp):
			wp.engine.WatchEnded(wp.pa&^pageMask, why)
		default:
			x := newError(CodeImplicit, fmt.Sprintf("%v is in a page that must not be protected: %s", wp.addr, why),
				"leave out emulate, where the debug registers can watch; else probe the code that accesses it")
			x.Index = max(0, i-known)
			return x
		}
	}
	return nil
}

// readValue reads the value of a variable that was not watched until now.
func (ws *watches) readValue(wp *watchpoint) {
	var b [8]byte
	if ws.target.ReadMemory(0, wp.addr, b[:wp.n]) == nil {
		wp.value.Store(le.Uint64(b[:]))
	}
}

// assign distributes the debug registers and the pages. The index of a refusal is
// counted from the first of list that is new.
func assign(list []*watchpoint, known int) (dr DebugRegisters, t *watchTable, pages []WatchedPage, refused *Error) {
	t = &watchTable{}
	next := 0
	for i, wp := range list {
		switch {
		case wp.brk != nil || !wp.live():
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
			x.Index = max(0, i-known)
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

// restore puts the watches back after the guest was reset. A variable that is no
// longer there is gone. Callers hold mu.
func (ws *watches) restore() error {
	if len(ws.list) == 0 {
		return nil
	}
	ws.watched.Store(&watchTable{})
	for _, wp := range ws.list {
		if wp.brk != nil {
			wp.addr = wp.brk.reportedAddr()
			continue
		}
		err := ws.locate(wp)
		wp.watch.Addr = wp.addr
		wp.lost = err != nil
		if err != nil {
			ws.log.Warn("watch is gone after the guest was reset", "watch", wp.watch.Name, "symbol", wp.symbol, "err", err)
		}
	}
	return ws.apply(ws.list)
}
