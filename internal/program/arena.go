package program

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Shared gives out memory that host and guest share. *machine.Machine has it;
// see there.
type Shared interface {
	AllocData(size int, user bool) (guest.GVA, []byte, error)
}

// arena is a bpf.Memory of shared memory for one privilege. What is given back is
// used again for something of the same size.
type arena struct {
	shared Shared
	user   bool

	mu     sync.Mutex
	pieces []bpf.Area         // all that there are, in the order of their allocation
	free   map[int][]bpf.Area // by size
}

var errNoShared = errors.New("this guest has no memory that host and guest share")

// Alloc implements bpf.Memory.
func (a *arena) Alloc(size int) (bpf.Area, error) {
	size = (size + 63) &^ 63
	a.mu.Lock()
	defer a.mu.Unlock()
	if f := a.free[size]; len(f) > 0 {
		p := f[len(f)-1]
		a.free[size] = f[:len(f)-1]
		clear(p.Bytes)
		return p, nil
	}
	if a.shared == nil {
		return bpf.Area{}, errNoShared
	}
	addr, b, err := a.shared.AllocData(size, a.user)
	if err != nil {
		return bpf.Area{}, err
	}
	p := bpf.Area{Bytes: b, Addr: uint64(addr)}
	a.pieces = append(a.pieces, p)
	return p, nil
}

// Free implements bpf.Memory. No code in the guest may use the memory any more.
func (a *arena) Free(p bpf.Area) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.free == nil {
		a.free = map[int][]bpf.Area{}
	}
	// The owner may have made the slice shorter.
	i := slices.IndexFunc(a.pieces, func(q bpf.Area) bool { return q.Addr == p.Addr })
	p = a.pieces[i]
	a.free[len(p.Bytes)] = append(a.free[len(p.Bytes)], p)
}

// again allocates everything once more, behind a reset, which has taken it all
// back. The addresses stand in compiled code, so they must be the same.
func (a *arena) again() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.pieces {
		addr, b, err := a.shared.AllocData(len(p.Bytes), a.user)
		if err != nil {
			return fmt.Errorf("shared memory behind a reset: %w", err)
		}
		if uint64(addr) != p.Addr || &b[0] != &p.Bytes[0] {
			return fmt.Errorf("shared memory behind a reset: it is at %v, and was at %v", addr, guest.GVA(p.Addr))
		}
	}
	return nil
}

// planned is memory with addresses that nothing ever uses: programs are
// compiled in it to learn whether they can run in the guest.
type planned struct{ next uint64 }

func (m *planned) Alloc(size int) (bpf.Area, error) {
	p, err := bpf.Heap{}.Alloc(size)
	m.next += 64
	p.Addr = m.next
	return p, err
}

func (m *planned) Free(bpf.Area) {}
