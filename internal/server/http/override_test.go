package http

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestOverride: a definition's function returns what was asked for, in exactly those calls
// that were.
func TestOverride(t *testing.T) {
	h := serveMachine(t, 1)
	call := func() bool {
		t.Helper()
		r, err := h.c.Call(h.ctx, api.Call{Symbol: "bench_target", Args: []api.Hex{7, 1}})
		if err != nil {
			t.Fatal(err)
		}
		return r.Value == -2
	}
	// calls is what has become of n calls, one letter each, with the probe as it is then.
	calls := func(n int, o api.Override) (string, api.Probe) {
		t.Helper()
		ps, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:fail bench_target", Override: &o, Unsafe: true})
		if err != nil {
			t.Fatal(err)
		}
		if p := ps[0]; p.Runs != api.RunsOnHost || !strings.Contains(p.OnHost, "only the engine may") {
			t.Errorf("runs %s: %s", p.Runs, p.OnHost)
		}
		var b strings.Builder
		for range n {
			if call() {
				b.WriteByte('x')
			} else {
				b.WriteByte('.')
			}
		}
		p, err := h.c.Detach(h.ctx, "fail")
		if err != nil {
			t.Fatal(err)
		}
		if got := uint64(strings.Count(b.String(), "x")); p.Override == nil || p.Override.Injected != got || p.Stats.Handled != uint64(n) {
			t.Errorf("%d of %d calls returned early, the listing says %+v, %d handled", got, n, p.Override, p.Stats.Handled)
		}
		if call() {
			t.Error("a call returns early behind the end")
		}
		return b.String(), p
	}
	two, forever, never := int64(2), int64(-1), int64(0)
	percent := func(p float64) *float64 { return &p }
	for _, c := range []struct {
		o    api.Override
		want string
	}{
		{api.Override{}, "xxxxxxxxxxxx"},
		{api.Override{Times: &forever}, "xxxxxxxxxxxx"},
		{api.Override{Times: &two}, "xx.........."},
		{api.Override{Times: &never}, "............"},
		{api.Override{Interval: 3}, "..x..x..x..x"},
		{api.Override{Interval: 3, After: 2, Times: &two}, "....x..x...."},
		{api.Override{After: 10}, "..........xx"},
		{api.Override{Probability: percent(0)}, "............"},
		{api.Override{Probability: percent(100)}, "xxxxxxxxxxxx"},
		// SplitMix64 from 1234 on, of which each number's upper 53 bits are held against 40%.
		{api.Override{Probability: percent(40), Seed: 1234}, "..xx...xx.xx"},
	} {
		c.o.Value = -2
		got, p := calls(12, c.o)
		if got != c.want {
			t.Errorf("%+v: %s, want %s", p.Override, got, c.want)
		}
	}
	// A seed that the daemon takes does the same again.
	first, p := calls(100, api.Override{Value: -2, Probability: percent(30)})
	if n := strings.Count(first, "x"); n == 0 || n == 100 {
		t.Errorf("of 100 calls %d return early by chance 30%%", n)
	}
	if again, _ := calls(100, p.Override.Override); again != first {
		t.Errorf("by its own seed\n%s is\n%s", first, again)
	}
	p.Override.Seed++
	if other, _ := calls(100, p.Override.Override); other == first {
		t.Errorf("another seed is the same: %s", other)
	}
}

// TestOverrideLimit: hits of two vCPUs at once inject as many as the limit says, another
// filter does not begin anew, and what is not chosen runs.
func TestOverrideLimit(t *testing.T) {
	h := serveMachine(t, 2)
	limit := int64(5)
	if _, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:fail user_hot", Override: &api.Override{Value: 0, Times: &limit, After: 100}, Unsafe: true}); err != nil {
		t.Fatal(err)
	}
	both := func(p api.Probe) bool { return p.Stats.CPUs[0].Handled > 200 && p.Stats.CPUs[1].Handled > 200 }
	p := h.await("fail", "hits on both", both)
	if p.Override.Injected != 5 {
		t.Errorf("injected %d, want 5", p.Override.Injected)
	}
	filter := "cpu < 2"
	if _, err := h.c.Patch(h.ctx, api.PatchProbe{Filter: &filter}, "fail"); err != nil {
		t.Fatal(err)
	}
	n := p.Stats.Handled
	p = h.await("fail", "more", func(p api.Probe) bool { return p.Stats.Handled > n+200 })
	if p.Override.Injected != 5 {
		t.Errorf("with another filter injected %d, want 5", p.Override.Injected)
	}
}

// TestOverrideRefused: where a function cannot return early, and what was not allowed.
func TestOverrideRefused(t *testing.T) {
	h := serveFake(t, nil)
	over, below := 100.5, int64(-2)
	for _, c := range []struct {
		spec api.ProbeSpec
		want string
	}{
		{api.ProbeSpec{Def: "p vfs_read", Override: &api.Override{}}, "an override changes what the guest does"},
		{api.ProbeSpec{Def: "p vfs_read", Unsafe: true}, "override is missing"},
		{api.ProbeSpec{Def: "r vfs_read", Unsafe: true, Override: &api.Override{}}, "only a p definition"},
		{api.ProbeSpec{Def: "r vfs_read", AtRets: true, Unsafe: true, Override: &api.Override{}}, "only a p definition"},
		{api.ProbeSpec{Def: "w:v w@user_hot_calls", Unsafe: true, Override: &api.Override{}}, "only a p definition"},
		{api.ProbeSpec{Def: "p vfs_read+7", Unsafe: true, Override: &api.Override{}}, "only at its entry"},
		{api.ProbeSpec{Def: "p vfs_read", Args: 1, Unsafe: true, Override: &api.Override{}}, "a jprobe cannot"},
		{api.ProbeSpec{Def: "p vfs_read", Post: true, Unsafe: true, Override: &api.Override{}}, "skips the function"},
		{api.ProbeSpec{Def: "p vfs_read", Unsafe: true, Override: &api.Override{Probability: &over}}, "probability is 100.5"},
		{api.ProbeSpec{Def: "p vfs_read", Unsafe: true, Override: &api.Override{Times: &below}}, "times is -2"},
	} {
		_, err := h.c.Attach(h.ctx, c.spec)
		if e := (*api.Error)(nil); !errors.As(err, &e) || !strings.Contains(e.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.spec, err, c.want)
		}
	}
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) != 0 {
		t.Errorf("attached %+v, %v", ps, err)
	}
}
