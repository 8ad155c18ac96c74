package http

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
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
		if want := fmt.Sprintf("true\n\n\n@first: %d\n@last: %[1]d\n@n: %d\n", handled, 2000*handled); out != want || handled == 0 || len(warnings) > 0 {
			t.Errorf("round %d: printed %q, want %q; warnings %q, %+v", round, out, want, warnings, stats)
		}
	}
}

// TestScriptReadsAnywhere: what runs on no hit reads the memory of the guest's kernel, too,
// and what errorf says comes as a warning.
func TestScriptReadsAnywhere(t *testing.T) {
	h := serveFake(t, nil)
	sym, err := h.g.img.Lookup("vfs_read")
	if err != nil {
		t.Fatal(err)
	}
	s, _ := h.script(api.RunScript{Script: `BEGIN { printf("%rh\n", buf(kaddr("vfs_read"), 5)); print(*(uint64 *)0x10); assert(*(uint8 *)kaddr("vfs_read") == 1, "one"); print("never"); }`})
	out, warnings, end := h.rest(s)
	want := fmt.Sprintf("% x\n0\n\n\n", h.g.img.Code(sym.Addr, 5))
	if out != want || end.Code == nil || *end.Code != 1 {
		t.Errorf("printed %q, want %q; %+v", out, want, end)
	}
	if len(warnings) != 2 || warnings[0] != "stdin:1:77-124: ERROR: assert failed: one" || !strings.Contains(warnings[1], "WARNING: Bad address") {
		t.Errorf("warnings %q", warnings)
	}
}
