package probe

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// watches are the registered watchpoints, and the resources of those without a
// breakpoint: debug registers and protected pages. It is guarded by Engine.mu.
type watches struct {
	*control
	places *places
	list   []*watchpoint // in the order of registration; written with view held too
}

// locate determines the address of wp, and whether it can be watched there.
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

// checkServed rejects watches that neither the debug registers nor, with Emulate,
// other means of this host can serve.
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
		why = ws.watcher.NoWatchReason(w.Access, wp.user, w.Emulate)
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

// check rejects list as apply does, and changes nothing. Callers hold mu.
func (ws *watches) check(list []*watchpoint) error {
	return ws.stop(func(World) error {
		_, _, _, err := ws.fit(list)
		return err
	})
}

// fit distributes the debug registers and the pages to the existing watchpoints, and
// to the new ones after them in list. The world is stopped.
func (ws *watches) fit(list []*watchpoint) (dr DebugRegisters, t *watchTable, pages []WatchedPage, err error) {
	known, old := len(ws.list), ws.watched.Load()
	dr, t, pages, refused := assign(list, known)
	if refused != nil {
		return dr, nil, nil, refused
	}
	// Leave a guest that debugs itself alone, except that a watch that is already set
	// stays.
	if dr.Enabled() && old.dr == [numDebugRegisters]*watchpoint{} {
		for i := range ws.cpus {
			busy, err := ws.watcher.GuestDebugs(i)
			if err != nil {
				return dr, nil, nil, err
			}
			if busy {
				return dr, nil, nil, newError(CodeDebugRegsInUse, "the guest uses its own debug registers", fmt.Sprintf("on vCPU %d", i))
			}
		}
	}
	if len(pages) == 0 {
		return dr, t, pages, nil
	}
	if err := ws.endImplicit(list, pages, old, known); err != nil {
		return dr, nil, nil, err
	}
	if dr, t, pages, refused = assign(list, known); refused != nil {
		return dr, nil, nil, refused
	}
	return dr, t, pages, nil
}

// apply makes list the registered watchpoints, or fails and changes nothing. Callers
// hold mu.
func (ws *watches) apply(list []*watchpoint) error {
	return ws.stop(func(World) error {
		old := ws.watched.Load()
		dr, table, pages, err := ws.fit(list)
		if err != nil {
			return err
		}
		ws.watched.Store(table) // before the first trap can occur
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

// endImplicit rejects watches of pages that are accessed without an instruction of
// the guest's naming them, and ends those that were already watched. The world is
// stopped.
func (ws *watches) endImplicit(list []*watchpoint, pages []WatchedPage, old *watchTable, known int) error {
	whys := ws.watcher.ImplicitAccesses(pages)
	for i, wp := range list {
		if !wp.by.implicit() || !wp.live() {
			continue
		}
		why := whys[slices.IndexFunc(pages, func(p WatchedPage) bool { return p.PA == wp.pa&^pageMask })]
		switch {
		case why == "":
		case old.has(wp):
			wp.owner.endWatch(wp.pa&^pageMask, why)
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

// assign distributes the debug registers and the pages. The index of a rejection is
// counted from the first of list that is new.
func assign(list []*watchpoint, known int) (dr DebugRegisters, t *watchTable, pages []WatchedPage, refused *Error) {
	a := assignment{table: &watchTable{}}
	for i, wp := range list {
		if !wp.live() {
			continue
		}
		if x := wp.by.assign(&a, wp); x != nil {
			x.Index = max(0, i-known)
			return a.dr, nil, nil, x
		}
	}
	if len(a.table.pages) > maxWatches {
		return a.dr, nil, nil, newError(CodeWatchRegisters, fmt.Sprintf("%d watches of pages are in use", maxWatches), "unwatch one")
	}
	slices.SortFunc(a.pages, func(a, b WatchedPage) int { return cmp.Compare(a.PA, b.PA) })
	return a.dr, a.table, a.pages, nil
}

func (byRegister) assign(a *assignment, wp *watchpoint) *Error {
	if a.used == numDebugRegisters {
		return newError(CodeWatchRegisters, "all four debug registers are in use", "emulate, or unwatch one")
	}
	if !a.dr.Set(a.used, wp.addr, wp.n, wp.watch.Access) {
		panic(fmt.Sprintf("BUG: probe: watch %v:%d %v was admitted", wp.addr, wp.n, wp.watch.Access))
	}
	a.table.dr[a.used] = wp
	a.used++
	return nil
}

func (byPage) assign(a *assignment, wp *watchpoint) *Error {
	a.table.pages = append(a.table.pages, wp)
	page := WatchedPage{PA: wp.pa &^ pageMask, Read: wp.watch.Access&AccessRead != 0}
	j := slices.IndexFunc(a.pages, func(p WatchedPage) bool { return p.PA == page.PA })
	if j < 0 {
		a.pages = append(a.pages, page)
	} else {
		a.pages[j].Read = a.pages[j].Read || page.Read
	}
	return nil
}

func (byProbe) assign(*assignment, *watchpoint) *Error { return nil }

// restore puts the watches back after the guest was reset. A variable that is no
// longer there is gone. Callers hold mu.
func (ws *watches) restore() error {
	if len(ws.list) == 0 {
		return nil
	}
	ws.watched.Store(&watchTable{})
	for _, wp := range ws.list {
		wp.by.restore(wp.owner, wp)
	}
	return ws.apply(ws.list)
}
