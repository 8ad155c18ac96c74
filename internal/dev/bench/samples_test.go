package bench

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSamples counts where the guest's timer interrupts a probed leaf that is called
// without end: in its text, or in the engine's code, whose every address must stand for
// one of the leaf.
func TestSamples(t *testing.T) {
	ctx, g := bootBench(t)
	s, err := g.newSubjects()
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	timer, err := g.m.Image().Lookup("timer_interrupt")
	if err != nil {
		t.Fatal(err)
	}
	e := g.m.Engine()
	pre := func(*probe.Context) int { return 0 }
	for _, tt := range []struct {
		name  string
		k     *probe.Kprobe
		jump  bool
		calls uint64 // at once: some ticks long
	}{
		{"no probe", nil, false, 50_000_000},
		{"int3", &probe.Kprobe{Addr: s.hot.Addr, Pre: pre}, false, 5_000},
		{"jump, handler on the host", &probe.Kprobe{Addr: s.hot.Addr, Pre: pre}, true, 5_000},
		{"jump, counter in the guest", &probe.Kprobe{Addr: s.hot.Addr, Pre: pre, Stage: s.inline}, true, 10_000_000},
	} {
		if tt.k != nil {
			if err := e.Register(tt.k); err != nil {
				t.Fatal(err)
			}
		}
		if tt.jump {
			if err := e.Optimize(); err != nil {
				t.Fatal(err)
			}
			if i, _ := e.Info(tt.k); !i.Optimized {
				t.Fatalf("%s: %v", tt.name, i)
			}
		}
		var text, engine, other int
		enough := kvmtest.ChooseSize(25, 100)
		if kvmtest.Slow {
			enough = 5
		}
		calling, stop := context.WithCancel(ctx)
		tick := &probe.Kprobe{Addr: timer.Addr, Pre: func(c *probe.Context) int {
			var rip [8]byte
			if err := c.Read(guest.GVA(c.Regs.RDI)+17*8, rip[:]); err != nil {
				t.Errorf("the timer's frame: %v", err)
			}
			at := guest.GVA(binary.LittleEndian.Uint64(rip[:]))
			in := func(a guest.GVA) bool { return a >= s.hot.Addr && a < s.hot.Addr+guest.GVA(s.hot.Size) }
			switch home := e.Home(at); {
			case in(at):
				text++
			case home == at:
				other++ // the loop that calls
			case in(home):
				engine++
			default:
				t.Errorf("%s: %v stands for %v, want an address of %s", tt.name, at, home, symUserFn)
			}
			if text+engine >= enough {
				stop()
			}
			return 0
		}}
		if err := e.Register(tick); err != nil {
			t.Fatal(err)
		}
		for calling.Err() == nil {
			if _, err := g.calls(ctx, 3, s.hot.Addr, tt.calls); err != nil {
				t.Fatal(err)
			}
		}
		e.Unregister(tick)
		if tt.k != nil {
			e.Unregister(tt.k)
		}
		t.Logf("%-26s %4d in the text of %s, %4d in the engine's code, %4d elsewhere", tt.name, text, symUserFn, engine, other)
		if engine > 0 && tt.k == nil {
			t.Errorf("%d in the engine's code, and there is no probe", engine)
		}
		stop()
	}
}
