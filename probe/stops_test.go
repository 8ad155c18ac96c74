package probe_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// countedStops is a target that counts the changes of text in each stop.
type countedStops struct {
	probe.Target
	changes []int             // in each stop since the last take
	wrong   guest.GVA         // text that is not what the image says
	after   func(*probe.Regs) // called after each stop
}

type countedWorld struct {
	probe.World
	t *countedStops
}

// Stop implements probe.Target.
func (c *countedStops) Stop(f func(probe.World) error) error {
	c.changes = append(c.changes, 0)
	err := c.Target.Stop(func(w probe.World) error { return f(countedWorld{w, c}) })
	if c.after != nil {
		c.after(new(probe.Regs))
	}
	return err
}

// PatchText implements probe.World.
func (w countedWorld) PatchText(addr guest.GVA, old, new []byte) error {
	w.t.changes[len(w.t.changes)-1]++
	if addr == w.t.wrong {
		return &guest.TextMismatchError{Addr: addr, Want: old, Got: []byte{0x90}}
	}
	return w.World.PatchText(addr, old, new)
}

// take returns the changes in each stop since the last call.
func (c *countedStops) take() []int {
	out := c.changes
	c.changes = nil
	return out
}

// TestTextInStops: a change of many probes changes the text of a fixed number of sites in each stop;
// no handler of a new probe runs before all are there; and a request that fails leaves nothing.
func TestTextInStops(t *testing.T) {
	const n, most = 2500, 1024
	img := loopImage(t, n)
	f := newFake(t, 1, img)
	target := &countedStops{Target: f.Target()}
	e, err := probe.New(target, probe.Options{OptimizeDelay: -1})
	if err != nil {
		t.Fatal(err)
	}
	hits := 0
	ps := make([]*probe.Kprobe, n)
	for i := range ps {
		ps[i] = &probe.Kprobe{Symbol: fmt.Sprintf("f%d", i), Pre: func(*probe.Context) int { hits++; return 0 }}
	}
	at := func(i int) guest.GVA {
		s, err := img.Lookup(fmt.Sprintf("f%d", i))
		if err != nil {
			t.Fatal(err)
		}
		return s.Addr
	}
	check := func(what string, err error, want ...int) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := target.take(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %d changes in the stops, want %d", what, got, want)
		}
	}
	untouched := func(what string) {
		t.Helper()
		for i := range n {
			if b, err := f.BytesAt(at(i), 1); err != nil || b[0] != 0x55 {
				t.Fatalf("%s: the text of f%d begins with % x (%v)", what, i, b, err)
			}
		}
	}
	early := 0
	target.after = func(r *probe.Regs) {
		if b, _ := f.BytesAt(at(0), 1); b[0] == 0xcc {
			r.RIP, r.RSP = uint64(at(0)), uint64(probetest.StackBase+0x8000)
			if v := e.Hit(0, probe.State{Regs: r}, probe.Trap{Kind: probe.TrapBreakpoint}); v.Action == probe.NotOurs {
				t.Error("a breakpoint of a probe that is being registered is given to the guest")
			}
			early++
		}
	}
	check("register", e.Register(probe.Probes(ps)...), most, most, n-2*most, 0)
	if early != 4 || hits != 1 {
		t.Errorf("of %d hits in the stops of the registration %d were handled, want the last one of 4", early, hits)
	}
	target.after = nil
	check("disable", e.Disable(ps...), most, most, n-2*most)
	untouched("disabled")
	check("enable", e.Enable(ps...), most, most, n-2*most, 0)
	check("disarm", e.DisarmAll(), most, most, n-2*most)
	untouched("disarmed")
	check("arm", e.ArmAll(), most, most, n-2*most)
	check("unregister", e.Unregister(ps...), most, most, n-2*most)
	untouched("unregistered")

	for _, p := range ps {
		p.Addr = 0
	}
	target.wrong = at(n - 1)
	var refused *probe.Error
	if err := e.Register(probe.Probes(ps)...); !errors.As(err, &refused) || refused.Index != n-1 || refused.Code != probe.CodeTextChanged {
		t.Errorf("a registration with a wrong text fails with %v", err)
	}
	untouched("after a failure")
	if left := len(e.List()); left != 0 {
		t.Errorf("%d probes are left after a failure", left)
	}
	for _, count := range target.take() {
		if count > most {
			t.Errorf("a stop of the failed registration changed %d places", count)
		}
	}
	target.wrong = 0
	check("again", e.Register(probe.Probes(ps)...), most, most, n-2*most, 0)
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	untouched("closed")
}
