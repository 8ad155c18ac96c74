package machine

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/kvm"
)

// counters are a vCPU's. Its own thread adds, anyone reads. A plain load and
// store is enough for the one writer and cheaper than a locked add.
type counters struct {
	exits                   [maxReasons]counter
	traps, foreign, inPlace counter
	ticks, merged           counter
	_                       [64]byte // keeps vCPUs off each other's cache lines
}

// maxReasons bounds the exit reasons that are counted one by one; those above
// share the last counter.
const maxReasons = 64

// counter has one writer.
type counter struct{ n atomic.Uint64 }

func (c *counter) inc()         { c.n.Store(c.n.Load() + 1) }
func (c *counter) load() uint64 { return c.n.Load() }

// Stats returns the counters of all vCPUs.
func (m *Machine) Stats() Stats {
	var s Stats
	for _, v := range m.vcpus {
		c := VCPUStats{
			ID: v.id, Exits: make(map[string]uint64),
			Hits: m.engine.Totals(v.id).Breakpoints, TrapExits: v.n.traps.load(), Foreign: v.n.foreign.load(), InPlace: v.n.inPlace.load(),
			Ticks: v.n.ticks.load(), TicksMerged: v.n.merged.load(),
		}
		for i := range v.n.exits {
			if n := v.n.exits[i].load(); n > 0 {
				c.Exits[kvm.Reason(i).String()] = n
				c.Total += n
			}
		}
		s.VCPUs = append(s.VCPUs, c)
	}
	return s
}
