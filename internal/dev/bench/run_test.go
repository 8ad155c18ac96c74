package bench

import (
	"context"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestRun makes one short run and checks what must hold on every host: exits
// per hit as the plan says, every call hit, none missed, unbuilt kinds named.
func TestRun(t *testing.T) {
	kvmtest.Require(t)
	calls := kvmtest.ChooseSize(60, 300)
	res, err := Run(patience.Context(t), Options{Runs: MinRuns, Calls: calls})
	if err != nil {
		t.Fatal(err)
	}
	exits := map[string]float64{"k": 2, "b": 1, "e": 1, "o": 1, "r": 2, "ro": 2, "j": 1, "kr": 2, "jr": 2}
	for _, r := range res.Rows {
		want, built := exits[r.Name]
		switch {
		case !built && (r.Unavailable == "" || r.NsPerHit != nil):
			t.Errorf("%s at CPL%d is not built, and yet has figures", r.Name, r.CPL)
		case built && r.Unavailable != "":
			t.Errorf("%s at CPL%d: %s", r.Name, r.CPL, r.Unavailable)
		case built && (r.ExitsPerHit != want || r.Hits != uint64(MinRuns*calls) || r.Missed != 0):
			t.Errorf("%s at CPL%d: %v exits per hit, %d hits, %d missed; want %v, %d, 0", r.Name, r.CPL, r.ExitsPerHit, r.Hits, r.Missed, want, MinRuns*calls)
		}
	}
	if res.Startup.KVMNs == nil || res.Startup.GuestNs == nil || res.Startup.GuestNs.Median <= 0 {
		t.Errorf("start-up was not measured: %+v", res.Startup)
	}
	if s := res.Snapshots; s.SaveNs == nil || s.FileBytes == 0 || s.StopNs.Median <= 0 || s.RestoreNs.Median <= 0 || s.ResetNs.Median <= 0 {
		t.Errorf("snapshots were not measured: %s", s.Unavailable)
	}
	if p := res.Profiling; p.Plain == nil || p.Plain.Median <= 0 || len(p.Rates) != 3 || p.Rates[2].Samples == 0 || p.Rates[1].Samples == 0 || p.Rates[0].Slower == nil {
		t.Errorf("profiles were not measured: %+v", p)
	}
	if w := res.Watching; w.Plain == nil || w.Plain.Median <= 0 || len(w.Every) != 2 || w.Every[0].Timed == 0 || w.Every[1].Timed == 0 {
		t.Errorf("top was not measured: %+v", w)
	}
}

// TestRunRefuses: options that make no measurement.
func TestRunRefuses(t *testing.T) {
	for _, o := range []Options{{Runs: MinRuns - 1}, {Runs: MinRuns, Calls: -1}, {Runs: MinRuns, Calls: 1000001}} {
		if _, err := Run(context.Background(), o); err == nil {
			t.Errorf("Run(%+v) made a measurement", o)
		}
	}
}
