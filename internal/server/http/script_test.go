package http

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// script starts a script, and returns its stream and the number of that.
func (h *harness) script(r api.RunScript) (*remote.Stream, api.Start) {
	h.Helper()
	s, err := h.c.RunScript(h.ctx, r)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { s.Close() })
	return s, next[api.Start](h, s, api.RecordStart)
}

// readRest reads a script's stream to its end: what was printed, the warnings, and the end.
func (h *harness) readRest(s *remote.Stream) (out string, warnings []string, end api.End) {
	h.Helper()
	for {
		r, err := s.Next()
		if err != nil {
			h.Fatal(err)
		}
		switch r.Type {
		case api.RecordOutput:
			out += decode[api.Output](h, r).Text
		case api.RecordWarning:
			warnings = append(warnings, decode[api.Warning](h, r).Text)
		case api.RecordEnd:
			return out, warnings, decode[api.End](h, r)
		}
	}
}

// read hits vfs_read on a vCPU.
func (h *harness) read(cpu int, count uint64) {
	h.Helper()
	if !h.g.hit(h.T, cpu, "vfs_read", 0, func(r *probe.Regs) { r.RDI, r.RDX = 3, count }) {
		h.Fatal("not hit")
	}
}

// TestScriptStream is about the records of a script's stream, from the start to the end that is asked for, and what it counts. TestScriptOutput of
// probe/session has the script.
func TestScriptStream(t *testing.T) {
	h := serveFake(t, nil)
	s, start := h.script(api.RunScript{Script: `BEGIN { printf("begin\n"); @x = 1; }
kprobe:vfs_read { @x++; @[arg2] = count(); @h = hist(arg2); printf("%s %d\n", func, arg2); }
END { printf("end\n"); }`})
	if len(start.Probes) != 1 || start.Attached != 3 || start.Probes[0].Runs != api.RunsOnHost || !start.Probes[0].Enabled {
		t.Errorf("start %+v", start)
	}
	for cpu, n := range []uint64{7, 100} {
		h.read(cpu, n)
		h.read(cpu, 7)
	}
	if ms, err := h.c.Maps(h.ctx); err != nil || len(ms) != 5 { // @, @h, @x, the ring and the sites
		t.Errorf("maps %+v, %v", ms, err)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	out, warnings, end := h.readRest(s)
	want := `begin
vfs_read 7
vfs_read 7
vfs_read 100
vfs_read 7
end


@[100]: 1
@[7]: 3
@h:
[4, 8)                 3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|
[8, 16)                0 |                                                    |
[16, 32)               0 |                                                    |
[32, 64)               0 |                                                    |
[64, 128)              1 |@@@@@@@@@@@@@@@@@                                   |

@x: 5
`
	if out != want || len(warnings) > 0 {
		t.Errorf("printed\n%s\nwant\n%s\nwarnings %q", out, want, warnings)
	}
	if end.Reason != api.EndAsked || end.Delivered != 6 || end.Lost != 0 || len(end.Probes) != 1 || end.Probes[0].Stats.Handled != 4 {
		t.Errorf("end %+v", end)
	}
	h.checkNoScript()
}

// checkNoScript checks that nothing is left of scripts.
func (h *harness) checkNoScript() {
	h.Helper()
	if ms, err := h.c.Maps(h.ctx); err != nil || len(ms) > 0 {
		h.Errorf("maps %+v, %v", ms, err)
	}
	if ps, err := h.c.Probes(h.ctx); err != nil || len(ps) > 0 {
		h.Errorf("probes %+v, %v", ps, err)
	}
	h.checkIdentical(true)
}

// TestScriptStreamEnds is about the reasons for which streams of scripts end, each with its status and its last text.
func TestScriptStreamEnds(t *testing.T) {
	h := serveFake(t, nil)
	s, _ := h.script(api.RunScript{Script: `BEGIN { exit(3); } kprobe:vfs_read { @++; }`})
	out, _, end := h.readRest(s)
	if end.Reason != api.EndExit || end.Code == nil || *end.Code != 3 || out != "\n\n" {
		t.Errorf("exit: %q, %+v", out, end)
	}
	h.checkNoScript()

	s, _ = h.script(api.RunScript{Script: `BEGIN { print($1 + 1); @["a"] = 5; }`, Args: []string{"41"}, Format: api.ScriptJSON})
	out, _, end = h.readRest(s)
	if want := `{"type": "attached_probes", "count": 1, "data": {"probes": 1}}` + "\n" + `{"type": "value", "data": 42}` + "\n" + `{"type": "map", "data": {"@": {"a": 5}}}` + "\n"; end.Reason != api.EndExit || out != want {
		t.Errorf("only BEGIN: %q, %+v", out, end)
	}
	for line := range strings.Lines(out) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}

	s, _ = h.script(api.RunScript{Script: `interval:ms:1 { @++; if (@ == 3) { exit(); } }`})
	if out, _, end = h.readRest(s); out != "\n\n@: 3\n" || *end.Code != 0 {
		t.Errorf("interval: %q, %+v", out, end)
	}

	// Somebody takes its probes away.
	s, start := h.script(api.RunScript{Script: `kprobe:vfs_read { @++; } END { printf("end\n"); }`})
	h.read(0, 1)
	if _, err := h.c.Detach(h.ctx, start.Probes[0].Name); err != nil {
		t.Fatal(err)
	}
	if out, _, end = h.readRest(s); end.Reason != api.EndDetached || out != "end\n\n\n@: 1\n" {
		t.Errorf("detached: %q, %+v", out, end)
	}
	h.checkNoScript()

	// The client goes away.
	s, _ = h.script(api.RunScript{Script: `kprobe:vfs_read { @++; }`})
	s.Close()
	for {
		if h.ctx.Err() != nil {
			t.Fatal("it stays")
		}
		if ms, err := h.c.Maps(h.ctx); err == nil && len(ms) == 0 && len(h.probes()) == 0 {
			break
		}
	}
	h.checkNoScript()

	// The daemon stops.
	s, _ = h.script(api.RunScript{Script: `kprobe:vfs_read { @++; }`})
	h.read(0, 1)
	h.cancel()
	if out, _, end = h.readRest(s); end.Reason != api.EndShutdown || out != "\n\n@: 1\n" {
		t.Errorf("shutdown: %q, %+v", out, end)
	}
}

