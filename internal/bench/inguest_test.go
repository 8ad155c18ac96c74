package bench

import (
	"testing"

	"github.com/guestprobe/guestprobe/internal/kvmtest"
	"github.com/guestprobe/guestprobe/internal/patience"
)

// TestInGuestRows measures everything that takes no exit, once: each row has
// as many hits as calls, and no exit.
func TestInGuestRows(t *testing.T) {
	kvmtest.Require(t)
	ctx := patience.Of(t)
	g, _, _, err := bootGuest(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer g.close(ctx)
	rows, err := g.inGuestRows(ctx, 9)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if r.Unavailable != "" {
			t.Errorf("%s: %s", r.Name, r.Unavailable)
			continue
		}
		t.Logf("%-14s %6.1f ns a call, at least %6.1f, %6.1f of it the probe; %d hits, %d exits", r.Name, r.CallNs.Median, r.CallNs.Min, r.OverNs, r.Hits, r.Exits)
	}
}
