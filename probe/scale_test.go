package probe_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/probetest"
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

// TestManyProbes: ten times as many probes in one batch take about ten times as
// long to register and to take off, and 2 KB of host memory each. Time is the
// processor's, and of three attempts the best counts: the machine has other work.
func TestManyProbes(t *testing.T) {
	const (
		few, many = 2000, 20_000
		maxRatio  = 3 * many / few // more than many and less than many^2 over few^2
		maxBytes  = 2 << 10
	)
	f := newFake(t, 8, manyImage(t, many+1))
	on, off, each := batch(t, f, few)
	onMany, offMany, eachMany := batch(t, f, many)
	t.Logf("%d probes: registered in %v, unregistered in %v, %d bytes each; %d: %v, %v, %d bytes", few, on, off, each, many, onMany, offMany, eachMany)
	if onMany > maxRatio*on || offMany > maxRatio*off {
		t.Errorf("%d probes take more than %d times as long as %d", many, maxRatio, few)
	}
	if eachMany > maxBytes {
		t.Errorf("%d bytes per probe on 8 vCPUs, want at most %d", eachMany, maxBytes)
	}
}

// batch registers n probes and takes them off, and returns the processor time of
// each, and the bytes of host memory for one probe.
func batch(t *testing.T, f *probetest.Fake, n int) (on, off time.Duration, each int64) {
	t.Helper()
	e := f.Engine()
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // only heap collects
	on, off = time.Hour, time.Hour
	for attempt := range 3 {
		ps := make([]*probe.Kprobe, n)
		for i := range ps {
			ps[i] = &probe.Kprobe{Symbol: fmt.Sprintf("f%d", i), Pre: empty, Post: func(*probe.Context) {}}
		}
		before := heap()
		start := processorTime(t)
		if err := e.Register(probe.Probes(ps)...); err != nil {
			t.Fatal(err)
		}
		on = min(on, processorTime(t)-start)
		if attempt == 0 { // later ones find their slots there
			each = (int64(heap()) - int64(before)) / int64(n)
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
		start = processorTime(t)
		if err := e.Unregister(ps...); err != nil {
			t.Fatal(err)
		}
		off = min(off, processorTime(t)-start)
	}
	return on, off, each
}

// processorTime is what this process has used of the machine's processors.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// heap returns the bytes in live objects.
func heap() uint64 {
	runtime.GC()
	runtime.GC() // the second one frees what finalizers and pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
