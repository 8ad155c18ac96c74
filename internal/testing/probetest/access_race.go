//go:build race

package probetest

import (
	"sync"

	"github.com/guestprobe/guestprobe/guest"
)

// accesses orders accesses to data. The engine may read the stack of a running
// vCPU, as a processor may, but the race detector reports that as a race.
type accesses struct{ page [64]sync.Mutex }

func (a *accesses) lock(addr guest.GVA)   { a.page[addr>>12%64].Lock() }
func (a *accesses) unlock(addr guest.GVA) { a.page[addr>>12%64].Unlock() }
