package machine

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// sharedMemory is the memory that host and guest share, for code of CPL0 and of
// CPL3. It is not executable, and both may write to it. Allocations survive a
// reset.
type sharedMemory struct {
	mu    sync.Mutex
	areas [2]guest.Area // by guest.Level
	free  [2]guest.FreeSpace
	top   [2]guest.GVA         // everything from here on was never allocated, and so is all zeros
	held  map[guest.GVA]uint64 // bytes, by address
}

// reset takes over the areas of a booted guest. If an area has moved, because
// the guest has another image, its allocations end.
func (s *sharedMemory) reset(b *guest.BootState) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held == nil {
		s.held = map[guest.GVA]uint64{}
	}
	for i, a := range [2]guest.Area{b.KernelData, b.UserData} {
		if s.areas[i] == a {
			continue
		}
		for at := range s.held {
			if at-s.areas[i].GVA < guest.GVA(s.areas[i].Size) {
				delete(s.held, at)
			}
		}
		s.areas[i], s.free[i], s.top[i] = a, guest.FreeSpace{}, a.GVA
		s.free[i].Add(uint64(a.GVA), a.Size)
	}
}

// AllocShared implements probe.Detours: it returns size bytes of memory that
// host and guest share, zeroed, aligned to 64 bytes, writable, and never
// executable. With user they are for code of CPL3. Otherwise only code of CPL0
// reaches them. Code of CPL0 must not rely on memory that CPL3 can reach, and
// must not touch memory of CPL3 where the guest has set CR4.SMAP. The host's
// view stays valid until Close. A reset only zeroes the memory. But with an
// image that leaves other addresses free than the one before, earlier
// allocations must not be used. There are 64 MiB of each. Any goroutine.
//
// The guest can write there at any time, so the host must not trust what it
// reads. Errors: ErrClosed, and *outOfDataError.
func (m *Machine) AllocShared(size int, user bool) (guest.GVA, []byte, error) {
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return 0, nil, fmt.Errorf("allocate shared memory: %w", ErrClosed)
	}
	s := &m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	k := guest.Level(user)
	n := (uint64(size) + allocAlign - 1) &^ (allocAlign - 1)
	a, ok := s.free[k].Find(n, allocAlign, nil)
	if size <= 0 || !ok {
		return 0, nil, &outOfDataError{Size: size, Left: s.free[k].LargestRun()}
	}
	at := guest.GVA(a)
	b, err := m.mem.Slice(s.areas[k].GPA+guest.GPA(at-s.areas[k].GVA), int(n))
	if err != nil {
		return 0, nil, fmt.Errorf("allocate shared memory: %w", err)
	}
	s.free[k].Take(a, n)
	s.held[at] = n
	if at < s.top[k] {
		clear(b)
	}
	s.top[k] = max(s.top[k], at+guest.GVA(n))
	return at, b[:size:n], nil
}

// FreeShared frees the memory that AllocShared returned at addr. Neither guest
// nor host may use it any more. If there is no such allocation, FreeShared does
// nothing. Any goroutine.
func (m *Machine) FreeShared(addr guest.GVA) {
	s := &m.shared
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.held[addr]
	delete(s.held, addr)
	for i, a := range s.areas {
		if addr-a.GVA < guest.GVA(a.Size) {
			s.free[i].Add(uint64(addr), n)
		}
	}
}

// SharedBase returns where the shared memory of code of CPL3, or of CPL0,
// begins. Only a reset with another image changes it; earlier allocations are
// gone then. Any goroutine.
func (m *Machine) SharedBase(user bool) guest.GVA {
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	return m.shared.areas[guest.Level(user)].GVA
}

// sharedHeld reports whether an allocation of AllocShared has not been freed.
func (g *guestMemory) sharedHeld() bool {
	g.shared.mu.Lock()
	defer g.shared.mu.Unlock()
	return len(g.shared.held) > 0
}

// SharedFree returns how many bytes AllocShared has left for code of CPL3, or of CPL0. Any
// goroutine.
func (m *Machine) SharedFree(user bool) uint64 {
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	return m.shared.free[guest.Level(user)].FreeBytes()
}

// outOfDataError says that there is no room in the shared memory.
type outOfDataError struct {
	Size int    // bytes asked for
	Left uint64 // the size of the largest free piece
}

// Error returns how much is left, and what to do.
func (e *outOfDataError) Error() string {
	return fmt.Sprintf("%d bytes of memory shared with the guest: %d are left in one piece (make maps and rings smaller): ENOMEM", e.Size, e.Left)
}

// Unwrap returns ENOMEM.
func (e *outOfDataError) Unwrap() error { return unix.ENOMEM }
