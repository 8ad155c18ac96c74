package cli

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/cli/child"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestGDB is a GDB session with the built-in guest on two vCPUs. Each command is
// followed by regular expressions that GDB's output must match, one after the other.
func TestGDB(t *testing.T) {
	gdb := kvmtest.RequireCommand(t, "gdb")
	kvmtest.Require(t)
	steps := [][]string{
		{"info threads", `Thread 1 "vCPU 0"`, `Thread 2 "vCPU 1"`},
		{"info registers rip", `^rip +0x[0-9a-f]+ `},
		{"x/2i vfs_read", `<vfs_read>:\tendbr64$`, `<vfs_read\+4>:\tsub +\$0x3,%edi$`},
		{"print/x vfs_bytes_read", `^\$1 = 0x[0-9a-f]+$`},
		{"break *vfs_read if fd > 3 && fd < 6", `^Breakpoint 1 at 0x[0-9a-f]+: file src/kernel/fs.c, line`},
		{"continue", `hit Breakpoint 1, vfs_read \(fd=`},
		{"info registers rip", `<vfs_read>$`},
		{"bt 2", `^#0 +vfs_read \(fd=`, `^#1 +0x[0-9a-f]+ in `},
		{"stepi"},
		{"x/i $rip", `^=> 0x[0-9a-f]+ <vfs_read\+4>:\tsub`},
		{"stepi"},
		{"x/i $rip", `^=> 0x[0-9a-f]+ <vfs_read\+7>:\tcmp`},
		{"next"},
		{"step"},
		{"up", `^#1 +0x[0-9a-f]+ in `},
		{"down", `^#0 +vfs_read`},
		{"disable 1"}, // the other vCPU may get there first
		{"finish", `^Value returned is \$2 = `},
		{"info breakpoints", `breakpoint already hit 1 time$`},
		{"enable 1"},
		{"monitor attach 'p:x vfs_read'", `kprobes/x`},
		{"continue", `hit Breakpoint 1, vfs_read \(fd=`},
		{"monitor stat x", // both vCPUs may have hit it at once, one with an fd that does not meet GDB's condition
			`^kprobes/x +all +[1-9] +[1-9] +0 +0 +0$`},
		{"x/2i vfs_read", `<vfs_read>:\tendbr64$`, `<vfs_read\+4>:\tsub +\$0x3,%edi$`},
		{"monitor nonsense", `no command "nonsense"`},
		{"delete"},
		{"watch vfs_bytes_read", `watchpoint 2: vfs_bytes_read$`},
		{"continue", `^Old value = [0-9]+$`, `^New value = [0-9]+$`, `in vfs_read \(`},
		{"continue", `^Old value = [0-9]+$`, `^New value = [0-9]+$`, `in vfs_read \(`},
		{"rwatch vfs_bytes_read"},
		{"delete"},
		{"hbreak *work_files", `^Hardware assisted breakpoint 4 at `},
		{"continue", `hit Breakpoint 4, work_files \(`},
		{"stepi 3"},
		{"info registers cr3 efer", `^cr3 +0x40000000`, `^efer +0xd00 +\[ LME LMA NXE \]$`},
		{"print $xmm0.v2_int64", `^\$3 = \{`},
		{"print/x $cs", `^\$4 = 0x8$`},
		{"set var $rax = 0x1234"},
		{"print/x $rax", `^\$5 = 0x1234$`},
		{`eval "set var $was5 = %d, $was6 = %d, $wasFS = %ld", $xmm5.v4_int32[1], $ymm6.v8_int32[7], $fs_base`}, // a program of the guest uses them
		{"set var $xmm5.v4_int32[1] = 0x12345678"},
		{"print/x $xmm5.v2_int64[0]", ` = 0x12345678[0-9a-f]{8}$`},
		{"set var $ymm6.v8_int32[7] = 77"},
		{"print $ymm6.v8_int32[7]", ` = 77$`},
		{"set var $st0 = 1.5"},
		{"print $st0", ` = 1.5$`},
		{"set var $mxcsr = 0x1f00"},
		{"print $mxcsr", ` = \[ .*ZM.* \]$`},
		{"set var $mxcsr = 0x1f80"},
		{"set var $fs_base = 0x5000"},
		{"print/x $fs_base", ` = 0x5000$`},
		{"set var $dr1 = 0x8000"},
		{"print/x $dr1", ` = 0x8000$`},
		{"set var $cs = 0x33"},
		{"print/x $cs", ` = 0x8$`},
		{"stepi"},
		{"print/x $fs_base", ` = 0x5000$`},
		{"print $st0", ` = 1.5$`},
		{"set var $xmm5.v4_int32[1] = $was5"},
		{"set var $ymm6.v8_int32[7] = $was6"},
		{"set var $fs_base = $wasFS"},
		{"tbreak do_fork", `^Temporary breakpoint 5 at `},
		{"delete 4"},
		{"continue", `hit Temporary breakpoint 5, do_fork \(`},
		{"tbreak user_hot", `^Temporary breakpoint 6 at `},
		{"continue", `hit Temporary breakpoint 6, user_hot \(`},
		{"stepi"},
		{"bt", `^#0 .*user_hot \(`, `^#1 .* user_hot_loop \(`},
		{"info registers cs", `^cs +0x[0-9a-f]*3 `},
		{"thread 2", `^\[Switching to thread 2`},
		{"thread apply all print $rip > 0", `Thread 2 .*:$`, ` = 1$`, `Thread 1 .*:$`, ` = 1$`},
		{"find &files, +64, (char)11", `<files\+16>$`},
		{"print sizeof(struct file)", ` = 24$`},
		{"print *(struct file *)&files", `size = 11`},
		{"set var vfs_bytes_read = 1"},
		{"print vfs_bytes_read", ` = 1$`},
		{"monitor detach --all", `kprobes/x`},
		{"detach", `detached\]$`},
	}
	gdbSays(t, gdb, steps)
}

