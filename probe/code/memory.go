package code

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// Target is the guest that the memory belongs to; see probe.Target and probe.Detours.
type Target interface {
	AllocExec(near guest.GVA, size int) (guest.GVA, error)
	WriteExec(addr guest.GVA, p []byte) error
}

// mapper is an optional interface of a Target with executable memory at any address.
type mapper interface {
	MapExec(near, addr guest.GVA, n int) error
}

// Geometry. Each piece begins at a line of its own, so that a processor that fetches
// the piece before it does not see it being written.
const (
	line = 32 // bytes

	chunk    = 16 << 10 // the usual size of an allocation
	chunkMin = 4 << 10  // the size if that is not available
)

// Errors of Put and PutAt.
var (
	// ErrNoMemory: there is no executable memory near the text that needs it.
	ErrNoMemory = errors.New("no executable memory")
	// ErrReach: a displacement does not fit from the available memory.
	ErrReach = errors.New("displacement out of range")
	// ErrTaken: the address is in use, or something else is mapped there.
	ErrTaken = errors.New("the address is taken")
)

// Memory is executable guest memory in which each piece has a resident of type R: the
// owner of the bytes. Lookups take no lock, allocate nothing, and may be made at any
// time; changes are made by one goroutine at a time.
type Memory[R comparable] struct {
	target Target
	mapper mapper // nil: the target has none
	pages  Index[page[R]]
	levels [2]level      // by guest.Level
	held   map[R][]Range // ranges of each resident
	used   atomic.Int64  // bytes of all residents
}

// level is the memory of one privilege.
type level struct {
	free   guest.FreeSpace    // of the chunks
	mapped []guest.GVA        // pages, by PutAt
	bad    map[guest.GVA]bool // pages that could not be mapped
}

// page is one page of executable memory.
type page[R any] struct {
	user   bool
	mapped bool                       // for PutAt
	lent   bool                       // of the guest's own text
	pieces atomic.Pointer[[]piece[R]] // that reach into it, ascending; replaced as a whole
}

// Range is [Start, End).
type Range struct{ Start, End guest.GVA }

// piece is a range of a resident.
type piece[R any] struct {
	Range
	resident R
}

// New returns memory of t.
func New[R comparable](t Target) *Memory[R] {
	m := &Memory[R]{target: t}
	m.mapper, _ = t.(mapper)
	m.Forget()
	return m
}

// Forget discards everything: the guest was reset.
func (m *Memory[R]) Forget() {
	m.pages.Clear()
	m.held = map[R][]Range{}
	m.used.Store(0)
	for i := range m.levels {
		m.levels[i] = level{free: guest.FreeSpace{Late: true}}
	}
}

// pageOf returns the address of the page that contains a.
func pageOf(a guest.GVA) guest.GVA { return a &^ (guest.PageSize - 1) }

// ResidentAt returns the resident of the piece that contains a, or the zero R.
func (m *Memory[R]) ResidentAt(a guest.GVA) (r R) {
	p := m.pages.Find(pageOf(a))
	if p == nil {
		return r
	}
	list := *p.pieces.Load()
	if i := search(list, a); i < len(list) && list[i].Start <= a {
		return list[i].resident
	}
	return r
}

