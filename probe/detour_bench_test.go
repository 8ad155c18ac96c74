package probe_test

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// detourExit follows the jumps from an optimized site to the int3 that its detour
// begins with.
func detourExit(tb testing.TB, f *probetest.Fake, site guest.GVA) guest.GVA {
	tb.Helper()
	for at := site; ; {
		var b [x86.JmpLen]byte
		if err := f.Read(at, b[:]); err != nil {
			tb.Fatal(err)
		}
		if b[0] == x86.Int3 {
			return at
		}
		if b[0] != x86.JmpOp {
			tb.Fatalf("at %v: % x, want a jump", at, b)
		}
		at += guest.GVA(x86.JmpLen + int64(int32(binary.LittleEndian.Uint32(b[1:]))))
	}
}

// optimizedHit registers a probe on an optimized site and returns a function that
// hits it.
func optimizedHit(tb testing.TB, others int) func() {
	tb.Helper()
	f := newFake(tb, 1, functionsImage(tb, others+1))
	e := f.Engine()
	crowd(tb, e, others+1)
	p := &probe.Kprobe{Symbol: "f0", Pre: func(*probe.Context) int { return 0 }}
	if err := e.Register(p); err != nil {
		tb.Fatal(err)
	}
	if err := e.Optimize(); err != nil {
		tb.Fatal(err)
	}
	if i, _ := e.Info(p); !i.Optimized {
		tb.Fatalf("%v gets no jump: %+v", i.Addr, i.Unoptimized)
	}
	exit := detourExit(tb, f, p.Addr)
	r := &probe.Regs{RSP: 0x7000_8000}
	return func() {
		r.RIP = uint64(exit)
		if v := e.Hit(0, probe.State{Regs: r}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action != probe.Resume || guest.GVA(r.RIP) == exit {
			tb.Fatalf("verdict %v at %#x", v, r.RIP)
		}
	}
}

// TestDetourHitAllocatesNothing: a hit of an optimized site allocates nothing.
func TestDetourHitAllocatesNothing(t *testing.T) {
	hit := optimizedHit(t, 100)
	if n := testing.AllocsPerRun(1000, hit); n != 0 {
		t.Errorf("%v allocations per hit", n)
	}
}

// BenchmarkDetourHit is the engine's work for a hit of an optimized site, alone
// and with many others.
func BenchmarkDetourHit(b *testing.B) {
	for _, others := range []int{0, 10_000} {
		b.Run(fmt.Sprintf("others=%d", others), func(b *testing.B) {
			hit := optimizedHit(b, others)
			b.ReportAllocs()
			for b.Loop() {
				hit()
			}
		})
	}
}
