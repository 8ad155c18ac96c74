package guest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
)

// PageSize is the size in bytes of the smallest x86 page.
const PageSize = 4096

// ErrNoMemory is returned for a physical range that is not within one region of the
// guest's memory.
var ErrNoMemory = errors.New("no guest memory there")

// Region is one contiguous range of guest physical memory and the host bytes that
// back it. The guest may change the bytes at any time while it runs.
type Region struct {
	Base  GPA
	Bytes []byte
	Name  string // for messages: "ram", "loader"

	// Fetch is nil, or brings the n bytes at off into Bytes before they are used,
	// for memory of which Bytes is a copy. It returns false if they cannot be had;
	// then the guest has no memory there. Any goroutine may call it.
	Fetch func(off, n uint64) bool
}

// Memory is the guest's physical memory: a few disjoint regions. The zero value is
// empty. Reading the regions takes no lock, so that a vCPU's thread can do it in the
// middle of a hit; Add may run at the same time.
type Memory struct {
	mu      sync.Mutex // serializes Add
	regions atomic.Pointer[[]Region]
}

// Add makes bytes the guest's memory at base. Base and length are whole pages,
// and the region lies below 2^52, the largest physical address of the
// architecture (SDM Vol. 3, 4.1.4); an overlap with another region is an error.
// The caller keeps bytes mapped for as long as m is used.
func (m *Memory) Add(base GPA, bytes []byte, name string) error {
	return m.AddRegion(Region{Base: base, Bytes: bytes, Name: name})
}

// AddRegion is Add for a region that may have a Fetch.
func (m *Memory) AddRegion(add Region) error {
	base, bytes, name := add.Base, add.Bytes, add.Name
	size := uint64(len(bytes))
	switch {
	case size == 0:
		return fmt.Errorf("add memory %q at %v: no bytes", name, base)
	case uint64(base)%PageSize != 0 || size%PageSize != 0:
		return fmt.Errorf("add memory %q at %v: %d bytes: base and size must be multiples of %d", name, base, size, PageSize)
	case uint64(base) >= maxPhys || size > maxPhys-uint64(base):
		return fmt.Errorf("add memory %q at %v: %d bytes reach beyond physical address 2^52", name, base, size)
	case !aligned8(bytes):
		return fmt.Errorf("add memory %q at %v: host bytes are not 8-byte aligned", name, base)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	old := m.Regions()
	for _, r := range old {
		if uint64(base) < uint64(r.Base)+uint64(len(r.Bytes)) && uint64(r.Base) < uint64(base)+size {
			return fmt.Errorf("add memory %q at %v: %d bytes overlap %q at %v", name, base, size, r.Name, r.Base)
		}
	}
	regions := make([]Region, 0, len(old)+1)
	regions = append(regions, old...)
	regions = append(regions, add)
	m.regions.Store(&regions)
	return nil
}

// Regions returns the regions in the order they were added. The slice must not
// be changed.
func (m *Memory) Regions() []Region {
	if p := m.regions.Load(); p != nil {
		return *p
	}
	return nil
}

// Slice returns the host bytes of the n bytes at pa. They lie in one region,
// or the error wraps ErrNoMemory.
func (m *Memory) Slice(pa GPA, n int) ([]byte, error) {
	if n >= 0 {
		if b := hostBytes(m.Regions(), pa, uint64(n)); b != nil {
			return b, nil
		}
	}
	return nil, fmt.Errorf("guest memory %v, %d bytes: %w", pa, n, ErrNoMemory)
}

// hostBytes returns the n host bytes at pa, or nil if no region has them all. There
// are a handful of regions and the guest's RAM comes first, so a linear search is
// fast.
func hostBytes(regions []Region, pa GPA, n uint64) []byte {
	for i := range regions {
		r := &regions[i]
		off, size := uint64(pa)-uint64(r.Base), uint64(len(r.Bytes))
		if off < size {
			if n > size-off || r.Fetch != nil && !r.Fetch(off, n) {
				return nil
			}
			return r.Bytes[off : off+n : off+n]
		}
	}
	return nil
}
