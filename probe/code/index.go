package code

import (
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// Index finds things by their address. Lookups take no lock, allocate nothing, and
// may be made at any time; changes are made by one goroutine at a time. The zero
// value is empty. Address 0 is nobody's.
//
// It is a hash table with open addressing and linear probing. What was removed
// keeps its entry, without a thing, until the table is built anew, so that a search
// that is under way goes on to the things behind it; and the table is at most half
// full, so that every search ends.
type Index[V any] struct {
	table atomic.Pointer[indexTable[V]]
	n     int // things
	taken int // entries
}

type indexTable[V any] struct {
	entries []indexEntry[V] // a power of two
	shift   uint            // 64 - log2(len(entries))
}

type indexEntry[V any] struct {
	addr  atomic.Uint64 // 0: none yet
	thing atomic.Pointer[V]
}

// at returns the entry for addr: that with it, or the free one where it would go.
func (t *indexTable[V]) at(addr guest.GVA) *indexEntry[V] {
	mask := len(t.entries) - 1
	// Fibonacci hashing: the multiplier is 2^64 divided by the golden ratio.
	for i := int(uint64(addr) * 0x9e3779b97f4a7c15 >> t.shift); ; i++ {
		e := &t.entries[i&mask]
		if a := e.addr.Load(); a == uint64(addr) || a == 0 {
			return e
		}
	}
}

// Find returns the thing at addr, or nil.
func (x *Index[V]) Find(addr guest.GVA) *V {
	t := x.table.Load()
	if t == nil {
		return nil
	}
	e := t.at(addr)
	if e.addr.Load() != uint64(addr) { // free, or another's by now
		return nil
	}
	return e.thing.Load()
}

// Len returns how many things there are. It belongs to whoever may make changes.
func (x *Index[V]) Len() int { return x.n }

// Set makes v the thing at addr.
func (x *Index[V]) Set(addr guest.GVA, v *V) {
	if t := x.table.Load(); t == nil || 2*(x.taken+1) > len(t.entries) {
		x.grow()
	}
	e := x.table.Load().at(addr)
	if e.thing.Load() == nil {
		x.n++
	}
	e.thing.Store(v) // before a search can find the entry
	if e.addr.Load() == 0 {
		x.taken++
		e.addr.Store(uint64(addr))
	}
}

// Delete removes the thing at addr, if there is one.
func (x *Index[V]) Delete(addr guest.GVA) {
	if x.Find(addr) == nil {
		return
	}
	x.table.Load().at(addr).thing.Store(nil)
	x.n--
}

// Clear removes everything.
func (x *Index[V]) Clear() {
	x.table.Store(nil)
	x.n, x.taken = 0, 0
}

// All returns what there is, in no order that means anything. Meanwhile things may
// be removed.
func (x *Index[V]) All() iter.Seq2[guest.GVA, *V] {
	return func(yield func(guest.GVA, *V) bool) {
		t := x.table.Load()
		if t == nil {
			return
		}
		for i := range t.entries {
			e := &t.entries[i]
			if v := e.thing.Load(); v != nil && !yield(guest.GVA(e.addr.Load()), v) {
				return
			}
		}
	}
}

// grow builds the table anew, with room for twice as many things as there are.
func (x *Index[V]) grow() {
	log := uint(bits.Len(uint(4*x.n) | 7))
	t := &indexTable[V]{entries: make([]indexEntry[V], 1<<log), shift: 64 - log}
	for addr, v := range x.All() {
		e := t.at(addr)
		e.addr.Store(uint64(addr))
		e.thing.Store(v)
	}
	x.table.Store(t)
	x.taken = x.n
}
