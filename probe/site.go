package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/flow"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// site is one probed address with everything that is on it: what the kernel
// calls an aggregate. The hit path reads it without a lock, so everything it
// looks at is fixed before the site is published, or atomic.
type site struct {
	addr guest.GVA
	n    uint8              // length of the instruction
	orig [insn.MaxLen]uint8 // its bytes, from the image
	user bool               // text of CPL3
	pa   guest.GPA          // where addr is in physical memory, if the target can tell; see sameCode
	plan insn.Plan

	// boosted and stepped are its slots, allocated when they are first needed.
	boosted atomic.Pointer[slot]
	stepped atomic.Pointer[slot]

	// armed: the text has our int3. It changes only while the world is stopped.
	armed atomic.Bool

	// jump: instead of the int3 the text has a jump to this detour. It changes
	// only while the world is stopped.
	jump atomic.Pointer[detour]

	// region and text are what a jump displaces, once a pass has looked; guarded
	// by Engine.mu. refused is why it cannot be, blocked what stands against it at the
	// moment; guarded by Engine.view.
	region  *flow.Region
	text    []byte
	refused *Unoptimized
	blocked string

	// chain holds the probes on the site; it changes only while the world is
	// stopped.
	chain atomic.Pointer[chain]

	// mirrorEnd: mirrors of jprobes end here.
	mirrorEnd atomic.Bool

	symbol string    // name of the function
	start  guest.GVA // where it begins
	entry  bool      // the site is the function's entry
	gone   bool      // the code went away: the site is in no table
}

// bytes returns the original instruction.
func (s *site) bytes() []byte { return s.orig[:s.n] }

// next returns the address behind the instruction.
func (s *site) next() guest.GVA { return s.addr + guest.GVA(s.n) }

// chain is the immutable list of the probes on a site, newest first: the order
// in which the kernel calls them.
type chain []*registration

// without returns a chain that lacks the registrations for which drop is true.
func (c chain) without(drop func(*registration) bool) chain {
	out := make(chain, 0, len(c))
	for _, r := range c {
		if !drop(r) {
			out = append(out, r)
		}
	}
	return out
}

// live reports whether any probe of the chain is enabled.
func (c chain) live() bool {
	for _, r := range c {
		if r.enabled.Load() {
			return true
		}
	}
	return false
}

// registration is one Kprobe on its site, from Register to Unregister. It is
// never used for a second registration, so a hit that is under way can tell an
// old one from a new one.
type registration struct {
	engine *Engine
	probe  *Kprobe
	site   *site     // changes only while the world is stopped, by Reload
	cells  []cell    // by vCPU
	ret    *retprobe // of a kretprobe, else nil
	jump   *jump     // of a jprobe, else nil
	hidden bool      // the engine's own, at the end of mirrors

	// What the user gave, from before Addr was rewritten: Reload resolves it
	// anew.
	bySymbol bool
	offset   uint64

	// enabled is what the hit path looks at: registered, not disabled, not gone.
	enabled atomic.Bool

	// logged has a bit per kind of trouble that was logged already.
	logged atomic.Uint32

	// disabled is the user's wish; guarded by Engine.view.
	disabled bool
}

// Bits of registration.logged.
const (
	loggedPanic = 1 << iota
	loggedAccess
)

// first reports whether trouble of this kind has not been logged before.
func (r *registration) first(kind uint32) bool { return r.logged.Or(kind)&kind == 0 }

// cell holds the counts of one probe on one vCPU. Only that vCPU's thread
// writes it; anyone may read. It fills a cache line, so that vCPUs do not slow
// each other down.
type cell struct {
	hits     atomic.Uint64
	handled  atomic.Uint64
	filtered atomic.Uint64
	missed   atomic.Uint64
	skipped  atomic.Uint64
	steps    atomic.Uint64 // second exits: trailing int3s and in-place steps
	panics   atomic.Uint32
	accesses atomic.Uint32 // bad ones
	faults   atomic.Uint32

	// passed is the vCPU's hit number when the probe's filter let the hit pass:
	// whether its post and fault handlers are to run. Never seen by others.
	passed uint32
}

// count adds 1 to a counter that only the calling thread writes: cheaper than
// a locked addition, and readers see every value it ever had.
func count(a *atomic.Uint64) { a.Store(a.Load() + 1) }

// count32 is count for the small counters.
func count32(a *atomic.Uint32) { a.Store(a.Load() + 1) }
