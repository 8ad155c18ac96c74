package cli

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestDemoShow interleaves the hits of two vCPUs: both records of a hit are shown, and no more hits
// than requested.
func TestDemoShow(t *testing.T) {
	d := &demoShow{left: 2, post: true, open: map[int]bool{}}
	for i, tc := range []struct {
		cpu   int
		stage string
		want  bool
	}{
		{0, "post", false}, // its first record came before the stream began
		{0, "pre", true},
		{1, "pre", true},
		{2, "pre", false},
		{2, "post", false},
		{1, "post", true},
		{1, "pre", false},
		{1, "post", false},
		{0, "post", true},
	} {
		if got := d.wants(api.Hit{CPU: tc.cpu, Stage: tc.stage}); got != tc.want {
			t.Errorf("record %d, %s on vCPU %d: shown %v, want %v", i, tc.stage, tc.cpu, got, tc.want)
		}
	}
	if d.left != 0 || len(d.open) != 0 {
		t.Errorf("left %d, open %v", d.left, d.open)
	}
}
