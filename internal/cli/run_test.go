package cli

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestMissedHits: a script reports the hits that its probes missed, and nothing for probes without
// missed hits.
func TestMissedHits(t *testing.T) {
	end := api.End{Probes: []api.Probe{
		{Symbol: "vfs_read", Offset: 4, Stats: api.Stats{Counts: api.Counts{Hits: 12, Handled: 10, Missed: 2}}},
		{Symbol: "vfs_write", Stats: api.Stats{Counts: api.Counts{Hits: 3, Handled: 3}}},
		{Symbol: "do_fork", Stats: api.Stats{Counts: api.Counts{Hits: 1, Missed: 1}}},
	}}
	if got, want := strings.Join(missTexts(end), "\n"), "vfs_read+0x4 missed 2 hits of 12\ndo_fork+0x0 missed 1 hit of 1"; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