// probes are those that are attached.
func (h *harness) probes() []api.Probe {
	h.Helper()
	ps, err := h.c.Probes(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	return ps
}

// TestScriptErrorAnswer is about the errors of scripts: code, errno, message, line, column and width.
func TestScriptErrorAnswer(t *testing.T) {
	h := serveFake(t, nil)
	for _, c := range []struct {
		script, errno, message, command string
		column, width                   int
	}{
		{"BEGIN { print(fake); }", "EINVAL", "stdin:1:15-19: ERROR: Unknown identifier: 'fake'", "BEGIN { print(fake); }", 14, 4},
		{"kprobe:vfs_red { }", "EINVAL", "stdin:1:1-15: ERROR: No matches for kprobe vfs_red", "kprobe:vfs_red { }", 0, 14},
		{"BEGIN { }\nkprobe:vfs_read+1 { }", "EILSEQ", "stdin:2:1-18: ERROR: kprobe:vfs_read+1: Probe point is not an instruction boundary (vfs_read+0x1 is inside an instruction)", "kprobe:vfs_read+1 { }", 0, 17},
	} {
		_, err := h.c.RunScript(h.ctx, api.RunScript{Script: c.script})
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeBadScript || e.Errno != c.errno || e.Message != c.message || e.Command != c.command || *e.Column != c.column || *e.Width != c.width {
			t.Errorf("%s: %+v", c.script, err)
		}
	}
	if _, err := h.c.RunScript(h.ctx, api.RunScript{Script: "BEGIN { }", Format: "xml"}); !strings.Contains(err.Error(), "want text or json") {
		t.Error(err)
	}
	h.checkNoScript()
}

// TestScriptFaultRecords is about the records of warnings: the error of a run has its place, and how often it came.
func TestScriptFaultRecords(t *testing.T) {
	h := serveFake(t, nil)
	s, start := h.script(api.RunScript{Script: "kprobe:vfs_read { if (arg2 == 1) { while (1) { $x = 1; } }\n@s = str(arg0); }"})
	h.read(0, 1)
	h.read(0, 2)
	h.read(1, 2)
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	_, warnings, _ := h.readRest(s)
	all := strings.Join(warnings, "\n")
	for _, want := range []string{"stdin:1:", "WARNING: instruction budget used up", "stdin:2:6-15: WARNING: Bad address (2 times)\n@s = str(arg0); }\n     ~~~~~~~~~"} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings\n%s\nwant %s", all, want)
		}
	}
}

