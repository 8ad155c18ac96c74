package probe_test

import (
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

const textBase = guest.GVA(0xffff_ffff_8100_0000)

// functionsImage has n functions of 16 bytes: f0, f1, and so on, each one
// instruction (a 7-byte load, which is boosted), a register move, and ret.
func functionsImage(tb testing.TB, n int) *guest.Image {
	tb.Helper()
	code := []byte{0x48, 0x8b, 0x04, 0x25, 0, 0, 0, 0x70, 0x48, 0x89, 0xf8, 0xc3, 0xcc, 0xcc, 0xcc, 0xcc}
	funcs := make([]probetest.Func, n)
	for i := range funcs {
		funcs[i] = probetest.Func{Name: fmt.Sprintf("f%d", i), Code: code}
	}
	img, err := probetest.BuildImage(textBase, false, funcs...)
	if err != nil {
		tb.Fatal(err)
	}
	return img
}

// newFake boots a fake guest with img and ends it with the test.
func newFake(tb testing.TB, cpus int, img *guest.Image) *probetest.Fake {
	tb.Helper()
	f, err := probetest.NewFake(probetest.FakeOptions{CPUs: cpus, Image: img, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := f.Close(); err != nil {
			tb.Errorf("close: %v", err)
		}
	})
	return f
}

// crowd registers a probe on the load of each of the n functions but the first.
func crowd(tb testing.TB, e *probe.Engine, n int) []*probe.Kprobe {
	tb.Helper()
	ps := make([]*probe.Kprobe, 0, n)
	for i := 1; i < n; i++ {
		ps = append(ps, &probe.Kprobe{Symbol: fmt.Sprintf("f%d", i), Pre: emptyHandler})
	}
	if len(ps) == 0 {
		return nil
	}
	if err := e.Register(probe.Probes(ps)...); err != nil {
		tb.Fatal(err)
	}
	return ps
}

func emptyHandler(*probe.Context) int { return 0 }

// ways are the ways in which a hit continues. Offset 0 of f0 is a load, offset 8 a
// move between registers.
var ways = []struct {
	name  string
	probe probe.Kprobe
	steps bool
}{
	{"Boost", probe.Kprobe{Symbol: "f0", Pre: emptyHandler}, false},
	{"Emulate", probe.Kprobe{Symbol: "f0", Offset: 8, Pre: emptyHandler}, false},
	{"EmulateRet", probe.Kprobe{Symbol: "f0", Offset: 11, Pre: emptyHandler}, false},
	{"Step", probe.Kprobe{Symbol: "f0", Pre: emptyHandler, Post: func(*probe.Context) {}}, true},
	{"Filter", probe.Kprobe{Symbol: "f0", Filter: func(*probe.Context) bool { return false }}, false},
}

// hitOnce makes vCPU cpu arrive at addr, and, when the instruction is stepped,
// at the end of its slot.
func hitOnce(e *probe.Engine, cpu int, r *probe.Regs, addr guest.GVA, slotEnd guest.GVA) probe.Verdict {
	r.RIP = uint64(addr)
	v := e.Hit(cpu, probe.State{Regs: r}, probe.Trap{Kind: probe.TrapBreakpoint})
	if slotEnd != 0 {
		r.RIP = uint64(slotEnd)
		v = e.Hit(cpu, probe.State{Regs: r}, probe.Trap{Kind: probe.TrapBreakpoint})
	}
	return v
}

// BenchmarkHit is the engine's own work for one hit: everything between the
// trap and the next entry into the guest, with one probe whose pre handler is
// empty. Step counts both traps.
func BenchmarkHit(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		f := newFake(b, 1, functionsImage(b, others+1))
		e := f.Engine()
		crowd(b, e, others+1)
		for _, w := range ways {
			p := w.probe
			if err := e.Register(&p); err != nil {
				b.Fatal(err)
			}
			b.Run(fmt.Sprintf("%s/others=%d", w.name, others), func(b *testing.B) {
				var r probe.Regs
				r.RSP = 0x7000_8000
				end := guest.GVA(0)
				if w.steps {
					end = slotEnd(b, e, &p)
				}
				b.ReportAllocs()
				for b.Loop() {
					r.RSP = 0x7000_8000
					hitOnce(e, 0, &r, p.Addr, end)
				}
			})
			if err := e.Unregister(&p); err != nil {
				b.Fatal(err)
			}
		}
	}
}

// slotEnd returns where p's stepped slot traps.
func slotEnd(tb testing.TB, e *probe.Engine, p *probe.Kprobe) guest.GVA {
	tb.Helper()
	at, ok := e.SlotOf(p)
	if !ok {
		tb.Fatal("no slot")
	}
	i, _ := e.Info(p)
	return at + guest.GVA(len(i.Insn))
}

// BenchmarkHitParallel is the same on several vCPUs at once, one probe hit by
// all: the time per hit must fall as vCPUs are added, up to the host's cores.
func BenchmarkHitParallel(b *testing.B) {
	for _, cpus := range []int{1, 2} {
		b.Run(fmt.Sprintf("vcpus=%d", cpus), func(b *testing.B) {
			f := newFake(b, cpus, functionsImage(b, 1))
			e := f.Engine()
			p := ways[0].probe
			if err := e.Register(&p); err != nil {
				b.Fatal(err)
			}
			var next atomic.Int32
			b.SetParallelism(1)
			b.ReportAllocs()
			done := make(chan struct{})
			n := b.N / cpus
			b.ResetTimer()
			for range cpus {
				go func() {
					cpu := int(next.Add(1)) - 1
					var r probe.Regs
					for range n {
						hitOnce(e, cpu, &r, p.Addr, 0)
					}
					done <- struct{}{}
				}()
			}
			for range cpus {
				<-done
			}
		})
	}
}

// BenchmarkRegister is 10,000 probes in one batch, and their removal.
func BenchmarkRegister(b *testing.B) {
	const n = 10_000
	f := newFake(b, 1, functionsImage(b, n))
	e := f.Engine()
	b.ReportAllocs()
	for b.Loop() {
		ps := crowd(b, e, n)
		if err := e.Unregister(ps...); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/n, "ns/probe")
}
