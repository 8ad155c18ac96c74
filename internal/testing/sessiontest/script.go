package sessiontest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/script"
	"github.com/guestprobe/guestprobe/probe/session"
)

var scriptCases = []testCase{
	{name: "script", run: testScript},
	{name: "start_script", run: testStartScript},
	{name: "run_script", run: testRunScript},
	{name: "script_order", run: testScriptOrder},
	{name: "interval_order", run: testIntervalOrder},
	{name: "script_override", run: testScriptOverride},
	{name: "random_scripts", run: testRandomScripts},
	{name: "pattern_leaves_out", run: testPatternLeavesOut},
}

// testScript compiles, loads and ends a script: its records, and its map.
func testScript(v *env) {
	_, err := v.s.CompileScript("kprobe:"+target+" { nonsense(); }", session.ScriptOptions{})
	v.checkRefused(err, session.CodeBadScript)
	sc, err := v.s.CompileScript("kprobe:"+target+` /arg0 > 2/ { printf("%d\n", arg0); @sum = sum(arg0); } END { printf("over\n"); }`, session.ScriptOptions{})
	if err != nil {
		v.Fatal(err)
	}
	s, err := v.s.LoadScript(sc, session.ScriptOptions{})
	if err != nil {
		v.Fatal(err)
	}
	v.call(target, 100) // before the script starts
	if err := s.Begin(); err != nil {
		v.Fatal(err)
	}
	for _, n := range []uint64{1, 3, 5} {
		v.call(target, n)
	}
	if err := s.Disable(); err != nil {
		v.Fatal(err)
	}
	s.RunAll(sc.End, func(name string, err error) { v.Error(name, err) })
	v.s.Poll()
	var out strings.Builder
	printer := s.NewPrinter(false, func(text string) { out.WriteString(text) }, func(text string) { v.Error(text) })
	<-s.Ready()
	s.ForEach(func(r session.ScriptRecord, next []byte) {
		if err := printer.Record(r.Data, next); err != nil {
			v.Error(err)
		}
	})
	printer.PrintMaps()
	if got, want := strings.Join(strings.Fields(out.String()), " "), "3 5 over @sum: 8"; got != want {
		v.Errorf("printed %q, want %q", got, want)
	}
	if _, err := s.Close(); err != nil || len(v.s.Probes())+len(v.s.Maps()) > 0 {
		v.Errorf("left: %s, %v", v.names(), err)
	}
}

// testStartScript: a script from its text to its output.
func testStartScript(v *env) {
	_, err := v.s.StartScript("profile:hz:99 { @++; }", session.ScriptOptions{})
	v.checkRefused(err, session.CodeUnavailable)
	_, err = v.s.StartScript("kprobe:"+target+"+1 { @++; }", session.ScriptOptions{})
	if e := v.checkRefused(err, session.CodeBadScript); !errors.Is(err, syscall.EILSEQ) || !errors.As(err, new(*script.Error)) || !strings.Contains(e.Text, ":1:") {
		v.Errorf("%v", err)
	}
	s, err := v.s.StartScript("BEGIN { @n = 40; } kprobe:"+target+` { @n += arg0; printf("%d\n", arg0); } END { printf("over\n"); }`, session.ScriptOptions{})
	if err != nil {
		v.Fatal(err)
	}
	const calls = session.MaxTaken + 100 // more than one call takes
	for range calls {
		v.call(target, 1)
	}
	var out strings.Builder
	if err := s.Stop(&out); err != nil {
		v.Fatal(err)
	}
	if got, want := strings.Join(strings.Fields(out.String()), " "), strings.Repeat("1 ", calls)+fmt.Sprintf("over @n: %d", 40+calls); got != want {
		v.Errorf("printed %d bytes, %q", len(got), got[max(0, len(got)-40):])
	}
	if v.names() != "" || len(v.s.Maps()) > 0 {
		v.Errorf("left: %s", v.names())
	}
}

// testRunScript: a script prints until it exits by itself, its context ends, or its probes go, at once or after its intervals.
func testRunScript(v *env) {
	run := func(ctx context.Context, text string, during func()) (string, int64) {
		v.Helper()
		s, err := v.s.StartScript(text, session.ScriptOptions{})
		if err != nil {
			v.Fatal(err)
		}
		during()
		var out strings.Builder
		status, err := s.Run(ctx, &out)
		if err != nil || v.names() != "" || len(v.s.Maps()) > 0 {
			v.Errorf("left: %s, %v", v.names(), err)
		}
		return strings.Join(strings.Fields(out.String()), " "), status
	}
	ended, end := context.WithCancel(v.Context())
	end()
	for _, c := range []struct {
		text   string
		ctx    context.Context
		during func()
		want   string
		status int64
	}{
		{"kprobe:" + target + ` { @ = count(); printf("%d\n", arg0); exit(3); }`, patience.Context(v), func() { v.call(target, 7) }, "7 @: 1", 3},
		{`BEGIN { @n = 0; } interval:ms:1 { @n++; printf("%d\n", @n); if (@n == 3) { clear(@n); exit(); } }`, patience.Context(v), func() {}, "1 2 3", 0},
		{"kprobe:" + target + " { @ = count(); }", ended, func() { v.call(target, 7) }, "@: 1", 0},
		{"kprobe:" + target + " { @ = count(); } END { print(5); }", patience.Context(v), func() {
			v.call(target, 7)
			if _, err := v.s.DetachIf(func(*session.Probe) bool { return true }); err != nil {
				v.Error(err)
			}
		}, "5 @: 1", 0},
	} {
		if got, status := run(c.ctx, c.text, c.during); got != c.want || status != c.status {
			v.Errorf("%s: printed %q with status %d, want %q and %d", c.text, got, status, c.want, c.status)
		}
	}
}
