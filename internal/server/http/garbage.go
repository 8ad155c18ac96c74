package http

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Garbage is collected when the heap has grown by gcPercent, which keeps the memory of tens of thousands of probes small, but not before it has grown by
// gcLeast bytes: the daemon of a few probes has a live heap of some MiB, and a script that is compiled or a stream of events would have it collected
// a hundred times a second.
const (
	gcPercent = 15
	gcLeast   = 16 << 20

	runtimeLeast = 4 << 20 // the runtime's least heap at 100 percent (heapMinimum, runtime/mgcpacer.go)
)

// paceGarbage sets the runtime's percentage by the live heap, now and after each collection, until the process ends.
var paceGarbage = sync.OnceFunc(func() { new(gcPacer).setPercent() })

// gcPacer is garbage itself: its finalizer runs after a collection.
type gcPacer struct {
	percent int // the runtime's
	next    *gcPacer
}

// setPercent sets the percentage for the next collection.
func (p *gcPacer) setPercent() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	// Below the runtime's least heap, the percentage is one of that.
	percent := max(gcPercent, int(100*gcLeast/max(live[0].Value.Uint64(), runtimeLeast)))
	// Each change stops the world for a moment.
	if near := p.percent / 8; percent == gcPercent && p.percent != gcPercent || percent < p.percent-near || percent > p.percent+near {
		debug.SetGCPercent(percent)
		p.percent = percent
	}
	runtime.SetFinalizer(&gcPacer{percent: p.percent}, (*gcPacer).setPercent)
}
