package http

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestScriptOrder runs clauses at one place in the order of the source, in the guest and on the host.
func TestScriptOrder(t *testing.T) {
	h := serveMachine(t, 1)
	for _, c := range []struct{ name, script, want string }{
		{"entry", `kprobe:bench_target { print(1); } kprobe:bench_target { print(2); } kprobe:bench_target { print(3); }`, "1 2 3"},
		{"return", `kretprobe:bench_target { print(1); } kretprobe:bench_target { print(2); } kretprobe:bench_target { print(3); }`, "1 2 3"},
		{"both", `kretprobe:bench_target { print("r1"); } kprobe:bench_target { print("e1"); } kretprobe:bench_target { print("r2"); } kprobe:bench_target { print("e2"); }`, "e1 e2 r1 r2"},
		{"offset 0", `kprobe:bench_target { print(1); } kprobe:bench_target+0 { print(2); } kprobe:bench_target { print(3); }`, "1 2 3"},
		{"wildcard", `kprobe:bench_targe* { print(1); } kprobe:bench_target { print(2); } kprobe:*ench_target { print(3); }`, "1 2 3"},
		{"several places", `kprobe:bench_target, kprobe:tcp_v4_rcv /arg0 == 7/ { print(1); } kprobe:tcp_v4_rcv, kprobe:bench_target /arg0 == 7/ { print(2); }`, "1 2"},
		{"one clause twice", `kprobe:bench_target, kprobe:bench_target { @n++; print(@n + 0); } kprobe:bench_target { print("last"); } END { clear(@n); }`, "1 2 last"},
		{"state", `kprobe:bench_target { @x = 1; } kprobe:bench_target /@x == 1/ { @x = 2; } kprobe:bench_target /@x == 2/ { print("saw"); } END { clear(@x); }`, "saw"},
		{"BEGIN and END", `BEGIN { print("b1"); } kprobe:bench_target { print("k"); } END { print("e1"); } BEGIN { print("b2"); } END { print("e2"); }`, "b1 b2 k e1 e2"},
		{"fentry", `fentry:bench_target { print(1); } k:bench_target { print(2); } fexit:bench_target { print(3); } kr:bench_target { print(4); }`, "1 2 3 4"},
		{"watch", `watchpoint:bench_target:1:x { print(1); } watchpoint:bench_target:1:x { print(2); }`, "1 2"},
	} {
		for _, onHost := range []bool{false, true} {
			if c.name == "watch" && onHost {
				continue
			}
			s, start := h.script(api.RunScript{Script: c.script, OnHost: onHost, Emulate: c.name == "watch"})
			if _, err := h.c.Call(h.ctx, api.Call{Symbol: "bench_target", Args: []api.Hex{7}}); err != nil {
				t.Fatal(err)
			}
			if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
				t.Fatal(err)
			}
			out, warnings, _ := h.rest(s)
			if got := strings.Join(strings.Fields(out), " "); got != c.want || len(warnings) > 0 {
				t.Errorf("%s, on the host %v: %q, want %q, warnings %q", c.name, onHost, got, c.want, warnings)
			}
			for i, p := range start.Probes {
				if i > 0 && p.ID <= start.Probes[i-1].ID {
					t.Errorf("%s: probes are not listed in the order of the source: %+v", c.name, start.Probes)
				}
			}
		}
	}
	for _, of := range []string{"uprobe:user_hot", "uretprobe:user_hot"} {
		for _, onHost := range []bool{false, true} {
			s, _ := h.script(api.RunScript{Script: strings.ReplaceAll(`AT { printf("1 "); } AT { printf("2 "); } AT { printf("3 "); exit(); }`, "AT", of), OnHost: onHost})
			if out, _, _ := h.rest(s); !strings.HasPrefix(out, "1 2 3 ") {
				t.Errorf("%s, on the host %v: %q", of, onHost, out)
			}
		}
	}
	// After the guest's code has come anew the order is the same.
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
	out, _, _ := h.rest(s)
	if got := strings.Join(strings.Fields(strings.ReplaceAll(out, "reset", "")), " "); got != "1 2 3 4" {
		t.Errorf("after a reset: %q", out)
	}
	h.noScript()
}

// TestScriptClockOrder runs clauses of one period in the order of the source, each time.
func TestScriptClockOrder(t *testing.T) {
	h := serveMachine(t, 1)
	for _, of := range []string{"interval:ms:5", "profile:ms:5"} {
		script := strings.ReplaceAll(`AT { print(1); } AT { print(2); } AT { print(3); if (++@n == 20) { exit(); } } END { clear(@n); }`, "AT", of)
		s, _ := h.script(api.RunScript{Script: script})
		out, _, _ := h.rest(s)
		got := strings.Join(strings.Fields(out), "")
		if want := strings.Repeat("123", 20); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q", of, got)
		}
	}
}
