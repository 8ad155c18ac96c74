package code

import (
	"iter"
	"math/bits"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// Index finds values by address. Lookups take no lock, allocate nothing, and may be
// made at any time; changes are made by one goroutine at a time. The zero value is
// empty. Address 0 is not valid.
//
// It is a hash table with open addressing and linear probing. A removed value keeps
// its entry, without the value, until the table is rebuilt, so that a concurrent
// search continues to the entries after it; and the table is at most half full, so
// that every search ends.
type Index[V any] struct {
	table atomic.Pointer[indexTable[V]]
	n     int // values
	taken int // entries in use
}

type indexTable[V any] struct {
	entries []indexEntry[V] // a power of two
	shift   uint            // 64 - log2(len(entries))
}

type indexEntry[V any] struct {
	addr  atomic.Uint64 // 0: unused
	thing atomic.Pointer[V]
}

// find returns the entry for addr: the one with that address, or the free one where
// it would go.
func (t *indexTable[V]) find(addr guest.GVA) *indexEntry[V] {
	mask := len(t.entries) - 1
	// Fibonacci hashing: the multiplier is 2^64 divided by the golden ratio.
	for i := int(uint64(addr) * 0x9e3779b97f4a7c15 >> t.shift); ; i++ {
		e := &t.entries[i&mask]
		if a := e.addr.Load(); a == uint64(addr) || a == 0 {
			return e
		}
	}
}

// Find returns the value at addr, or nil.
func (x *Index[V]) Find(addr guest.GVA) *V {
	t := x.table.Load()
	if t == nil {
		return nil
	}
	e := t.find(addr)
	if e.addr.Load() != uint64(addr) { // free, or used for another address by now
		return nil
	}
	return e.thing.Load()
}

// Len returns the number of values. Only the goroutine that makes changes may call
// it.
func (x *Index[V]) Len() int { return x.n }

// Set makes v the value at addr.
func (x *Index[V]) Set(addr guest.GVA, v *V) {
	if t := x.table.Load(); t == nil || 2*(x.taken+1) > len(t.entries) {
		x.grow()
	}
	e := x.table.Load().find(addr)
	if e.thing.Load() == nil {
		x.n++
	}
	e.thing.Store(v) // before a search can find the entry
	if e.addr.Load() == 0 {
		x.taken++
		e.addr.Store(uint64(addr))
	}
}

// Delete removes the value at addr, if any.
func (x *Index[V]) Delete(addr guest.GVA) {
	if x.Find(addr) == nil {
		return
	}
	x.table.Load().find(addr).thing.Store(nil)
	x.n--
}

// Clear removes everything.
func (x *Index[V]) Clear() {
	x.table.Store(nil)
	x.n, x.taken = 0, 0
}

// All yields all values, in no particular order. Values may be removed during the
// iteration.
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

// Range yields the values from lo on and below hi, in no particular order. Any
// goroutine may call it: concurrent changes may or may not be included.
func (x *Index[V]) Range(lo, hi guest.GVA) iter.Seq2[guest.GVA, *V] {
	return func(yield func(guest.GVA, *V) bool) {
		t := x.table.Load()
		if t == nil {
			return
		}
		if hi-lo < guest.GVA(len(t.entries)) {
			for a := lo; a != hi; a++ {
				if v := x.Find(a); v != nil && !yield(a, v) {
					return
				}
			}
			return
		}
		for a, v := range x.All() {
			if a != 0 && a-lo < hi-lo && !yield(a, v) {
				return
			}
		}
	}
}

// grow rebuilds the table, with room for twice the number of values.
func (x *Index[V]) grow() {
	log := uint(bits.Len(uint(max(4*x.n, 8) - 1)))
	t := &indexTable[V]{entries: make([]indexEntry[V], 1<<log), shift: 64 - log}
	for addr, v := range x.All() {
		e := t.find(addr)
		e.addr.Store(uint64(addr))
		e.thing.Store(v)
	}
	x.table.Store(t)
	x.taken = x.n
}
