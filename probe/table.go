package probe

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/guest"
)

// table maps addresses to sites. It never changes once it is published: the
// hit path reads it without a lock, registration builds the next one.
//
// It is a hash table with open addressing and linear probing, at most half
// full, so that every search ends at an empty entry.
type table struct {
	entries []tableEntry // a power of two
	shift   uint         // 64 - log2(len(entries))
	n       int
	phys    *table // the same sites by physical address
}

type tableEntry struct {
	addr guest.GVA
	site *site // nil: empty
}

// emptyTable is what an engine without probes looks things up in.
var emptyTable = newTable(nil)

// newTable returns a table of sites.
func newTable(sites map[guest.GVA]*site) *table {
	t := sizedTable(len(sites))
	for a, s := range sites {
		t.add(a, s)
	}
	return t
}

// newPhysTable returns a table of sites by their physical addresses.
func newPhysTable(sites map[guest.GVA]*site) *table {
	t := sizedTable(len(sites))
	for _, s := range sites {
		if s.pa != 0 {
			t.add(guest.GVA(s.pa), s)
		}
	}
	return t
}

// sizedTable returns a table without sites that has room for n.
func sizedTable(n int) *table {
	log := uint(bits.Len(uint(2*n) | 1)) // more than twice as many entries as sites
	return &table{entries: make([]tableEntry, 1<<log), shift: 64 - log, n: n}
}

// add enters a site that has no entry yet.
func (t *table) add(a guest.GVA, s *site) {
	mask := len(t.entries) - 1
	i := t.hash(a)
	for t.entries[i].site != nil {
		i = (i + 1) & mask
	}
	t.entries[i] = tableEntry{a, s}
}

// hash spreads addresses, which differ in their low bits, over the table
// (Fibonacci hashing: the multiplier is 2^64 divided by the golden ratio).
func (t *table) hash(a guest.GVA) int {
	return int(uint64(a) * 0x9e3779b97f4a7c15 >> t.shift)
}

// find returns the site at a, or nil.
func (t *table) find(a guest.GVA) *site {
	mask := len(t.entries) - 1
	for i := t.hash(a); ; i = (i + 1) & mask {
		e := &t.entries[i]
		if e.site == nil || e.addr == a {
			return e.site
		}
	}
}
