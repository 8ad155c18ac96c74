package http

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestFleetUnkept: a daemon whose records no server takes says so in its log, to who lists the fleet, and in its state, until a server
// takes them; nothing is lost meanwhile.
func TestFleetUnkept(t *testing.T) {
	c := keepers(t, 1)
	hs, n, ds := startFleet(t, 1, c.urls, func(o *options) { o.fleetMaps = 10 * time.Millisecond })
	keepReplicas(t, n, 1)
	def := defineScript(t, n, ds, "counts", `kprobe:do_fork { printf("%d\n", arg0); @n = count(); }`)
	h, ctx := hs["vm0"], patience.Context(t)
	state := func() *fleet.Unkept {
		t.Helper()
		ds, err := n.Find(ctx, fleet.Look{Expect: 1, Quiet: 100 * time.Millisecond, State: true})
		if err != nil || len(ds) != 1 || ds[0].State == nil {
			t.Fatalf("%+v, %v", ds, err)
		}
		return ds[0].State.Unkept
	}
	h.g.hit(t, 0, "do_fork", 0, func(*probe.Regs) {})
	readKept(t, n, def, func(k *kept) bool { return k.events["vm0"] == 1 })
	if u := state(); u != nil {
		t.Errorf("unkept from the start: %+v", u)
	}
	nc, err := nats.Connect(c.urls[0])
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if err := js.DeleteStream(ctx, "guestprobe-events"); err != nil {
		t.Fatal(err)
	}
	for range 5 {
		h.g.hit(t, 0, "do_fork", 0, func(*probe.Regs) {})
	}
	for state() == nil {
		if ctx.Err() != nil {
			t.Fatal("nobody says that records are not kept")
		}
	}
	st, err := reach(t, n, ds[0]).Fleet(ctx, 0)
	if err != nil || st.Unkept == nil || st.Unkept.Error == "" || st.Unkept.Since.IsZero() {
		t.Errorf("%+v, %v", st.Unkept, err)
	}
	keepReplicas(t, n, 1)
	readKept(t, n, def, func(k *kept) bool { return k.events["vm0"] == 5 })
	for state() != nil {
		if ctx.Err() != nil {
			t.Fatal("records are kept, and nobody says so")
		}
	}
	for want, times := range map[string]int{"fleet: records are not kept": 1, "fleet: records are kept again": 1} {
		if got := strings.Count(h.log.String(), want); got != times {
			t.Errorf("%d lines with %q, want %d", got, want, times)
		}
	}
}
