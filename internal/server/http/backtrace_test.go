package http

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/guest/debuginfo"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// gdbArguments has GDB print the arguments of all frames, a line each: the frame's address, the name, and the number
// that is there, or ? where it is optimized out. Functions that are inlined are left out, as in api.StackFrame.
const gdbArguments = `
import gdb
f = gdb.newest_frame()
while f is not None:
    if f.type() != gdb.INLINE_FRAME and f.function() is not None:
        b = f.block()
        while b.function is None or b.function.name != f.function().name:
            b = b.superblock
        for s in b:
            if s.is_argument:
                try:
                    v = s.value(f)
                    print("ARG", "%x" % f.pc(), s.name, "?" if v.is_optimized_out else "%x" % (int(v) & 0xffffffffffffffff))
                except gdb.error as e:
                    print("ARG", "%x" % f.pc(), s.name, "?")
    f = f.older()
`

// scratch is a register that functions need not preserve. GDB takes it that they have, which is so where the compiler has seen to it.
var scratch = regexp.MustCompile(`^was in %(ax|cx|dx|si|di|r8|r9|r10|r11),`)

// TestOuterArguments: what a backtrace has of the arguments of callers is what GDB finds in the same guest, and it has all that GDB
// finds, but for what is computed of what callers have passed.
func TestOuterArguments(t *testing.T) {
	program := kvmtest.RequireCommand(t, "gdb")
	h := serveMachine(t, 1)
	dir := t.TempDir()
	image, core, script := filepath.Join(dir, "guest"), filepath.Join(dir, "core"), filepath.Join(dir, "arguments.py")
	for file, b := range map[string][]byte{image: builtin.ELF(), script: []byte(gdbArguments)} {
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outer, beyond, passed := 0, 0, 0 // arguments of callers that are known, those that GDB alone knows, and those by what callers have passed
	info, err := h.s.guest.Source()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.c.Pause(h.ctx); err != nil {
		t.Fatal(err)
	}
	timeout := 60000
	for _, function := range []string{"vfs_read", "do_fork", "timer_interrupt", "do_syscall", "vfs_read"} {
		if s, err := h.c.Step(h.ctx, api.Step{How: api.StepUntil, At: function, TimeoutMS: &timeout}); err != nil || !s.Reached {
			t.Fatalf("until %s: %+v, %v", function, s, err)
		}
		for range 2 {
			list, err := h.c.Backtraces(h.ctx, remote.Where{})
			if err != nil || len(list.Backtraces) != 1 {
				t.Fatal(list, err)
			}
			theirs := h.gdbArguments(program, image, core, script)
			for i, f := range list.Backtraces[0].Frames {
				entered := map[string]bool{}
				vars, _ := info.Variables(uint64(f.Addr)-1, "") // none where nothing is known of the place
				for _, v := range vars {
					entered[v.Name] = v.Parameter && v.Where.Base == debuginfo.BaseEntry && i > 0
				}
				for _, a := range f.Args {
					at := fmt.Sprintf("%x %s", uint64(f.Addr), a.Name)
					want, told := theirs[at]
					got, ok := cNumber(a.Value)
					switch {
					case !told:
						t.Errorf("%s: frame %d, %s: GDB does not know it", function, i, at)
					case a.Value == "" && want != "?" && (strings.Contains(a.Why, "DW_OP_entry_value") || scratch.MatchString(a.Why)):
						t.Logf("%s: frame %d, %s: GDB has %s, not had here: %s", function, i, at, want, a.Why)
						beyond++
					case a.Value == "" && want != "?":
						t.Errorf("%s: frame %d, %s: GDB has %s, not had here: %s", function, i, at, want, a.Why)
					case a.Value != "" && (!ok || got != want):
						t.Errorf("%s: frame %d, %s: %s, and GDB has %s", function, i, at, a.Value, want)
					case a.Value != "" && entered[a.Name]:
						passed++
					case a.Value != "" && f.Addr != list.Backtraces[0].Frames[0].Addr:
						outer++
					}
				}
			}
			if _, err := h.c.Step(h.ctx, api.Step{How: api.StepNext, Count: 7, TimeoutMS: &timeout}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if t.Logf("%d arguments of callers, %d that were passed, %d more in GDB", outer, passed, beyond); outer < 5 || passed < 2 {
		t.Errorf("%d and %d arguments of callers are known", outer, passed)
	}
}

// gdbArguments returns what GDB says of the guest as it is now.
func (h *harness) gdbArguments(program, image, core, script string) map[string]string {
	h.Helper()
	s, _ := h.save()
	f, err := os.Create(core)
	if err == nil {
		_, err = s.WriteELF(f)
		f.Close()
	}
	if err != nil {
		h.Fatal(err)
	}
	out, err := exec.CommandContext(h.ctx, program, "--nx", "-q", "-batch", "-ex", "set debuginfod enabled off", image, core, "-x", script).CombinedOutput()
	if err != nil {
		h.Fatalf("%v: %s", err, out)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if w := strings.Fields(line); len(w) == 4 && w[0] == "ARG" {
			all[w[1]+" "+w[2]] = w[3]
		}
	}
	if len(all) == 0 {
		h.Fatalf("GDB says nothing of arguments: %s", out)
	}
	return all
}

// cNumber is a value as C writes it, in hexadecimal with 64 bits.
func cNumber(text string) (string, bool) {
	switch text {
	case "true", "false":
		return map[string]string{"true": "1", "false": "0"}[text], true
	}
	var v int64
	if _, err := fmt.Sscanf(text, "%v", &v); err == nil {
		return fmt.Sprintf("%x", uint64(v)), true
	}
	var u uint64
	_, err := fmt.Sscanf(text, "%v", &u)
	return fmt.Sprintf("%x", u), err == nil
}
