package http

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestOverrideAnswer is about the answer: it has the values that the request has left out, and the calls that returned early.
// The overrides themselves are tested with probe/session, on guests under KVM by kvm/machine.
func TestOverrideAnswer(t *testing.T) {
	h := serveFake(t, nil)
	once := int64(1)
	ps, err := h.c.Attach(h.ctx, api.ProbeSpec{Def: "p:o vfs_read", Unsafe: true, Override: &api.Override{Value: -5, Times: &once}})
	if err != nil {
		t.Fatal(err)
	}
	if o := ps[0].Override; o == nil || o.Value != -5 || *o.Probability != 100 || o.Interval != 1 || *o.Times != 1 || o.Seed == 0 || o.Injected != 0 {
		t.Errorf("%+v", o)
	}
	for range 2 {
		h.g.hit(t, 0, "vfs_read", 0, nil)
	}
	p, err := h.c.Detach(h.ctx, "o")
	if err != nil || p.Override == nil || p.Override.Injected != 1 || p.Override.Seed != ps[0].Override.Seed || p.Stats.Handled != 2 {
		t.Errorf("%+v, %+v, %v", p.Override, p.Stats, err)
	}
}
