package probe

import (
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe/flow"
)

// site is one probed address with everything on it: the kernel's aggregate. The hit
// path reads it without a lock, so everything the hit path uses is fixed before the
// site is published, or atomic.
type site struct {
	addr guest.GVA
	user bool          // text of CPL3
	pa   atomic.Uint64 // the physical address of addr, or of the int3 when it was put there; 0: the target cannot tell; see sameCode

	// orig is the instruction; it changes only if the guest has announced that it
	// writes another one (Engine.WriteText), while the world is stopped.
	orig atomic.Pointer[original]

	// boosted and stepped are its slots, allocated when they are first needed.
	boosted atomic.Pointer[slot]
	stepped atomic.Pointer[slot]

	// armed: the text has our int3. It changes only while the world is stopped.
	armed atomic.Bool

	// jump is the state of the site's optimization; with a detour the text has a jump
	// there instead of the int3. It changes only by optimizer.set.
	jump atomic.Pointer[optimization]

	// region and text are the region that a jump displaces, once a pass has
	// determined it; guarded by Engine.mu.
	region *flow.Region
	text   []byte

	// chain holds the probes on the site; it changes only while the world is
	// stopped.
	chain atomic.Pointer[chain]

	// mirrorEnd: mirrors of jprobes end here.
	mirrorEnd atomic.Bool

	symbol string    // name of the function
	start  guest.GVA // where it begins
	head   guest.GVA // where hits of the function's entry are reported: see place
	gone   bool      // the code is gone: the site is in no table

	changed bool // see Info.Changed; written with the world stopped
}

// original is the probed instruction, and how it is run. It never changes.
type original struct {
	n     uint8 // its length
	bytes [x86.MaxLen]uint8
	plan  x86.Plan
}

// bytes returns the original instruction.
func (s *site) bytes() []byte {
	o := s.orig.Load()
	return o.bytes[:o.n]
}

// plan returns how the instruction is run.
func (s *site) plan() *x86.Plan { return &s.orig.Load().plan }

// next returns the address after the instruction.
func (s *site) next() guest.GVA { return s.addr + guest.GVA(s.orig.Load().n) }

// reportedAddr returns the address that all enabled probes on the site are reported
// at, and false if they differ.
func (s *site) reportedAddr() (addr guest.GVA, ok bool) {
	for _, r := range *s.chain.Load() {
		switch a := r.reportedAddr(); {
		case !r.enabled.Load(), a == addr:
		case addr != 0:
			return 0, false
		default:
			addr = a
		}
	}
	return addr, true
}

// chain is the immutable list of the probes on a site, newest first: the order
// in which the kernel calls them.
type chain []*registration

// drop returns a chain without the registrations for which drop is true.
func (c chain) drop(drop func(*registration) bool) chain {
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

// essential reports whether an enabled probe of the chain is essential.
func (c chain) essential() bool {
	return slices.ContainsFunc(c, func(r *registration) bool { return r.probe.Essential && r.enabled.Load() })
}

// cell holds the counts of one probe on one vCPU. Only that vCPU's thread writes it;
// anyone may read. It fills a cache line, so that vCPUs do not slow each other down.
// Hits is the sum of handled, filtered and missed hits.
type cell struct {
	handled   atomic.Uint64
	filtered  atomic.Uint64
	missed    atomic.Uint64
	skipped   atomic.Uint64
	steps     atomic.Uint64 // second exits: trailing int3s and in-place steps
	elsewhere atomic.Uint64
	panics    atomic.Uint32
	accesses  atomic.Uint32 // failed ones
	faults    atomic.Uint32

	// passed is the vCPU's hit number when the probe's filter let the hit pass: then
	// its post and fault handlers and its mirror run, and a step counts. Other
	// threads never read it.
	passed uint32
}

// count adds 1 to a counter that only the calling thread writes: cheaper than a
// locked addition, and readers see every value it ever had.
func count(a *atomic.Uint64) { a.Store(a.Load() + 1) }

// count32 is count for the small counters.
func count32(a *atomic.Uint32) { a.Store(a.Load() + 1) }

// unpatch replaces the engine's bytes in p, which was read at addr, by the site's
// own; at is the address of the site.
func (st *site) unpatch(at, addr guest.GVA, p []byte) {
	if !st.armed.Load() {
		return
	}
	ours, orig := [x86.JmpLen]byte{x86.Int3}, st.bytes()[:1]
	if d := st.detour(); d != nil {
		ours, orig = d.jump(), d.orig[:]
	}
	for i, b := range orig {
		if off := at + guest.GVA(i) - addr; off < guest.GVA(len(p)) && p[off] == ours[i] {
			p[off] = b
		}
	}
}

// reaches reports whether the site, at address at, has bytes of the engine's at or
// after addr.
func (st *site) reaches(at, addr guest.GVA) bool {
	n := guest.GVA(1)
	if st.detour() != nil {
		n = x86.JmpLen
	}
	return st.armed.Load() && int64(addr-at) < int64(n)
}
