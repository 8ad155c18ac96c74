package probe_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestPasses: when passes run. A site is optimized one delay after it was registered;
// one with an obstacle in the guest is looked at again after 25 delays; and a pass
// that is due soon does not wait for that slow one.
func TestPasses(t *testing.T) {
	const delay = 20 * time.Millisecond
	for _, c := range []struct {
		name  string
		after time.Duration // the second site is registered; 0: never
		want  time.Duration // since the first pass: when the first site has its jump
	}{
		{"the slow pass", 0, 25 * delay},
		{"a second site at once", 1, delay + 1},
		{"a second site later", 10 * delay, 11 * delay},
		{"a second site right before the slow pass", 25*delay - 1, 26*delay - 1}, // it is looked at together with the second
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &faulty{Fake: newFake(t, 1, probetest.Image()), patchErr: map[guest.GVA]error{}, several: "two of them"}
				e, err := probe.New(f, probe.Options{OptimizeDelay: delay})
				if err != nil {
					t.Fatal(err)
				}
				p, q := &probe.Kprobe{Symbol: "f_emulate"}, &probe.Kprobe{Symbol: "hot_load"}
				register := func(p *probe.Kprobe) {
					if err := e.Register(p); err != nil {
						t.Fatal(err)
					}
				}
				jumps := func(d time.Duration, p *probe.Kprobe, want bool) {
					t.Helper()
					synctest.Wait()
					if i, _ := e.Info(p); i.Optimized != want {
						t.Errorf("%v after the first pass: %s has a jump: %v, want %v (%+v)", d, p.Symbol, i.Optimized, want, i.Unoptimized)
					}
				}
				register(p)
				time.Sleep(delay)
				synctest.Wait()
				if i, _ := e.Info(p); i.Unoptimized.Reason != "shared_text" {
					t.Fatalf("the first pass has left %+v", i.Unoptimized)
				}
				f.several = ""
				if c.after != 0 {
					time.Sleep(c.after)
					register(q)
				}
				time.Sleep(c.want - c.after - 1)
				jumps(c.want-1, p, false)
				time.Sleep(time.Nanosecond)
				jumps(c.want, p, true)
				time.Sleep(delay)
				if c.after != 0 {
					jumps(c.want+delay, q, true)
				}
				if s := e.OptimizerStats(); s.Waiting != 0 || s.Passes < 1 {
					t.Errorf("stats: %+v", s)
				}
				if err := e.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
