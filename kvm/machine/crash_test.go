package machine

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
)

// TestBuiltinCrashes has the built-in guest crash in each of its ways.
func TestBuiltinCrashes(t *testing.T) {
	for _, tc := range []struct {
		how     string
		phase   Phase
		exit    uint32
		console string // in one of the last lines
	}{
		{how: "triple", phase: PhaseCrashed},
		{how: "panic", phase: PhaseExited, exit: builtin.ExitPanic, console: "panic: crash=panic"},
		{how: "pf", phase: PhaseExited, exit: builtin.ExitPanic, console: "panic: page fault"},
		{how: "gp", phase: PhaseExited, exit: builtin.ExitPanic, console: "panic: general protection"},
		{how: "ud", phase: PhaseExited, exit: builtin.ExitPanic, console: "panic: invalid opcode"},
		{how: "df", phase: PhaseExited, exit: builtin.ExitPanic, console: "panic: double fault"},
		{how: "exit", phase: PhaseExited, exit: 3},
	} {
		t.Run(tc.how, func(t *testing.T) {
			m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "crash=" + tc.how})
			over := m.Ended()
			select {
			case <-over:
				t.Error("it is over before it has begun")
			default:
			}
			s := run(t, m)
			<-over
			if s.Phase != m.Phase() {
				t.Errorf("phase %s, and in the state %s", m.Phase(), s.Phase)
			}
			if s.Phase != tc.phase || s.ExitCode != tc.exit {
				t.Errorf("phase %s, exit code %d; want %s, %d", s.Phase, s.ExitCode, tc.phase, tc.exit)
			}
			found := tc.console == ""
			for _, l := range m.Console().tail(consoleMaxLines) {
				found = found || strings.Contains(l.Text, tc.console)
			}
			if !found {
				t.Errorf("console has no %q: %q", tc.console, texts(m.Console().tail(20)))
			}
			if err := m.Reset(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			select {
			case <-m.Ended():
				t.Error("it is over behind a reset")
			default:
			}
			if (s.Crash != nil) != (tc.phase == PhaseCrashed) {
				t.Fatalf("crash report %v", s.Crash)
			}
			if s.Crash == nil {
				return
			}
			t.Logf("%v", s.Crash)
			if s.Crash.Kind != CrashTripleFault || len(s.Crash.Console) == 0 {
				t.Errorf("report %+v", s.Crash)
			}
			if s.Crash.RegsLost {
				return // SVM
			}
			if !strings.HasPrefix(s.Crash.Symbol, "crash_on_purpose+") || !strings.Contains(s.Crash.String(), "=> ") {
				t.Errorf("report does not say where:\n%v", s.Crash)
			}
		})
	}
}

// TestCrashReportShowsCode checks registers, code and symbols of a report
// against a guest made for it, with a probe at the crash: the report shows the
// guest's instruction, not the probe's.
func TestCrashReportShowsCode(t *testing.T) {
	code := asm(
		movRAX(0x1122334455667788),                    // 0
		[]byte{0x48, 0x89, 0xc3},                      // 10 mov %rax, %rbx
		[]byte{0x90},                                  // 13 nop
		[]byte{0x48, 0x8b, 0x0c, 0x25, 0, 0, 0, 0x70}, // 14 mov 0x70000000, %rcx
		hltForever,
	)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, tinySym{"start", tinyText, uint64(len(code))}), Memory: 16 << 20, Tick: -1})
	s := run(t, m)
	if s.Phase != PhaseCrashed || s.Crash.Kind != CrashTripleFault {
		t.Fatalf("state %+v", s)
	}
	r := s.Crash
	if r.RegsLost {
		return // SVM
	}
	if r.Regs.RAX != 0x1122334455667788 || r.Regs.RBX != r.Regs.RAX || r.Regs.RIP != tinyText+14 || r.Symbol != "start+0xe" || r.Control.CR2 != 0x70000000 {
		t.Errorf("report\n%v", r)
	}
	var listing []string
	for _, l := range r.Code {
		text := l.Text
		if l.Current {
			text = "=> " + text
		}
		listing = append(listing, text)
	}
	want := "movabs $0x1122334455667788,%rax|mov %rax,%rbx|nop|=> mov 0x70000000,%rcx|cli|hlt"
	if got := strings.Join(listing, "|"); !strings.HasPrefix(got, want) {
		t.Errorf("listing\n%s\nwant\n%s", got, want)
	}
}