// search returns the index in list of the first piece that ends after a.
func search[R any](list []piece[R], a guest.GVA) int {
	lo, hi := 0, len(list)
	for lo < hi {
		if m := int(uint(lo+hi) >> 1); list[m].End <= a {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo
}

// Owns reports whether a is in executable memory of the engine, and whether that is
// for code of CPL3.
func (m *Memory[R]) Owns(a guest.GVA) (user, ok bool) {
	if p := m.pages.Find(pageOf(a)); p != nil && !p.lent {
		return p.user, true
	}
	return false, false
}

// Put makes r the resident of new code near the text at near. build returns the code
// for a given address. build may be called several times; its last result is the
// code. near and user must agree about the privilege. Errors: any of build's,
// ErrReach, and errors that wrap ErrNoMemory.
func (m *Memory[R]) Put(near guest.GVA, user bool, r R, build func(at guest.GVA) ([]byte, error)) error {
	l := &m.levels[guest.Level(user)]
	for n := line; ; {
		find := func() (uint64, bool) {
			return l.free.Find(uint64(n), line, func(a uint64) bool { return reaches(guest.GVA(a), near, n) })
		}
		a, ok := find()
		if !ok {
			if err := m.grow(l, near, user, n); err != nil {
				return err
			}
			if a, ok = find(); !ok {
				return ErrReach
			}
		}
		at := guest.GVA(a)
		code, err := build(at)
		if err != nil {
			return err
		}
		if size := (len(code) + line - 1) &^ (line - 1); size > n {
			n = size
			continue
		}
		if err := m.target.WriteExec(at, code); err != nil {
			return fmt.Errorf("%w: %w", ErrNoMemory, err)
		}
		l.free.Take(a, uint64(n))
		m.add(piece[R]{Range{at, at + guest.GVA(n)}, r})
		return nil
	}
}

// reaches reports whether jumps between the n bytes at a and near are possible, in
// both directions (SDM Vol. 2, JMP: rel32; arithmetic modulo 2^64).
func reaches(a, near guest.GVA, n int) bool {
	const reach = 1<<31 - guest.PageSize
	lo, hi := int64(a-near), int64(a-near)+int64(n)
	return lo > -reach && hi < reach
}

// grow requests a chunk with room for n bytes from the target.
func (m *Memory[R]) grow(l *level, near guest.GVA, user bool, n int) error {
	up := func(size int) int { return (n + size - 1) &^ (size - 1) }
	size := up(chunk)
	base, err := m.target.AllocExec(near, size)
	if err != nil {
		size = up(chunkMin)
		if base, err = m.target.AllocExec(near, size); err != nil {
			return fmt.Errorf("%w near %v: %w", ErrNoMemory, near, err)
		}
	}
	for a := pageOf(base); a < base+guest.GVA(size); a += guest.PageSize {
		if m.pages.Find(a) == nil {
			m.pages.Set(a, newPage[R](user))
		}
	}
	l.free.Add(uint64(base), uint64(size))
	return nil
}

func newPage[R any](user bool) *page[R] {
	p := &page[R]{user: user}
	p.pieces.Store(new([]piece[R]))
	return p
}

// PutAt makes r the resident of code at a given address, within reach of its text at
// near. Code that crosses a page is rejected. Errors wrap ErrTaken or ErrNoMemory.
func (m *Memory[R]) PutAt(at, near guest.GVA, user bool, r R, code []byte) error {
	base, end := pageOf(at), at+guest.GVA(len(code))
	if m.mapper == nil || pageOf(end-1) != base || !at.Canonical() {
		return ErrTaken
	}
	p := m.pages.Find(base)
	if p == nil {
		l := &m.levels[guest.Level(user)]
		if l.bad[base] {
			return ErrTaken
		}
		if err := m.mapper.MapExec(near, at, len(code)); err != nil {
			if l.bad == nil {
				l.bad = map[guest.GVA]bool{}
			}
			l.bad[base] = true
			return fmt.Errorf("%w: %w", ErrTaken, err)
		}
		p = newPage[R](user)
		p.mapped = true
		m.pages.Set(base, p)
		l.mapped = append(l.mapped, base)
	}
	list := *p.pieces.Load()
	if i := search(list, at); !p.mapped || p.user != user || i < len(list) && list[i].Start < end {
		return ErrTaken
	}
	if err := m.target.WriteExec(at, code); err != nil {
		return fmt.Errorf("%w: %w", ErrNoMemory, err)
	}
	m.add(piece[R]{Range{at, end}, r})
	return nil
}

// Lend makes r the resident of the byte at each of the addresses, in text of the
// guest's that is never executed: the bytes remain the guest's, and are not changed.
func (m *Memory[R]) Lend(at []guest.GVA, r R) {
	for _, a := range at {
		if m.pages.Find(pageOf(a)) == nil {
			p := newPage[R](false)
			p.lent = true
			m.pages.Set(pageOf(a), p)
		}
		m.add(piece[R]{Range{a, a + 1}, r})
	}
}

// MappedPages returns the pages that PutAt has mapped for a privilege. They must not
// be changed.
func (m *Memory[R]) MappedPages(user bool) []guest.GVA { return m.levels[guest.Level(user)].mapped }

// Bounds returns a range for each privilege that contains all addresses of residents,
// and possibly others; an empty one if there is no resident. The index is
// guest.Level; lent bytes count for the level of their text.
func (m *Memory[R]) Bounds() (b [2]Range) {
	for at, p := range m.pages.All() {
		x := &b[guest.Level(p.user)]
		if x.End == 0 {
			x.Start = at
		}
		x.Start, x.End = min(x.Start, at), max(x.End, at+guest.PageSize)
	}
	return b
}

// add makes x visible to lookups. It is complete in guest memory, and no text leads
// to it yet.
func (m *Memory[R]) add(x piece[R]) {
	m.held[x.resident] = append(m.held[x.resident], x.Range)
	m.used.Add(int64(x.End - x.Start))
	for a := pageOf(x.Start); a < x.End; a += guest.PageSize {
		p := m.pages.Find(a)
		list := *p.pieces.Load()
		list = slices.Insert(slices.Clone(list), search(list, x.Start), x)
		p.pieces.Store(&list)
	}
}

// UsedBytes returns the number of bytes of all residents. It may be called at any
// time.
func (m *Memory[R]) UsedBytes() int { return int(m.used.Load()) }

// Residents returns all residents, with their ranges.
func (m *Memory[R]) Residents() iter.Seq2[R, []Range] { return maps.All(m.held) }

// Remove frees all memory of r for reuse. Nothing in the guest may lead there, and no
// vCPU or task may be there.
func (m *Memory[R]) Remove(r R) error {
	var errs []error
	for _, x := range m.held[r] {
		m.used.Add(-int64(x.End - x.Start))
		var p *page[R]
		for a := pageOf(x.Start); a < x.End; a += guest.PageSize {
			p = m.pages.Find(a)
			list := *p.pieces.Load()
			i := search(list, x.Start)
			list = slices.Delete(slices.Clone(list), i, i+1)
			p.pieces.Store(&list)
		}
		if p.lent {
			continue
		}
		// A context that gets there nevertheless must not run the remains.
		n := int(x.End - x.Start)
		errs = append(errs, m.target.WriteExec(x.Start, bytes.Repeat([]byte{x86.Int3}, n)))
		if !p.mapped {
			m.levels[guest.Level(p.user)].free.Add(uint64(x.Start), uint64(n))
		}
	}
	delete(m.held, r)
	return errors.Join(errs...)
}
