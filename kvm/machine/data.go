package machine

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"golang.org/x/sys/unix"
)

// AllocData returns size bytes of memory that host and guest share: zeros,
// aligned to 64 bytes, writable, and never executable. With user they are for
// code of CPL3, otherwise only code of CPL0 reaches them: what that relies on must
// not be within reach of CPL3, and what is of CPL3 it must not touch where the
// guest has set CR4.SMAP. The host's view stays valid until Close; a reset takes the
// memory back and zeroes it, so what was allocated before must not be used
// after. There are 64 MiB of each; it is not given back otherwise. Any goroutine.
//
// The guest can write there at any time: what the host reads is not to be
// trusted. Errors: ErrClosed, and *outOfDataError.
func (m *Machine) AllocData(size int, user bool) (guest.GVA, []byte, error) {
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return 0, nil, fmt.Errorf("allocate shared memory: %w", ErrClosed)
	}
	m.exec.mu.Lock()
	defer m.exec.mu.Unlock()
	d := m.exec.dataFor(user)
	n := (uint64(size) + allocAlign - 1) &^ (allocAlign - 1)
	if size <= 0 || n > d.Size-d.used {
		return 0, nil, &outOfDataError{Size: size, Left: d.Size - d.used}
	}
	b, err := m.mem.Slice(d.GPA+guest.GPA(d.used), int(n))
	if err != nil {
		return 0, nil, fmt.Errorf("allocate shared memory: %w", err)
	}
	a := d.GVA + guest.GVA(d.used)
	d.used += n
	return a, b[:size:n], nil
}

// outOfDataError says that there is no room for what host and guest share.
type outOfDataError struct {
	Size int    // bytes asked for
	Left uint64 // bytes that there are
}

// Error says how much is left, and what to do.
func (e *outOfDataError) Error() string {
	return fmt.Sprintf("%d bytes of memory shared with the guest: %d are left (make maps and rings smaller, or reset the guest): ENOMEM", e.Size, e.Left)
}

// Unwrap returns ENOMEM.
func (e *outOfDataError) Unwrap() error { return unix.ENOMEM }