// TestScriptEvents: what happens to the guest runs programs, and does not end a script that is
// about its next boot.
func TestScriptEvents(t *testing.T) {
	h := serveFake(t, nil)
	const crash = `vm:crash { printf("crash\n"); } vm:exit { printf("exit\n"); }`
	s, _ := h.script(api.RunScript{Script: crash})
	again, start := h.script(api.RunScript{Script: crash + ` vm:reset { printf("reset\n"); } vm:start { printf("start\n"); }`})
	h.g.become(machine.PhaseCrashed, func(s *machine.State) { s.Crash = &machine.CrashReport{} })
	if out, _, end := h.readRest(s); out != "crash\n\n\n" || end.Reason != api.EndGuestCrash {
		t.Errorf("crash: %q, %+v", out, end)
	}
	if got := next[api.Output](h, again, api.RecordOutput).Text; got != "crash\n" {
		t.Errorf("crash: %q", got)
	}
	if _, err := h.c.Reset(h.ctx, api.ResetGuest{}); err != nil {
		t.Fatal(err)
	}
	out := ""
	for out != "reset\nstart\n" {
		out += next[api.Output](h, again, api.RecordOutput).Text
	}
	h.g.become(machine.PhaseExited, nil)
	if got := next[api.Output](h, again, api.RecordOutput).Text; got != "exit\n" {
		t.Errorf("exit: %q", got)
	}
	if err := h.c.EndStream(h.ctx, start.Stream); err != nil {
		t.Fatal(err)
	}
	if out, _, end := h.readRest(again); out != "\n\n" || end.Reason != api.EndAsked {
		t.Errorf("end: %q, %+v", out, end)
	}
}

// TestScriptImports: a script has the files of its request, an error in one names it, and those of a script without a client are shown.
func TestScriptImports(t *testing.T) {
	h := serveFake(t, nil)
	say := api.ScriptFile{Name: "lib/say.bt", Text: "macro say(x) { printf(\"say %d\\n\", x); }\nBEGIN { say(1); }"}
	text := `import "lib"; BEGIN { say(2); exit(); }`
	s, _ := h.script(api.RunScript{Script: text, Files: []api.ScriptFile{say}})
	if out, _, _ := h.readRest(s); !strings.Contains(out, "say 1\nsay 2\n") {
		t.Errorf("output %q", out)
	}
	if checked, err := h.c.Check(h.ctx, api.Check{Script: &api.RunScript{Script: text, Files: []api.ScriptFile{say}}}); err != nil || checked.Probes != 2 {
		t.Errorf("%+v, %v", checked, err)
	}
	say.Text = "\n" + `macro say(x) { x + "s" }`
	_, err := h.c.RunScript(h.ctx, api.RunScript{Script: `import "lib/say.bt"; BEGIN { print(say(2)); }`, Name: "d/main.bt", Files: []api.ScriptFile{say}})
	var wire *api.Error
	if !errors.As(err, &wire) || wire.Code != api.CodeBadScript || !strings.HasPrefix(wire.Message, "d/lib/say.bt:2:16-23: ERROR: Type mismatch") || wire.Detail != "expanded from d/main.bt:1:36-42" || wire.Command != `macro say(x) { x + "s" }` {
		t.Errorf("%+v", err)
	}
	_, err = h.c.RunScript(h.ctx, api.RunScript{Script: text})
	if !errors.As(err, &wire) || wire.Code != api.CodeBadScript || !strings.Contains(wire.Message, `file "lib" was not given with the script`) {
		t.Errorf("%+v", err)
	}
	if _, err := h.c.DetachScript(h.ctx, api.RunScript{Script: `import "a.h"; kprobe:vfs_read { @ = A; }`, Detach: "kept", Files: []api.ScriptFile{{Name: "a.h", Text: "#define A 5"}}}); err != nil {
		t.Fatal(err)
	}
	if i, err := h.c.Script(h.ctx, "kept", api.ScriptText); err != nil || len(i.Files) != 1 || i.Files[0].Text != "#define A 5" {
		t.Errorf("%+v, %v", i, err)
	}
}

// TestScriptErrorInMacro: an error in a macro has the places of the calls that lead to it.
func TestScriptErrorInMacro(t *testing.T) {
	h := serveFake(t, nil)
	_, err := h.c.RunScript(h.ctx, api.RunScript{Script: `macro deep(x) { x + "s" } macro mid(x) { deep(x) } BEGIN { print(mid(1)); }`})
	var wire *api.Error
	if !errors.As(err, &wire) || wire.Detail != "expanded from 1:42-49; expanded from 1:66-72" || !strings.HasPrefix(wire.Message, "stdin:1:17-24: ERROR: Type mismatch") {
		t.Errorf("%+v", err)
	}
}