// TestGDBCases covers the commands in GDB's own test cases for remote targets, as listed in docs/testing.md.
func TestGDBCases(t *testing.T) {
	gdb := kvmtest.RequireCommand(t, "gdb")
	kvmtest.Require(t)
	gdbSays(t, gdb, [][]string{
		{"advance *work_files"}, // leave vfs_read, where the guest may have stopped: GDB would step over the first breakpoint
		{"break *vfs_read if fd > 3 && fd < 6", `^Breakpoint 1 at `},
		{"break *vfs_read+4 if fd > 3 && fd < 6", `^Breakpoint 2 at `},
		{"continue", `hit Breakpoint 1, vfs_read \(`},
		{"info symbol $rip", `^vfs_read in section`},
		{"stepi", `Breakpoint 2, 0x\w+ +|hit Breakpoint 2, `},
		{"info symbol $rip", `^vfs_read \+ 4 in section`},
		{"stepi"},
		{"info symbol $rip", `^vfs_read \+ 7 in section`},
		{"disable 2"},
		{"continue", `hit Breakpoint 1, vfs_read \(`},
		{"enable 2"},
		{"disable 1"},
		{"continue", `hit Breakpoint 2, `},
		{"info symbol $rip", `^vfs_read \+ 4 in section`},
		{"delete"},
		{"tbreak work_files"},
		{"continue", `hit Temporary breakpoint 3, work_files \(`},
		{"advance *vfs_read", `^vfs_read \(`},
		{"info symbol $rip", `^vfs_read in section`},
		{"until *vfs_read+7", `^0x\w+.*`},
		{"info symbol $rip", `^vfs_read \+ 7 in section`},
		{"advance *selfcheck_fail"}, // never reached, so it stops when the function returns
		{"info symbol $rip", `^(work_files|do_syscall) \+ \d+ in section`},
		{"ignore 1 1", `^No breakpoint number 1\.$`},
		{"break vfs_write"},
		{"ignore 4 2"},
		{"continue", `hit Breakpoint 4, vfs_write \(`},
		{"info breakpoints", `breakpoint already hit [34] times$`},
		{"delete"},
		{"awatch vfs_bytes_read", `^Hardware access \(read/write\) watchpoint 5: `},
		{"continue", `hit Hardware access \(read/write\) watchpoint 5: vfs_bytes_read$`, `^New value = `},
		{"delete"},
		{`dprintf vfs_read,"it reads\n"`, `^Dprintf 6 at `},
		{"break *vfs_read+7"},
		{"continue", `hit Breakpoint 7, `},
		{"continue", `hit Breakpoint 7, `},
		{"continue", `hit Breakpoint 7, `}, // each vCPU may already have been in there once
		{"info breakpoints", `^6 +dprintf `, `already hit \d+ times?$`},
		{"delete"},
		{"x/s files[0].path", `"/etc/hostname"$`},
		{"x/-1i vfs_read+7", `<vfs_read\+4>:\tsub `},
		{"dump binary memory files.bin &files ((char *)&files)+24"},
		{"restore files.bin binary &files", `into memory`},
		{"compare-sections .rodata", `^Section .rodata, range .*: matched\.$`},
		{"info mem", `^There are no memory regions defined\.$`},
		{"thread apply all bt 1", `^Thread 2 `, `^#0 `, `^Thread 1 `, `^#0 `},
		{"set var $was = $rip"},
		{"call (int)vfs_read(3, (char *)0x1000, 0, 0)", `^Cannot insert breakpoint 0\.$`, `^Command aborted\.$`},
		{"bt 2", `^#1  <function called from gdb>$`},
		{"return"},
		{"print $rip == $was", ` = 1$`},
		{"info auxv", `^No auxiliary vector found`},
		{"info proc", `^Not supported on this target\.$`},
		{"reverse-stepi", `^Target remote does not support this command\.$`},
		{"generate-core-file none.core", `^Can't create a corefile$`},
		{`python import os, subprocess; waits = subprocess.Popen(["sh", "-c", 'until guestprobe --socket %s guest status | grep -q "^state *running"; do :; done; kill -INT %d' % (os.environ["SOCKET"], os.getpid())])`},
		{"continue", `received signal SIGINT, Interrupt\.$`},
		{"python waits.wait()"},
		{"break vfs_write", `^Breakpoint 8 at `},
		{"disconnect"},
		{`python gdb.execute("target remote %s.gdb" % os.environ["SOCKET"])`},
		{"info threads", `Thread 1 "vCPU 0"`, `Thread 2 "vCPU 1"`},
		{"continue", `hit Breakpoint 8, vfs_write \(`},
		{"monitor guest reset", `^state +created`},
		{"continue", `^The guest was reset, and waits here\.$`, `received signal SIGINT, Interrupt\.$`, `^_start \(\) at `},
		{"continue", `hit Breakpoint 8, vfs_write \(`},
		{"break *vfs_read", `^Breakpoint 9 at `},
		{"delete 8"},
		{"continue", `hit Breakpoint 9, vfs_read \(`}, // holds no lock here that the other vCPU needs
		{"set scheduler-locking on"},
		{`python gdb.execute("thread %d" % (3 - gdb.selected_thread().num))`},
		{"python alone = gdb.selected_thread().num"},
		{"continue", `hit Breakpoint 9, vfs_read \(`},
		{"python print(gdb.selected_thread().num == alone)", `^True$`},
		{"next"},
		{"set scheduler-locking replay"},
		{"continue", `hit Breakpoint 9, vfs_read \(`},
		{"detach", `detached\]$`},
	})
}

