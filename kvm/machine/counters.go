package machine

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/kvm"
)

// counters are the counters of a vCPU. Only its own thread adds; any thread
// reads. A plain load and store is enough for one writer, and cheaper than a
// locked add.
type counters struct {
	exits                   [kvm.NumReasons]counter
	interrupted             counter
	traps, foreign, inPlace counter
	pokes                   counter
	ticks, merged, trapNs   counter
	_                       [64]byte // keeps vCPUs off each other's cache lines
}

// counter has one writer.
type counter struct{ n atomic.Uint64 }

func (c *counter) inc()         { c.add(1) }
func (c *counter) add(n uint64) { c.n.Store(c.n.Load() + n) }
func (c *counter) load() uint64 { return c.n.Load() }

// Stats returns the counters of all vCPUs.
func (m *Machine) Stats() Stats {
	var s Stats
	for _, v := range m.vcpus {
		e := m.engine.Totals(v.id)
		c := VCPUStats{
			ID: v.id, Exits: make(map[string]uint64),
			Hits: e.Breakpoints + e.Detours, TrapExits: v.n.traps.load(), Foreign: v.n.foreign.load(), InPlace: v.n.inPlace.load(), TextWrites: v.n.pokes.load(),
			Ticks: v.n.ticks.load(), TicksMerged: v.n.merged.load(), TrapNs: v.n.trapNs.load(),
		}
		for i := range v.n.exits {
			if n := v.n.exits[i].load(); n > 0 {
				c.Exits[kvm.Reason(i).String()] = n
				c.Total += n
			}
		}
		if n := v.n.interrupted.load(); n > 0 {
			c.Exits[kvm.ReasonInterrupted.String()] = n
			c.Total += n
		}
		s.VCPUs = append(s.VCPUs, c)
	}
	return s
}
