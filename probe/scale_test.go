package probe_test

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestHitAllocatesNothing is the ceiling of the hit path: no way of running
// the instruction allocates, alone or in a crowd.
func TestHitAllocatesNothing(t *testing.T) {
	for _, others := range []int{0, 1000} {
		f := newFake(t, 1, manyImage(t, others+1))
		e := f.Engine()
		crowd(t, e, others+1)
		for _, w := range ways {
			t.Run(fmt.Sprintf("%s/others=%d", w.name, others), func(t *testing.T) {
				p := w.probe
				if err := e.Register(&p); err != nil {
					t.Fatal(err)
				}
				end := guest.GVA(0)
				if w.steps {
					end = slotEnd(t, e, &p)
				}
				r := new(probe.Regs)
				n := testing.AllocsPerRun(1000, func() {
					r.RSP = 0x7000_8000
					hitOnce(e, 0, r, p.Addr, end)
				})
				if n > ceiling {
					t.Errorf("%v allocations per hit, want at most %v", n, ceiling)
				}
				if err := e.Unregister(&p); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestManyProbes holds registration to its limits: 10,000 probes in one batch
// in less than a second and 2 KB of host memory each, and the same for taking
// them off. Of three attempts the best counts: the machine has other work.
func TestManyProbes(t *testing.T) {
	const (
		n        = 10_000
		maxTime  = time.Second * slack
		maxBytes = 2 << 10
	)
	f := newFake(t, 8, manyImage(t, n+1))
	e := f.Engine()
	ps := make([]*probe.Kprobe, n)
	best, bestOff := time.Hour, time.Hour
	for attempt := range 3 {
		for i := range ps {
			ps[i] = &probe.Kprobe{Symbol: fmt.Sprintf("f%d", i), Pre: empty, Post: func(*probe.Context) {}}
		}
		before := heap()
		start := time.Now()
		if err := e.Register(probe.Probes(ps)...); err != nil {
			t.Fatal(err)
		}
		best = min(best, time.Since(start))
		if each := (int64(heap()) - int64(before)) / n; attempt == 0 && each > maxBytes { // later ones find their slots there
			t.Errorf("%d bytes per probe on 8 vCPUs, want at most %d", each, maxBytes)
		}
		if got := len(e.List()); got != n {
			t.Errorf("%d probes listed, want %d", got, n)
		}
		for _, i := range []int{0, 1, n / 2, n - 1} {
			s, err := f.Symbol(fmt.Sprintf("f%d", i))
			if err != nil {
				t.Fatal(err)
			}
			if s.Addr != ps[i].Addr {
				t.Errorf("probe %d is at %v, want %v", i, ps[i].Addr, s.Addr)
			}
		}
		start = time.Now()
		if err := e.Unregister(ps...); err != nil {
			t.Fatal(err)
		}
		bestOff = min(bestOff, time.Since(start))
	}
	t.Logf("%d probes: registered in %v, unregistered in %v", n, best, bestOff)
	if best > maxTime || bestOff > maxTime {
		t.Errorf("registered in %v, unregistered in %v, want at most %v", best, bestOff, maxTime)
	}
}

// heap returns the bytes in live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second one frees what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