// gdbSays runs GDB commands with the built-in guest, and checks the output with regular expressions. Each must match a line after
// the previous one's.
func gdbSays(t *testing.T, gdb string, steps [][]string) {
	t.Helper()
	ctx := patience.Context(t)
	dir, socket, end := debuggee(ctx, t)
	gdbSaysOf(ctx, t, gdb, dir, socket, nil, steps)
	end()
}

// gdbSaysOf is gdbSays for the guest of the daemon at a socket, with additional environment variables.
func gdbSaysOf(ctx context.Context, t *testing.T, gdb, dir, socket string, env []string, steps [][]string) {
	t.Helper()
	args := []string{"--socket", socket, "gdb", "--gdb", gdb, "--", "--nx", "--batch", "-ex", "set pagination off", "-ex", "set debuginfod enabled off"}
	for _, s := range steps {
		args = append(args, "-ex", `echo \n:: `+s[0]+`\n`, "-ex", s[0])
	}
	cmd := exec.CommandContext(ctx, "guestprobe", args...)
	cmd.Env = append(append(os.Environ(), "LC_ALL=C", "HOME="+dir, "SOCKET="+socket, "GUESTPROBE_SOCKET="+socket), env...)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v", err)
	}
	parts := strings.Split(string(out), "\n:: ")[1:]
	if len(parts) != len(steps) {
		t.Fatalf("GDB has done %d commands of %d:\n%s", len(parts), len(steps), out)
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
	if t.Failed() {
		t.Logf("%s", out)
	}
}

// debuggee starts a daemon with the built-in guest on two vCPUs. end checks that the guest runs and is intact, and
// stops the daemon. dir is for sockets and for a debugger's files.
func debuggee(ctx context.Context, t *testing.T) (dir, socket string, end func()) {
	t.Helper()
	dir = shortDir(t)
	socket = filepath.Join(dir, "s")
	d := daemonAt(ctx, t, socket, "--vcpus", "2", "--log-level", "warn")
	return dir, socket, func() {
		t.Helper()
		checkIntact(ctx, t, socket)
		if err := d.End(ctx, os.Interrupt); err != nil {
			t.Errorf("the daemon: %v", err)
		}
	}
}

// shortDir creates a directory for sockets, whose paths are limited to 107 bytes.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// daemonAt starts a daemon that listens at a socket.
func daemonAt(ctx context.Context, t *testing.T, socket string, args ...string) *child.Daemon {
	t.Helper()
	program, err := exec.LookPath("guestprobed")
	if err != nil {
		t.Fatal(err)
	}
	d, err := child.Start(ctx, child.Options{Program: program, Args: args, Env: append(os.Environ(), "GUESTPROBE_SOCKET="+socket), Output: os.Stderr})
	if d != nil {
		t.Cleanup(d.Kill)
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// checkIntact checks that the guest runs, that its self-check has found no error, and that its code is unmodified.
func checkIntact(ctx context.Context, t *testing.T, socket string) {
	t.Helper()
	out, err := exec.CommandContext(ctx, "guestprobe", "--socket", socket, "guest", "status").CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?m)^state +running$`).Match(out) || !regexp.MustCompile(`(?m)^wrong results +0$`).Match(out) {
		t.Errorf("the guest's state: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(ctx, "guestprobe", "--socket", socket, "guest", "text").CombinedOutput(); err != nil {
		t.Errorf("the guest's text: %v\n%s", err, out)
	}
}
