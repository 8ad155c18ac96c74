package http

import (
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptOverride: functions return what a script says, without running, where it may say
// that.
func TestScriptOverride(t *testing.T) {
	h := serveMachine(t, 1)
	call := func(arg uint64) uint64 {
		t.Helper()
		r, err := h.c.Call(h.ctx, api.Call{Symbol: "bench_target", Args: []api.Hex{api.Hex(arg), 1}})
		if err != nil {
			t.Fatal(err)
		}
		return uint64(r.Ret)
	}
	seven, eight := call(7), call(8)
	for _, text := range []string{
		`kprobe:bench_target /arg0 == 7/ { override(arg1 + 41); @after++; }`,
		`kprobe:bench_target { @after += 1; if (arg0 == 7) { return(42); } @after -= 1; }`,
	} {
		_, err := h.c.RunScript(h.ctx, api.RunScript{Script: text})
		if e := (*api.Error)(nil); !errors.As(err, &e) || e.Code != api.CodeBadScript || !strings.Contains(e.Message, "is an unsafe function being used in safe mode") {
			t.Fatalf("%s: %v", text, err)
		}
		s, start := h.script(api.RunScript{Script: text, Unsafe: true})
		if p := start.Probes[0]; p.Runs != api.RunsOnHost || !strings.Contains(p.OnHost, "only the engine may") {
			t.Errorf("runs %s: %s", p.Runs, p.OnHost)
		}
		for range 3 {
			if a, b := call(7), call(8); a != 42 || b != eight {
				t.Errorf("%s: returns %d and %d, want 42 and %d", text, a, b, eight)
			}
		}
		if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
			t.Fatal(err)
		}
		if out, warnings, _ := h.rest(s); out != "\n\n@after: 3\n" || len(warnings) > 0 {
			t.Errorf("%s prints %q, %q", text, out, warnings)
		}
		if a := call(7); a != seven {
			t.Errorf("behind the end it returns %d, want %d", a, seven)
		}
	}
	for _, text := range []string{`kretprobe:bench_target { override(1); }`, `kprobe:bench_target+4 { override(1); }`, `BEGIN { return(1); }`, `kprobe:bench_target { return("a"); }`} {
		if _, err := h.c.RunScript(h.ctx, api.RunScript{Script: text, Unsafe: true}); err == nil {
			t.Errorf("%s is not refused", text)
		}
	}
	h.noScript()
}
