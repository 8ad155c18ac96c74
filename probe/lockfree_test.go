package probe_test

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestHitTakesNoLock hits every kind of probe, and lists from a handler, in the
// middle of a registration that holds the engine's lock and is blocked: with a lock
// on the hit path, this would never end.
func TestHitTakesNoLock(t *testing.T) {
	f, e := newFaulty(t)
	listed := 0
	ps := []*probe.Kprobe{
		{Symbol: "hot", Pre: func(*probe.Context) int { listed = len(e.List()); return 0 }},
		{Symbol: "hot_load"},
		{Symbol: "f_boost", Post: func(*probe.Context) {}},
		{Symbol: "kprobe_target", Filter: func(*probe.Context) bool { return false }},
	}
	if err := e.Register(probe.Probes(ps)...); err != nil {
		t.Fatal(err)
	}
	hits := 0
	f.onStop = func() {
		for _, p := range ps {
			r := probe.Regs{RIP: uint64(p.Addr), RSP: 0x7000_1000}
			if v := e.Hit(0, probe.State{Regs: &r}, breakpoint); v.Action == probe.Resume {
				hits++
			}
			if p.Post != nil {
				r.RIP += 3 // the end of the slot
				e.Hit(0, probe.State{Regs: &r}, breakpoint)
			}
			e.Home(guest.GVA(r.RIP))
			e.OriginalByte(p.Addr)
			e.Totals(-1)
			e.Stats(p)
		}
	}
	if err := e.Register(&probe.Kprobe{Symbol: "work"}); err != nil {
		t.Fatal(err)
	}
	f.onStop = nil
	if hits != len(ps) || listed != len(ps) {
		t.Errorf("%d hits, %d listed, want %d of both", hits, listed, len(ps))
	}
	if s := e.Totals(0); s.Stepped != 1 {
		t.Errorf("got %+v, want one finished step", s)
	}
}

// TestVectorInstructions: the kernel's decoder takes vzeroupper for a "ja" and
// vpsubsb for a call, and emulates them as such. They are ordinary instructions.
func TestVectorInstructions(t *testing.T) {
	img := build(t, probetest.Func{Name: "avx", Code: []byte("\xc5\xf8\x77\xc5\xf1\xe8\xc2\xc3")}) // vzeroupper; vpsubsb; ret
	e := newFake(t, 1, img).Engine()
	for _, off := range []uint64{0, 3} {
		i, err := e.Check(&probe.Kprobe{Symbol: "avx", Offset: off})
		if err != nil || i.Plan != "boost" {
			t.Errorf("+%d: plan %q, %v, want boost", off, i.Plan, err)
		}
	}
}
