package daemon

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/guestprobe/guestprobe/internal/api"
)

// TestScriptTotals ends scripts while their long program runs in the guest all the time, on
// a busy host: what is printed is of whole runs, of as many as hits were handled, and
// nothing is added behind it.
func TestScriptTotals(t *testing.T) {
	h := serveMachine(t, 2)
	h.attach("p:first user_hot a=%di")
	h.await("first", "in the guest", func(p api.Probe) bool { return p.Runs == api.RunsInGuest && h.inGuest("first") > 0 })
	if _, err := h.c.Detach(h.ctx, "first"); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	defer close(stop)
	for range runtime.NumCPU() {
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
			}
		}()
	}
	for round := range 12 {
		s, start := h.script(api.RunScript{Script: `kprobe:user_hot { @first = count(); for ($i : 0..2000) { @n++; } @last = count(); }
interval:ms:2 { if (@first > 20) { exit(); } } END { print(@n == 2000 * @first); }`})
		if p := start.Probes[0]; p.Runs != api.RunsInGuest {
			t.Fatalf("it runs on the host: %s", p.OnHost)
		}
		out, warnings, end := h.rest(s)
		stats := end.Probes[0].Stats
		handled := stats.Handled
		if want := fmt.Sprintf("true\n\n\n@first: %d\n@last: %[1]d\n@n: %d\n", handled, 2000*handled); out != want || handled == 0 || stats.Hits != handled || len(warnings) > 0 {
			t.Errorf("round %d: printed %q, want %q; warnings %q, %+v", round, out, want, warnings, stats)
		}
	}
}
