package machine

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
)

// sharedMemory is what host and guest share, for code of CPL0 and of CPL3: not
// executable, and writable by either. What is handed out stays so over a reset.
type sharedMemory struct {
	mu    sync.Mutex
	areas [2]guest.Area // by guest.Level
	free  [2]guest.FreeSpace
	top   [2]guest.GVA         // behind it is what was never handed out, and so is all zeros
	held  map[guest.GVA]uint64 // bytes, by address
}

// reset is for the areas of a booted guest. Where an area has moved, because the guest
// has another image, what was handed out of it is nobody's any more.
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

// AllocShared implements probe.Detours: it returns size bytes of memory that host and
// guest share, zeros, aligned to 64 bytes, writable, and never executable. With user they
// are for code of CPL3, otherwise only code of CPL0 reaches them: what that relies on must
// not be within reach of CPL3, and what is of CPL3 it must not touch where the
// guest has set CR4.SMAP. The host's view stays valid until Close. A reset zeroes the
// memory, and nothing else; but with an image that leaves other addresses free than the
// one before, what was allocated must not be used after. There are 64 MiB of each. Any
// goroutine.
//
// The guest can write there at any time: what the host reads is not to be
// trusted. Errors: ErrClosed, and *outOfDataError.
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
		return 0, nil, &outOfDataError{Size: size, Left: s.free[k].Largest()}
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

// FreeShared gives back what AllocShared returned at addr. Nobody uses it any more, in
// the guest or on the host. What is not held there is left alone. Any goroutine.
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

// SharedAt returns where the shared memory of code of CPL3, or of CPL0, begins, which only
// a reset with another image changes: what was allocated before is then gone. Any
// goroutine.
func (m *Machine) SharedAt(user bool) guest.GVA {
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	return m.shared.areas[guest.Level(user)].GVA
}

// sharedHeld reports whether something of AllocShared's has not been given back.
func (m *Machine) sharedHeld() bool {
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	return len(m.shared.held) > 0
}

// SharedLeft returns how many bytes AllocShared has left for code of CPL3, or of CPL0. Any
// goroutine.
func (m *Machine) SharedLeft(user bool) uint64 {
	m.shared.mu.Lock()
	defer m.shared.mu.Unlock()
	return m.shared.free[guest.Level(user)].Left()
}

// outOfDataError says that there is no room for what host and guest share.
type outOfDataError struct {
	Size int    // bytes asked for
	Left uint64 // the most bytes that there are in one piece
}

// Error says how much is left, and what to do.
func (e *outOfDataError) Error() string {
	return fmt.Sprintf("%d bytes of memory shared with the guest: %d are left in one piece (make maps and rings smaller): ENOMEM", e.Size, e.Left)
}

// Unwrap returns ENOMEM.
func (e *outOfDataError) Unwrap() error { return unix.ENOMEM }
