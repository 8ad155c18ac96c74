package timeline

import (
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestTraceLine compares lines with ones in the columns that Linux prints them in.
func TestTraceLine(t *testing.T) {
	local := time.Local
	time.Local = time.FixedZone("", 90*60)
	defer func() { time.Local = local }()
	start := api.Start{Epoch: time.Date(2026, 1, 2, 23, 59, 58, 500_000_000, time.UTC), TimeNS: 1_000_000_999, BootNS: 2_000_000_000}
	regs := map[string]api.Hex{"rip": 0x10, "rax": 1}
	for _, tc := range []struct {
		clock string
		h     api.Hit
		want  string
	}{
		{ClockBoot, api.Hit{TimeNS: 4_157_317_999, CPU: 1, Probe: "kprobes/a", Stage: "pre", Text: "(f+0x0/0x10) x=1", Args: []api.Arg{{}}, IRQsOff: true},
			"           <...>-0       [001] d....     2.157317: a: (f+0x0/0x10) x=1\n"},
		{ClockBoot, api.Hit{TimeNS: 123_458_000_000_000, CPU: 63, Probe: "kprobes/a", Stage: "return", Text: "(g+0x1/0x2 <- f)", DurationNS: 1030, Task: &api.Task{PID: 1234567, Comm: "0123456789abcde"}},
			" 0123456789abcde-1234567 [063] ..... 123456.000000: a: (g+0x1/0x2 <- f) [1.030us]\n"},
		{ClockRelative, api.Hit{TimeNS: 2_000_000_999, Probe: "g/a", Stage: "post", Text: "(f+0x0/0x10)", Regs: regs, Task: &api.Task{PID: 7, Comm: "cat"}},
			"             cat-7       [000] .....     1.000000: a.post: (f+0x0/0x10) rax=0x1 rip=0x10\n"},
		{ClockRelative, api.Hit{TimeNS: 999_999_999, Probe: "g/a", Stage: "pre", Text: "\x1b", Task: &api.Task{Comm: "\x1b"}, Late: true},
			`            \x1b-0       [000] .....    -0.000001: a: \x1b [LATE]` + "\n"},
		{ClockWall, api.Hit{TimeNS: 1_999_999_999, Probe: "g/a", Stage: "pre", Text: "x"},
			"           <...>-0       [000] ..... 2026-01-03T01:30:00.499999+01:30: a: x\n"},
		{ClockBoot, api.Hit{TimeNS: 2_000_000_000, Probe: "g/a", Stage: "pre", Text: "x", Stack: []api.Frame{
			{Addr: 1, Symbol: "f", Source: "a.h:7", Inlined: true}, {Addr: 1, Symbol: "g+0x1/0x2", Source: "a\x1b.c:9"}, {Addr: 0x99}}},
			"           <...>-0       [000] .....     0.000000: a: x [stack 1]\n => f (a.h:7) [inlined]\n => g+0x1/0x2 (a\\x1b.c:9)\n => 0x99\n"},
		{ClockBoot, api.Hit{TimeNS: 2_000_000_000, Probe: "g/a", Stage: "pre", Text: "(a\nb+0x0/0x10)", Task: &api.Task{PID: 1, Comm: "c\nd"}, Stack: []api.Frame{{Addr: 1, Symbol: "e\nf+0x1/0x2"}}},
			`            c\nd-1       [000] .....     0.000000: a: (a\nb+0x0/0x10) [stack 1]` + "\n" + ` => e\nf+0x1/0x2` + "\n"},
	} {
		l, err := NewLines(tc.clock, false)
		if err != nil {
			t.Fatal(err)
		}
		l.Start(start)
		if got := l.Line(tc.h); got != tc.want {
			t.Errorf("line %q\nwant %q", got, tc.want)
		}
	}
	l := &Lines{}
	for _, x := range []struct {
		frame string
		want  string
	}{{"f", " [stack 1]\n => f\n"}, {"g", " [stack 2]\n => g\n"}, {"f", " [stack 1]\n"}, {"g", " [stack 2]\n"}} {
		want := "           <...>-0       [000] .....     0.000000: a: x" + x.want
		if got := l.Line(api.Hit{Probe: "g/a", Text: "x", Stack: []api.Frame{{Symbol: x.frame}}}); got != want {
			t.Errorf("line %q\nwant %q", got, want)
		}
	}
	if _, err := NewLines("mono", false); err == nil {
		t.Error("a clock that is none was accepted")
	}
}
