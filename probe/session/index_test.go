package session

import (
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/probe/event"
)

// BenchmarkIndex adds 500 probes to 100,000 others and removes them. The index's
// lock, which lookups wait for, is held only for parts of that time.
func BenchmarkIndex(b *testing.B) {
	var x index
	x.init()
	probes := func(n int) []*Probe {
		as := make([]*Probe, n)
		for i := range as {
			def := &event.Def{Group: fmt.Sprintf("g%d", i%7), Event: fmt.Sprintf("e%d", i)}
			as[i] = &Probe{id: uint64(len(x.snapshot()) + i), def: def}
		}
		return as
	}
	x.add(probes(100_000))
	more := probes(atOnce)
	for b.Loop() {
		x.add(more)
		x.remove(more)
	}
}
