package probe

import (
	"fmt"
	"sync"

	"github.com/guestprobe/guestprobe/guest"
)

// walkers counts the users of the walks.
type walkers struct {
	mu    sync.Mutex
	users int
}

// HoldWalks has walks of the kernel's stacks happen in the guest, for one more user
// whose Stages at addr ask for them. It returns where the addresses for vCPU 0 are, after
// their number in 8 bytes, and how far away the next vCPU's are. The user calls
// ReleaseWalks when the stages are unused (NotifyUnused). The error says why there are
// no walks.
func (e *Engine) HoldWalks(addr guest.GVA) (at guest.GVA, stride int, err error) {
	if err := e.CanWalk(); err != nil {
		return 0, 0, err
	}
	if _, err := e.firstRule(addr); err != nil {
		return 0, 0, err
	}
	e.walkers.mu.Lock()
	defer e.walkers.mu.Unlock()
	w := e.walks.Load()
	if w == nil {
		table := len(e.cpus) * walkStride
		at, b, err := e.opt.placer.AllocShared(table+8*walkBuckets*walkBucket, false)
		if err != nil {
			return 0, 0, fmt.Errorf("memory for walks of stacks: %w", err)
		}
		w = &walks{at: at, tableAt: at + guest.GVA(table), table: guest.AtomicWords(b[table:])}
		e.walks.Store(w)
	}
	e.walkers.users++
	return w.at + walkCount, walkStride, nil
}

// ReleaseWalks is the opposite of HoldWalks.
func (e *Engine) ReleaseWalks() {
	e.walkers.mu.Lock()
	defer e.walkers.mu.Unlock()
	if e.walkers.users--; e.walkers.users == 0 {
		e.opt.placer.FreeShared(e.walks.Swap(nil).at)
	}
}

// CanWalk reports why detours at kernel code cannot walk the kernel's stacks; nil if
// they can. Any goroutine.
func (e *Engine) CanWalk() error {
	if _, ok := e.target.Symbols().(Kernel); !ok || e.opt.placer == nil {
		return errNoWalks
	}
	p, ok := e.opt.placer.Profile(false)
	if !ok || !p.GS || p.StackMask == 0 || p.Faults == nil {
		return errNoStacks
	}
	return nil
}
