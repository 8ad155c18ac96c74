package probe

import (
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// Watch is a watchpoint: a probe on accesses to guest memory. Fill in the address and
// the handler, then Engine.Watch it; after that its fields belong to the engine until
// Unwatch has returned.
//
// It uses one of the four debug registers, on all vCPUs: the only exits are for the
// accesses themselves. While one is in use, breakpoints that the guest sets in its
// own debug registers do not fire; if a guest has already set some, it is left alone,
// and the watch is rejected. A debug register watches a virtual address, in every
// address space.
//
// With Emulate, and only then, the engine protects the 4 KiB page instead. Each write
// to it (with AccessRead, each access) costs an exit, including accesses to other
// variables on the page. KVM emulates the instruction, and vCPUs take turns until it
// is done, so that atomic instructions stay atomic. The watch is on physical memory,
// whatever the address of the access. An AccessExec watch is then a breakpoint.
//
// Accesses that the engine makes in the guest's place (a probed push, a handler's
// write) are not seen. A page that the processor or the hypervisor accesses by itself
// (descriptor tables, stacks of exceptions, page tables) cannot be protected: the
// watch is rejected (CodeImplicit), and if a watched page becomes one, its watch is
// disabled (Engine.WatchEnded).
type Watch struct {
	Name string // for listings

	// Symbol with Offset, or Addr, is the place. After Engine.Watch Addr is the
	// resolved address.
	Symbol string
	Offset uint64
	Addr   guest.GVA

	// Len is 1, 2, 4 or 8 bytes, and the address a multiple of it; 1 for AccessExec.
	// 0 means the symbol's size if that is one of these, and otherwise 8, or 1 for
	// AccessExec.
	Len    int
	Access Access

	Emulate  bool
	Disabled bool // watch later

	// Handler runs at each access, on the thread of the vCPU that made it, with
	// Context.Watched; a data access is already done. Changes of registers have no
	// effect. If it is nil accesses are only counted.
	Handler func(*Context)

	wp, last *watchpoint
}

// Watched is one access to watched memory. The values are the watched bytes, as a
// little-endian number.
type Watched struct {
	Watch    *Watch
	Write    bool // with AccessReadWrite on debug registers: the value has changed
	Old, New uint64
	Exact    bool // Context.Addr is the instruction; else it is where the vCPU was after it
}

// watchpoint is one Watch from Engine.Watch to Unwatch.
type watchpoint struct {
	*tally
	owner *registry
	watch *Watch
	where where   // as the user gave it
	by    serving // how it is served

	addr   guest.GVA
	pa     guest.GPA
	n      int
	symbol string
	off    uint64
	user   bool
	value  atomic.Uint64 // as last seen
	asleep bool          // disabled, if not served by a breakpoint; guarded by Engine.view
	ended  atomic.Bool   // WatchEnded has ended it, until it is enabled again
	lost   bool          // the variable is gone, if not served by a breakpoint; guarded likewise
}

// serving is how a watch is served: by a debug register, by the protection of its page, or by
// a breakpoint.
type serving interface {
	// gone reports whether the watched memory no longer exists; disabled reports
	// whether the user has disabled wp.
	gone(wp *watchpoint) bool
	disabled(wp *watchpoint) bool

	// name and cost are for listings.
	name() string
	cost(access Access) string

	// probes returns the engine's own probe that serves it, if one does.
	probes() []*registration

	// assign gives wp, which is to be watched, its resources of the target.
	assign(a *assignment, wp *watchpoint) *Error

	// implicit reports whether the processor's own accesses to the watched page
	// interfere with it.
	implicit() bool

	// enable switches wp on or off. Callers hold mu.
	enable(g *registry, wp *watchpoint, off bool) error

	// restore finds wp again after the guest was reset. Callers hold mu.
	restore(g *registry, wp *watchpoint)
}

// How watches are served.
type (
	byRegister struct{}
	byPage     struct{ byRegister } // except for the part that the target enables and restores alike
	byProbe    struct{ reg *registration }
)

// assignment is a request to the target, for some watches.
type assignment struct {
	dr    DebugRegisters
	used  int // debug registers
	table *watchTable
	pages []WatchedPage
}

// watchTable is the watches as the hit path sees them.
type watchTable struct {
	dr    [numDebugRegisters]*watchpoint
	pages []*watchpoint
}

// has reports whether wp is watched.
func (t *watchTable) has(wp *watchpoint) bool {
	return slices.Contains(t.dr[:], wp) || slices.Contains(t.pages, wp)
}

// maxWatches bounds the watches that are served by protecting pages.
const maxWatches = 16

// endWatch is Engine.WatchEnded.
func (k *core) endWatch(pa guest.GPA, why string) {
	old := k.watched.Load()
	left := &watchTable{dr: old.dr}
	defer k.watched.Store(left)
	for _, wp := range old.pages {
		if wp.pa&^pageMask != pa {
			left.pages = append(left.pages, wp)
		} else if !wp.ended.Swap(true) {
			k.log.Warn("a watch is disabled: its page must not be protected any more", "watch", wp.watch.Name, "addr", wp.addr, "why", why, "code", CodeImplicit)
		}
	}
}

func (byRegister) gone(wp *watchpoint) bool     { return wp.lost }
func (byRegister) disabled(wp *watchpoint) bool { return wp.asleep || wp.ended.Load() }
func (byRegister) name() string                 { return "debug_register" }
func (byRegister) cost(Access) string           { return costRegister }
func (byRegister) probes() []*registration      { return nil }
func (byRegister) implicit() bool               { return false }

func (byPage) name() string   { return "page" }
func (byPage) implicit() bool { return true }

func (byPage) cost(access Access) string {
	if access&AccessRead != 0 {
		return costAccesses
	}
	return costWrites
}

func (b byProbe) gone(*watchpoint) bool     { return b.reg.site.gone }
func (b byProbe) disabled(*watchpoint) bool { return b.reg.disabled }
func (byProbe) name() string                { return "breakpoint" }
func (byProbe) cost(Access) string          { return costBreakpoint }
func (b byProbe) probes() []*registration   { return []*registration{b.reg} }
func (byProbe) implicit() bool              { return false }

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

// Costs of the ways to watch.
const (
	costRegister   = "one exit per access, none otherwise; the guest's own debug register breakpoints do not fire while it is attached"
	costBreakpoint = "one exit per execution, as of a probe"
	costWrites     = "one exit per write to the whole 4 KiB page; vCPUs run in turn during the access"
	costAccesses   = "one exit per read and per write of the whole 4 KiB page; vCPUs run in turn during the access"
)

func (wp *watchpoint) info() WatchInfo {
	w := wp.watch
	i := WatchInfo{
		Watch: w, Name: w.Name, Addr: wp.addr, Len: wp.n, Access: w.Access, Symbol: wp.symbol, Offset: wp.off,
		User: wp.user, Disabled: wp.by.disabled(wp), Gone: wp.by.gone(wp), Armed: wp.live(), By: wp.by.name(), Cost: wp.by.cost(w.Access),
	}
	for j := range wp.cells {
		i.Stats.Add(wp.stats(j))
	}
	return i
}

// pageMask selects the offset in a 4 KiB page.
const pageMask = 4096 - 1

// live reports whether wp should be watched.
func (wp *watchpoint) live() bool {
	return !wp.by.disabled(wp) && !wp.by.gone(wp) && !wp.owner.disarmed
}
