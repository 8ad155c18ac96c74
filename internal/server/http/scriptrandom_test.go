package http

import (
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/scripttest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestRandomScripts runs random scripts in the guest and on the host, which both print what
// an evaluation that knows no compiler does.
func TestRandomScripts(t *testing.T) {
	h := serveMachine(t, 1)
	n, there := uint64(24), 0
	if testing.Short() {
		n = 8
	}
	for seed := range n {
		for _, onHost := range []bool{false, true} {
			sc := scripttest.New(seed, scripttest.Options{Place: "kprobe:bench_target", Args: 2, Nested: seed%2 == 1})
			s, start := h.script(api.RunScript{Script: sc.Text, OnHost: onHost})
			inGuest := start.Probes[0].Runs == api.RunsInGuest
			if inGuest && onHost {
				t.Errorf("script %d runs in the guest", seed)
			}
			r := rand.New(rand.NewPCG(seed, 1))
			for range 3 {
				args := []uint64{r.Uint64() >> r.IntN(64), uint64(r.Int64N(20) - 5)}
				sc.Hit(args...)
				if _, err := h.c.Call(h.ctx, api.Call{Symbol: "bench_target", Args: []api.Hex{api.Hex(args[0]), api.Hex(args[1])}}); err != nil {
					t.Fatal(err)
				}
			}
			exits := uint64(3)
			if inGuest {
				exits -= h.inGuest(start.Probes[0].Name)
			}
			if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
				t.Fatal(err)
			}
			out, warnings, _ := h.rest(s)
			if want := sc.Output(); out != want {
				t.Fatalf("script %d, in the guest %v\n%sprints\n%s\nwant\n%s\n%s", seed, inGuest, sc.Text, out, want, warnings)
			}
			if inGuest && exits == 0 {
				there++
			}
		}
	}
	if there < int(n)*3/4 {
		t.Errorf("only %d of %d scripts ran in the guest without an exit", there, n)
	}
	h.noScript()
}
