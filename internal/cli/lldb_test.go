package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestLLDB is an LLDB session with the built-in guest on two vCPUs: commands, and regular expressions that the output must match,
// one after the other.
func TestLLDB(t *testing.T) {
	lldb := kvmtest.RequireCommand(t, "lldb")
	kvmtest.Require(t)
	ctx := patience.Context(t)
	dir, socket, end := debuggee(ctx, t)
	file := filepath.Join(dir, "guest")
	if err := os.WriteFile(file, builtin.ELF(), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"--no-lldbinit", "--batch"}
	steps := [][]string{
		{"target create " + file, `Current executable set to `},
		{"process connect -p gdb-remote unix-connect://" + socket + api.GDBSuffix, `Process 1 stopped`, `stop reason = signal SIGINT`},
		{"thread list", `thread #1: tid = 0x0001`, `thread #2: tid = 0x0002`},
		{"breakpoint set -n vfs_read", "Breakpoint 1: where = guest`vfs_read at fs.c:"},
		{"process continue", `stop reason = breakpoint 1\.1`, "guest`vfs_read\\(fd="},
		{"bt 2", `frame #0: .*vfs_read\(`, `frame #1: .*(work_files|do_syscall)\(`},
		{"register read rip cr3 efer", `rip = 0x[0-9a-f]+  guest.vfs_read`, `cr3 = 0x0000000040000000`, `efer = 0x0000000000000d00`},
		{"disassemble -c 2", `endbr64`, `subl +\$0x3, %edi`},
		{"thread step-inst", `stop reason = instruction step into`, `0x[0-9a-f]+4 guest.vfs_read`},
		{"thread step-inst", `stop reason = instruction step into`, `0x[0-9a-f]+7 guest.vfs_read`},
		{"frame variable count", `\(u64\) count = \d+`},
		{"memory read --format x --size 8 --count 1 $rsp", `0xffffffff80`},
		{"register write rax 0x1234"},
		{"register read rax", `rax = 0x0000000000001234`},
		{"memory write &vfs_bytes_read 7"},
		{"expression vfs_bytes_read", `\(u64\) \$\d+ = \d+`},
		{"breakpoint delete 1", `1 breakpoints deleted`},
		{"watchpoint set variable vfs_bytes_read", `Watchpoint 1: addr = 0x`},
		{"process continue", `Watchpoint 1 hit`, `new value: \d+`, `stop reason = watchpoint 1`},
		{"watchpoint delete 1", `1 watchpoints deleted`},
		{"breakpoint set -H -n do_fork", "Breakpoint 2: where = guest`do_fork"},
		{"process continue", `stop reason = breakpoint 2\.1`},
		{"breakpoint delete 2"},
		{"thread step-out", `stop reason = step out`},
		{"process plugin packet monitor guest status", `VCPU +STATE`, `response: OK`},
		{"process detach", `Process 1 detached`},
	}
	for _, s := range steps {
		args = append(args, "-o", s[0])
	}
	cmd := exec.CommandContext(ctx, lldb, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "HOME="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	rest := string(out)
	for _, s := range steps {
		for _, want := range append([]string{regexp.QuoteMeta("(lldb) " + s[0] + "\n")}, s[1:]...) {
			at := regexp.MustCompile(want).FindStringIndex(rest)
			if at == nil {
				t.Fatalf("%s: LLDB does not say %s, behind what was looked for before:\n%s", s[0], want, out)
			}
			rest = rest[at[1]:]
		}
	}
	end()
}
