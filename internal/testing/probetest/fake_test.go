package probetest

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// bootTicking boots a fake whose timer fires after every n instructions.
func bootTicking(t *testing.T, n int) *env {
	t.Helper()
	f, err := NewFake(FakeOptions{CPUs: 2, TickEvery: n})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return &env{T: t, h: f, e: f.Engine()}
}

// TestTimer puts probes everywhere in a function, in the timer interrupt that
// keeps hitting it, and in what the interrupt calls. Results stay right and
// no interrupt falls between a hit and its step; with probes that are boosted
// interrupts do fall into slots, and do no harm.
func TestTimer(t *testing.T) {
	for _, every := range []int{3, 7, 50} {
		for _, post := range []func(*probe.Context){nil, func(*probe.Context) {}} {
			t.Run(fmt.Sprintf("every=%d,post=%v", every, post != nil), func(t *testing.T) {
				v := bootTicking(t, every)
				var ps []*probe.Kprobe
				hits := map[string]*probe.Kprobe{}
				for _, f := range []string{"hot", "hot_load", "work", "work_if", "timer_interrupt", "tick_work"} {
					for _, off := range v.offsets(f) {
						p := &probe.Kprobe{Name: f, Symbol: f, Offset: off, Pre: nop, Post: post}
						_, err := v.e.Check(p)
						if e := (*probe.Error)(nil); errors.As(err, &e) && e.Code == probe.CodeUnsupported {
							continue // iretq
						}
						ps = append(ps, p)
						if off == 0 {
							hits[f] = p
						}
					}
				}
				v.register(ps...)
				v.runOnAll(2, func(cpu int) error {
					s, err := v.h.Symbol("work_if")
					if err != nil {
						return err
					}
					r, err := v.h.Call(cpu, s.Addr, 200)
					if err == nil && r != 1600 {
						err = fmt.Errorf("work_if(200) = %d, want 1600", r)
					}
					return err
				})
				ticks := v.load("ticks")
				if ticks == 0 {
					t.Error("no timer interrupt")
				}
				equal(v, "hits of timer_interrupt", v.stats(hits["timer_interrupt"]).Hits, ticks)
				equal(v, "hits of tick_work", v.stats(hits["tick_work"]).Hits, ticks)
				equal(v, "hits of hot", v.stats(hits["hot"]).Hits, 400)
				f := v.h.(*Fake)
				in := f.cpus[0].slotTicks + f.cpus[1].slotTicks
				t.Logf("%d interrupts, %d of them in slots; %+v", ticks, in, v.e.Totals(-1))
				if post != nil && in != 0 {
					t.Errorf("%d interrupts fell between a hit and its step", in)
				}
				if post == nil && every == 3 && in == 0 {
					t.Error("no interrupt fell into a boosted slot: the test tests nothing")
				}
				s := v.e.Totals(-1)
				equal(v, "strays, abandoned, foreign, stale", s.Strays+s.Abandoned+s.Foreign+s.Stale, 0)
				v.unregister(ps...)
			})
		}
	}
}

// TestStiShadow: an interrupt that waits is not delivered right behind an sti,
// probed or not.
func TestStiShadow(t *testing.T) {
	for _, probed := range []bool{false, true} {
		v := bootTicking(t, 1) // always due
		f := v.h.(*Fake)
		sti := v.offsets("f_sti")[3]
		next := v.addr("f_sti") + guest.GVA(v.offsets("f_sti")[4])
		p := &probe.Kprobe{Symbol: "f_sti", Offset: sti}
		if probed {
			v.register(p)
		}
		var at []guest.GVA
		f.cpus[0].onTick = func(rip guest.GVA) { at = append(at, rip) }
		equal(v, "f_sti", v.call("f_sti"), 0b1010)
		for _, rip := range at {
			if rip == next {
				t.Errorf("probed %v: interrupt right behind sti", probed)
			}
		}
		if len(at) == 0 {
			t.Errorf("probed %v: no interrupt at all", probed)
		}
		f.cpus[0].onTick = nil
		if probed {
			v.unregister(p)
		}
	}
}

// TestFakeStops: what a guest must not do ends its call with an error, not the
// test.
func TestFakeStops(t *testing.T) {
	for _, c := range []struct{ f, want string }{
		{"r_ud2", "unexpected vector 6"},
		{"r_int1", "unexpected vector 6"}, // int1 is not interpreted
		{"r_hlt", "halted"},
		{"gp_vectors", "unexpected vector 0"},
		{"scratch", "unexpected vector 14"},
	} {
		f, err := NewFake(FakeOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s, err := f.Symbol(c.f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Call(0, s.Addr); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.f, err, c.want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}
