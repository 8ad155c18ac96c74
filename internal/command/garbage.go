package command

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
)

// Limits of a process that keeps little and makes much garbage: it would collect it a hundred times a second.
const (
	gcLeast      = 16 << 20
	runtimeLeast = 4 << 20 // the runtime's least heap at 100 percent (heapMinimum, runtime/mgcpacer.go)
)

// PaceGarbage has garbage collected when the heap has grown by percent, but not before it has grown by 16 MiB, until the process ends. It does nothing if GOGC
// is set, and at a second call. Any goroutine may call it.
func PaceGarbage(percent int) {
	if os.Getenv("GOGC") == "" {
		pace.Do(func() { (&gcPacer{least: percent}).setPercent() })
	}
}

var pace sync.Once

// gcPacer is garbage itself, so that its finalizer runs after a collection.
type gcPacer struct {
	least, percent int      // the caller's percentage, and the runtime's
	_              *gcPacer // objects without pointers share their memory with others, and may outlive a collection
}

// setPercent sets the percentage for the next collection.
func (p *gcPacer) setPercent() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	// Below the runtime's least heap, the percentage is one of that.
	percent := max(p.least, int(100*gcLeast/max(live[0].Value.Uint64(), runtimeLeast)))
	// Each change stops the world for a moment.
	if near := p.percent / 8; percent == p.least && p.percent != p.least || percent < p.percent-near || percent > p.percent+near {
		debug.SetGCPercent(percent)
		p.percent = percent
	}
	runtime.SetFinalizer(&gcPacer{least: p.least, percent: p.percent}, (*gcPacer).setPercent)
}
