package machine

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// AllocShared implements probe.Detours: it is AllocData from the other end of the
// memory, so that what the engine takes moves nobody else's.
func (m target) AllocShared(size int, user bool) (guest.GVA, []byte, error) {
	m.memory.RLock()
	defer m.memory.RUnlock()
	if m.freed {
		return 0, nil, fmt.Errorf("allocate shared memory: %w", ErrClosed)
	}
	m.exec.mu.Lock()
	defer m.exec.mu.Unlock()
	d := &m.exec.kernelData
	if user {
		d = &m.exec.userData
	}
	n := (uint64(size) + allocAlign - 1) &^ (allocAlign - 1)
	if size <= 0 || n > d.Size-d.used {
		return 0, nil, &outOfDataError{Size: size, Left: d.Size - d.used}
	}
	b, err := m.mem.Slice(d.GPA+guest.GPA(d.Size-n), int(n))
	if err != nil {
		return 0, nil, fmt.Errorf("allocate shared memory: %w", err)
	}
	d.Size -= n
	return d.GVA + guest.GVA(d.Size), b[:size:n], nil
}
