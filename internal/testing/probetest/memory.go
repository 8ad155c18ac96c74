package probetest

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// region is one mapped piece of the fake's virtual memory. There are no page
// tables: every address space is the same.
type region struct {
	base  guest.GVA
	data  []byte
	write bool
	exec  bool
	user  bool
	slots bool // engine memory

	words []atomic.Uint64 // of memory that the host shares
}

// memory is the fake's virtual memory. Regions are added at any time; lookups
// take no lock.
type memory struct {
	regions atomic.Pointer[[]*region] // ascending by base
	order   accesses
}

func newMemory() *memory {
	m := &memory{}
	m.regions.Store(new([]*region))
	return m
}

// add maps r. Callers do not add concurrently.
func (m *memory) add(r *region) {
	list := append(slices.Clone(*m.regions.Load()), r)
	slices.SortFunc(list, func(a, b *region) int { return cmp.Compare(a.base, b.base) })
	m.regions.Store(&list)
}

// remove unmaps r.
func (m *memory) remove(r *region) {
	list := slices.Clone(*m.regions.Load())
	list = slices.Delete(list, slices.Index(list, r), slices.Index(list, r)+1)
	m.regions.Store(&list)
}

// grow maps n more bytes at the end of r, which has room for them.
func (m *memory) grow(r *region, n int) {
	longer := *r
	longer.data = r.data[:len(r.data)+n]
	list := slices.Clone(*m.regions.Load())
	list[slices.Index(list, m.find(r.base))] = &longer
	m.regions.Store(&list)
}

// find returns the region that holds addr, or nil.
func (m *memory) find(addr guest.GVA) *region {
	list := *m.regions.Load()
	lo, hi := 0, len(list)
	for lo < hi {
		if mid := int(uint(lo+hi) >> 1); list[mid].base <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	if r := list[lo-1]; uint64(addr-r.base) < uint64(len(r.data)) {
		return r
	}
	return nil
}

// mode is the kind of an access.
type mode struct {
	write, exec, user, poke bool
}

// span returns the bytes at addr, n of them, or a *guest.PageFaultError. No
// access crosses regions: the fake's layout has gaps between them.
func (m *memory) span(addr guest.GVA, n int, a mode) ([]byte, error) {
	r := m.find(addr)
	var why guest.FaultReason
	switch {
	case !addr.Canonical():
		why = guest.FaultNonCanonical
	case r == nil:
		why = guest.FaultNotPresent
	case a.user && !r.user:
		why = guest.FaultNotUser
	case a.write && !r.write && !a.poke:
		why = guest.FaultNotWritable
	case a.exec && !r.exec:
		why = guest.FaultNotPresent
	}
	if why != 0 {
		return nil, &guest.PageFaultError{VA: addr, Level: 1, Reason: why}
	}
	off := uint64(addr - r.base)
	if uint64(len(r.data))-off < uint64(n) {
		return nil, &guest.PageFaultError{VA: r.base + guest.GVA(len(r.data)), Level: 1, Reason: guest.FaultNotPresent}
	}
	return r.data[off : off+uint64(n)], nil
}

// fetch returns up to 15 bytes of code at addr. From the engine's memory it
// returns only bytes of one 32-byte line, unless across is set: a registration
// may be writing the next line.
func (m *memory) fetch(addr guest.GVA, user, across bool) ([]byte, error) {
	r := m.find(addr)
	if r == nil || !r.exec || user && !r.user {
		return nil, &guest.PageFaultError{VA: addr, Level: 1, Reason: guest.FaultNotPresent}
	}
	off := uint64(addr - r.base)
	n := min(15, uint64(len(r.data))-off)
	if r.slots && !across {
		n = min(n, 32-off%32)
	}
	return r.data[off : off+n], nil
}

func (m *memory) read(addr guest.GVA, p []byte, a mode) error {
	b, err := m.span(addr, len(p), a)
	if err == nil {
		m.order.lock(addr)
		copy(p, b)
		m.order.unlock(addr)
	}
	return err
}

func (m *memory) write(addr guest.GVA, p []byte, a mode) error {
	a.write = true
	b, err := m.span(addr, len(p), a)
	if err == nil {
		m.order.lock(addr)
		copy(b, p)
		m.order.unlock(addr)
	}
	return err
}

// load reads a little-endian value of 1, 2, 4 or 8 bytes.
func (m *memory) load(addr guest.GVA, size int, a mode) (uint64, error) {
	b, err := m.span(addr, size, a)
	if err != nil {
		return 0, err
	}
	if size == 8 && addr%8 == 0 {
		if r := m.find(addr); r.words != nil {
			return r.words[(addr-r.base)/8].Load(), nil
		}
	}
	m.order.lock(addr)
	defer m.order.unlock(addr)
	switch size {
	case 1:
		return uint64(b[0]), nil
	case 2:
		return uint64(binary.LittleEndian.Uint16(b)), nil
	case 4:
		return uint64(binary.LittleEndian.Uint32(b)), nil
	default:
		return binary.LittleEndian.Uint64(b), nil
	}
}

// store writes a little-endian value of 1, 2, 4 or 8 bytes.
func (m *memory) store(addr guest.GVA, size int, v uint64, a mode) error {
	a.write = true
	b, err := m.span(addr, size, a)
	if err != nil {
		return err
	}
	if size == 8 && addr%8 == 0 {
		if r := m.find(addr); r.words != nil {
			r.words[(addr-r.base)/8].Store(v)
			return nil
		}
	}
	m.order.lock(addr)
	defer m.order.unlock(addr)
	switch size {
	case 1:
		b[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(b, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(b, uint32(v))
	default:
		binary.LittleEndian.PutUint64(b, v)
	}
	return nil
}

// patch replaces old by new, as guest.Text.Patch does.
func (m *memory) patch(addr guest.GVA, old, new []byte) error {
	b, err := m.span(addr, len(old), mode{poke: true})
	if err != nil {
		return err
	}
	if !bytes.Equal(b, old) {
		return &guest.TextMismatchError{Addr: addr, Want: bytes.Clone(old), Got: bytes.Clone(b)}
	}
	copy(b, new)
	return nil
}
