//go:build race

package probetest

import (
	"sync"

	"github.com/guestprobe/guestprobe/guest"
)

// accesses orders accesses to data. The engine may look at the stack of a
// vCPU that runs, as a processor may; the race detector knows no such thing.
type accesses struct{ page [64]sync.Mutex }

func (a *accesses) lock(addr guest.GVA)   { a.page[addr>>12%64].Lock() }
func (a *accesses) unlock(addr guest.GVA) { a.page[addr>>12%64].Unlock() }
