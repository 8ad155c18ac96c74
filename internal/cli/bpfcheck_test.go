package cli

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestBPFCheck says of programs how large they are, how long they run at most, and where.
func TestBPFCheck(t *testing.T) {
	const dir = "../../probe/bpf/testdata/obj/"
	for file, want := range map[string]struct {
		runs, why string
		steps     int64
	}{
		"record.o": {api.RunsInGuest, "", 1 << 15},
		"slow.o":   {api.RunsInGuest, "", bpf.DefaultBudget + 18},
		"sizes.o":  {api.RunsOnHost, "hash_of_maps", 1 << 10},
	} {
		o := checkObject(t.Context(), dir+file, bpf.Selection{}, bpf.Allowed{})
		if o.Error != "" || len(o.Programs) != 1 {
			t.Errorf("%s: %+v", file, o)
			continue
		}
		p := o.Programs[0]
		if p.Runs != want.runs || !strings.Contains(p.Why, want.why) || p.Instructions == 0 || (p.CodeBytes > 0) != (want.runs == api.RunsInGuest) {
			t.Errorf("%s: %+v", file, p)
		}
		if p.Steps < int64(p.Instructions) || p.Steps > want.steps || want.steps > bpf.DefaultBudget && p.Steps != want.steps {
			t.Errorf("%s: %d steps, want at most %d", file, p.Steps, want.steps)
		}
		if (len(o.Notes) > 0) != (file == "sizes.o") {
			t.Errorf("%s: notes %q", file, o.Notes)
		}
	}
}
