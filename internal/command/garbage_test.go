package command

import (
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestPaceGarbage: a small heap is not collected before it has grown by 16 MiB, and a large one when it has grown by the given percentage.
func TestPaceGarbage(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(100))
	percent := func() int {
		s := []metrics.Sample{{Name: "/gc/gogc:percent"}}
		metrics.Read(s)
		return int(s[0].Value.Uint64())
	}
	const gcPercent = 15
	(&gcPacer{least: gcPercent}).setPercent()
	await := func(what string, is func(int) bool) {
		t.Helper()
		wait := patience.Context(t)
		for !is(percent()) {
			if wait.Err() != nil {
				t.Fatalf("%s: %d percent", what, percent())
			}
			runtime.GC()
			time.Sleep(time.Millisecond) // finalizers have a goroutine of their own
		}
	}
	await("a small heap", func(n int) bool { return n > 2*gcPercent && n <= 100*gcLeast/runtimeLeast })
	keep := make([]*[1 << 20]byte, 200)
	for i := range keep {
		keep[i] = new([1 << 20]byte)
	}
	await("a large heap", func(n int) bool { return n == gcPercent })
	runtime.KeepAlive(keep)
	keep = nil
	await("a small heap again", func(n int) bool { return n > 2*gcPercent })
}
