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

// Shared gives out memory that host and guest share, and takes it back.
// *machine.Machine has it; see there.
type Shared interface {
	AllocShared(size int, user bool) (guest.GVA, []byte, error)
	FreeShared(addr guest.GVA)
	SharedAt(user bool) guest.GVA
}

// arena is a bpf.Memory of shared memory for one privilege.
type arena struct {
	shared Shared
	engine *probe.Engine
	user   bool

	mu   sync.Mutex
	at   guest.GVA // where the memory is
	held int       // pieces that were allocated and not freed
}

var errNoShared = errors.New("this guest has no memory that host and guest share")

// Alloc implements bpf.Memory. What code in the guest refers to comes back by a
// collection, so when there is nothing left one is worth a try.
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
		a.at = a.shared.SharedAt(a.user)
		a.held++
	}
	return bpf.Area{Bytes: b, Addr: uint64(addr)}, err
}

// moved returns an error if the memory is elsewhere behind a reset, with another image:
// the old addresses stand in compiled code.
func (a *arena) moved() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held == 0 {
		return nil
	}
	if now := a.shared.SharedAt(a.user); now != a.at {
		return fmt.Errorf("shared memory behind a reset is at %v, and was at %v", now, a.at)
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
