package program

import (
	"errors"
	"fmt"
	"sync"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// Shared allocates and frees memory that host and guest share. *machine.Machine
// implements it; see there.
type Shared interface {
	AllocShared(size int, user bool) (guest.GVA, []byte, error)
	FreeShared(addr guest.GVA)
	SharedBase(user bool) guest.GVA
}

// arena is a bpf.Memory of shared memory for one privilege.
type arena struct {
	shared Shared
	engine *probe.Engine
	user   bool

	mu   sync.Mutex
	at   guest.GVA // address of the memory
	held int       // pieces that were allocated and not freed
}

var errNoShared = errors.New("this guest has no memory that host and guest share")

// Alloc implements bpf.Memory. Memory that code in the guest refers to is freed by a
// collection, so Alloc tries one when it finds no room.
func (a *arena) Alloc(size int) (bpf.Area, error) {
	if a.shared == nil {
		return bpf.Area{}, errNoShared
	}
	addr, b, err := a.shared.AllocShared(size, a.user)
	if errors.Is(err, syscall.ENOMEM) && a.engine != nil && a.engine.Collect() == nil {
		addr, b, err = a.shared.AllocShared(size, a.user)
	}
	if err == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.at = a.shared.SharedBase(a.user)
		a.held++
	}
	return bpf.Area{Bytes: b, Addr: uint64(addr)}, err
}

// checkPlace returns an error if a reset, with another image, has moved the memory:
// compiled code contains the old addresses.
func (a *arena) checkPlace() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == 0 {
		return nil
	}
	if now := a.shared.SharedBase(a.user); now != a.at {
		return fmt.Errorf("shared memory after a reset is at %v, and was at %v", now, a.at)
	}
	return nil
}

// Free implements bpf.Memory. No code in the guest may use the memory any more.
func (a *arena) Free(p bpf.Area) {
	a.shared.FreeShared(guest.GVA(p.Addr))
	a.mu.Lock()
	defer a.mu.Unlock()
	a.held--
}

// planned is memory with addresses that are never accessed: programs are compiled in
// it to learn whether they can run in the guest.
type planned struct{ next uint64 }

func (m *planned) Alloc(size int) (bpf.Area, error) {
	p, err := bpf.Heap{}.Alloc(size)
	m.next += 64
	p.Addr = m.next
	return p, err
}

func (m *planned) Free(bpf.Area) {}
