package http

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// TestLinuxGDB is a session of GDB's with a Linux guest of which there is no other file than the
// one that boots: functions have their names, and callers are found.
func TestLinuxGDB(t *testing.T) {
	dirs := kvmtest.RequireLinux(t)
	gdb := kvmtest.RequireCommand(t, "gdb")
	steps := [][]string{
		{"info threads", `^\* 1 +Thread 1 "vCPU 0" \(.*\) +0x[0-9a-f]+ in \S+ \(\)$`},
		{"break vfs_read", `^Breakpoint 1 at 0xffffffff[0-9a-f]+$`},
		{"continue", `Breakpoint 1, 0x[0-9a-f]+ in vfs_read \(\)$`},
		{"x/i $rip", `^=> 0x[0-9a-f]+ <vfs_read\+?\d*>:\t`},
		{"bt", `^#0 .* in vfs_read \(\)$`, `^#\d+ .* in do_syscall_64 \(\)$`, `^#\d+ .* in entry_SYSCALL_64_after_hwframe \(\)$`},
		{"stepi 20"},
		{"info symbol $rip", `^\S+( \+ \d+)? in section \.text$`},
		// In the middle of a function the callers are the same.
		{"bt", `^#0 .* in \w+ \(\)$`, `^#\d+ .* in do_syscall_64 \(\)$`, `^#\d+ .* in entry_SYSCALL_64_after_hwframe \(\)$`},
		{"finish", `^0x[0-9a-f]+ in ksys_read \(\)$`},
		{"delete"},
		{"tbreak schedule", `^Temporary breakpoint 2 at `},
		{"continue", `Temporary breakpoint 2, 0x[0-9a-f]+ in schedule \(\)$`},
		{"info registers cr3 efer cs", `^cr3 +0x[0-9a-f]+ `, `^efer +0xd01 +\[ SCE LME LMA NXE \]$`, `^cs +0x10 `},
		{"x/s (char *)&linux_banner", `"Linux version \d`},
		{"detach", `detached\]$`},
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			h := serveLinux(t, dir, "echo ready;while :;do busybox wc -l /etc/passwd >/dev/null;done")
			h.console("ready")
			args := []string{"--nx", "--batch", "-q", "-l", "100", "-ex", "set pagination off", "-ex", "target remote " + h.path + api.GDBSuffix}
			for _, s := range steps {
				args = append(args, "-ex", `echo \n:: `+s[0]+`\n`, "-ex", s[0])
			}
			out, err := exec.CommandContext(h.ctx, gdb, args...).CombinedOutput()
			parts := strings.Split(string(out), "\n:: ")[1:]
			if err != nil || len(parts) != len(steps) {
				t.Fatalf("%v: GDB has done %d commands of %d:\n%s", err, len(parts), len(steps), out)
			}
			for i, s := range steps {
				lines := strings.Split(parts[i], "\n")[1:]
				for _, want := range s[1:] {
					at := slices.IndexFunc(lines, regexp.MustCompile(want).MatchString)
					if at < 0 {
						t.Errorf("%s: no line has %s, behind what was looked for before:\n%s", s[0], want, parts[i])
						break
					}
					lines = lines[at+1:]
				}
			}
			t.Logf("%s", out)
			h.attach("p:goes_on vfs_read")
			h.await("goes_on", "hit", func(p api.Probe) bool { return p.Stats.Hits > 2 })
		})
	}
}
