package machine

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// countHits runs m until a probe at symbol has been hit n times, and returns
// how long that took from the first hit on, and what was allocated meanwhile.
func countHits(tb testing.TB, m *Machine, symbol string, n int, post bool) (time.Duration, uint64) {
	tb.Helper()
	var start time.Time
	var before, after runtime.MemStats
	hits, done := 0, make(chan time.Duration, 1)
	k := &probe.Kprobe{Symbol: symbol, Pre: func(*probe.Context) int {
		switch hits++; hits {
		case 1:
			runtime.ReadMemStats(&before)
			start = time.Now()
		case n + 1:
			d := time.Since(start)
			runtime.ReadMemStats(&after)
			done <- d
		}
		return 0
	}}
	if post {
		k.Post = func(*probe.Context) {}
	}
	if err := m.Engine().Register(k); err != nil {
		tb.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		tb.Fatal(err)
	}
	var d time.Duration
	select {
	case d = <-done:
	case <-patience.Context(tb).Done():
		tb.Fatalf("no %d hits: %+v", n, m.State())
	}
	if err := m.Engine().Unregister(k); err != nil {
		tb.Fatal(err)
	}
	return d, after.Mallocs - before.Mallocs
}

// TestHitAllocatesNothing: what is allocated while thousands of hits go by is a
// small number that does not depend on how many (timers, the runtime itself).
func TestHitAllocatesNothing(t *testing.T) {
	n := 5000
	if testing.Short() {
		n = 1000
	}
	code, fn := countingGuest(1 << 30)
	for _, post := range []bool{false, true} {
		m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Probe: probe.Options{OptimizeDelay: -1}})
		if _, mallocs := countHits(t, m, "fn", n, post); mallocs > uint64(n/20) {
			t.Errorf("post %v: %d allocations in %d hits", post, mallocs, n)
		}
	}
}

// BenchmarkHit measures one hit with an empty handler, from the guest's int3 to
// the guest going on, and how many exits it takes.
func BenchmarkHit(b *testing.B) {
	code, fn := countingGuest(1 << 31)
	for _, bc := range []struct {
		name   string
		symbol string
		post   bool
	}{
		{"cpl0/boosted", "fn", false},
		{"cpl0/stepped", "fn", true},
		{"cpl3/emulated", "user_hot", false},
	} {
		b.Run(bc.name, func(b *testing.B) {
			config := Config{Image: tinyGuest(b, code, nil, fn), Memory: 16 << 20, Tick: -1}
			if bc.symbol != "fn" {
				config = Config{Image: builtinImage(b), Cmdline: "busy quiet"}
			}
			m := newMachine(b, config)
			d, _ := countHits(b, m, bc.symbol, b.N, bc.post)
			b.ReportMetric(float64(d.Nanoseconds())/float64(b.N), "ns/hit")
			b.ReportMetric(m.Stats().ExitsPerHit(), "exits/hit")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStart measures a machine from New to the guest's first console line,
// and how much of that is KVM's and ours.
func BenchmarkStart(b *testing.B) {
	img := builtinImage(b)
	newMachine(b, Config{Image: img}) // calibrates
	var setup, first time.Duration
	for b.Loop() {
		start := time.Now()
		m := newMachine(b, Config{Image: img, VCPUs: 2})
		setup += time.Since(start)
		sub, _ := m.Console().Subscribe(1)
		if err := m.Resume(); err != nil {
			b.Fatal(err)
		}
		<-sub.C()
		first += time.Since(start)
		if err := m.Close(context.Background()); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(setup.Microseconds())/float64(b.N), "us-setup")
	b.ReportMetric(float64((first-setup).Microseconds())/float64(b.N), "us-guest")
}

// BenchmarkStop measures a stop of a world in which every vCPU is busy.
func BenchmarkStop(b *testing.B) {
	m := newMachine(b, Config{Image: tinyGuest(b, spin, nil), VCPUs: 2, Memory: 16 << 20})
	if err := m.Resume(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		awaitBusy(m)
		b.StartTimer()
		if err := m.Stop(doNothing); err != nil {
			b.Fatal(err)
		}
	}
}
