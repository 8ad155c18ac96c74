package http

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptOrderAfterReset runs clauses in the order of the source after a reset by a request, beside a program of that event. The suite of
// probe/session has the order of all kinds of clauses.
func TestScriptOrderAfterReset(t *testing.T) {
	h := serveMachine(t, 1)
	s, start := h.script(api.RunScript{Script: `kprobe:bench_target { print(1); } kretprobe:bench_target { print(3); } kprobe:bench_target { print(2); } kretprobe:bench_target { print(4); } vm:reset { print("reset"); }`})
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.Call(h.ctx, api.Call{Symbol: "bench_target", Args: []api.Hex{7}}); err != nil {
		t.Fatal(err)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	out, _, _ := h.readRest(s)
	if got := strings.Join(strings.Fields(strings.ReplaceAll(out, "reset", "")), " "); got != "1 2 3 4" {
		t.Errorf("after a reset: %q", out)
	}
	h.checkNoScript()
}

// TestScriptStreamClocks runs clauses of one period in the order of the source, each time: the daemon's loop and its sampler have the clocks.
// The suite of probe/session has the order by a clock of the session's own.
func TestScriptStreamClocks(t *testing.T) {
	h := serveMachine(t, 1)
	for _, of := range []string{"interval:ms:5", "profile:ms:5"} {
		script := strings.ReplaceAll(`AT { print(1); } AT { print(2); } AT { print(3); if (++@n == 20) { exit(); } } END { clear(@n); }`, "AT", of)
		s, _ := h.script(api.RunScript{Script: script})
		out, _, _ := h.readRest(s)
		got := strings.Join(strings.Fields(out), "")
		if want := strings.Repeat("123", 20); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", of, got)
		}
	}
}
