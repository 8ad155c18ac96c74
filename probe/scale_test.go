package probe_test

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestHitAllocatesNothing is the ceiling of the hit path: no way of running
// the instruction allocates, alone or in a crowd.
func TestHitAllocatesNothing(t *testing.T) {
	for _, others := range []int{0, 1000} {
		f := newFake(t, 1, functionsImage(t, others+1))
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
	f := newFake(t, 8, functionsImage(t, many+1))
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
			ps[i] = &probe.Kprobe{Symbol: fmt.Sprintf("f%d", i), Pre: emptyHandler, Post: func(*probe.Context) {}}
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

// TestManyJumps: ten times as many jumps, with boards and stages in the guest, take about
// ten times as long to make, and 4 KB of host memory each, probes included.
func TestManyJumps(t *testing.T) {
	const (
		few, many = 1000, 10_000
		maxRatio  = 3 * many / few
		maxBytes  = 4 << 10
	)
	took := map[int]time.Duration{}
	for _, n := range []int{few, many} {
		funcs := make([]probetest.Func, n)
		for i := range funcs {
			// push %rbp; mov %rsp,%rbp; push %rbx, and as much code as functions have
			code := []byte("\x55\x48\x89\xe5\x53")
			for k := range 20 + i%50 {
				code = append(code, 0x48, 0x8d, 0x47, byte(k))
			}
			funcs[i] = probetest.Func{Name: fmt.Sprintf("f%d", i), Code: append(code, "\x5b\x5d\xc3"...)}
		}
		img, err := probetest.BuildImage(textBase, false, funcs...)
		if err != nil {
			t.Fatal(err)
		}
		f := newFake(t, 8, img)
		e := f.Engine()
		block, _, err := f.AllocShared(8*64, false)
		if err != nil {
			t.Fatal(err)
		}
		before := heap()
		ps := make([]*probe.Kprobe, n)
		for i := range ps {
			ps[i] = &probe.Kprobe{Symbol: funcs[i].Name, Pre: emptyHandler, Stage: &probe.Stage{Code: []byte("\x48\xff\x06\xc3"), NoStrings: true, Stack: 8, Block: block, Stride: 64}}
		}
		start := processorTime(t)
		if err := e.Register(probe.Probes(ps)...); err != nil {
			t.Fatal(err)
		}
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
		took[n] = processorTime(t) - start
		each := (int64(heap()) - int64(before)) / int64(n)
		if now := e.OptimizerStats().Now; now != n {
			t.Errorf("%d of %d have their jump", now, n)
		}
		t.Logf("%d probes: %v, %d bytes each", n, took[n], each)
		if n == many && each > maxBytes { // with few probes, the cache of functions dominates
			t.Errorf("%d bytes for each of %d probes on 8 vCPUs, want at most %d", each, n, maxBytes)
		}
		if err := e.Unregister(ps...); err != nil {
			t.Error(err)
		}
	}
	if took[many] > maxRatio*took[few] {
		t.Errorf("%d jumps took %v, %d took %v", many, took[many], few, took[few])
	}
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
