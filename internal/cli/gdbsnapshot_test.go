package cli

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestGDBSnapshots saves a guest under GDB, resets it to the snapshot, and restores it in another daemon. GDB must be notified, and
// its breakpoints and watchpoints must stay.
func TestGDBSnapshots(t *testing.T) {
	gdb := kvmtest.RequireCommand(t, "gdb")
	kvmtest.Require(t)
	ctx := patience.Context(t)
	dir := shortDir(t)
	first, second := filepath.Join(dir, "s"), filepath.Join(dir, "r")
	file := filepath.Join(dir, "before.gps")
	d := daemonAt(ctx, t, first, "--vcpus", "1", "--paused", "--log-level", "warn")
	for _, line := range [][]string{{"until", "vfs_read", "--timeout", "50s"}, {"guest", "save", file}, {"guest", "resume"}} {
		if out, err := exec.CommandContext(ctx, "guestprobe", append([]string{"--socket", first}, line...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", line, err, out)
		}
	}
	r := daemonAt(ctx, t, second, "--restore", file, "--paused", "--log-level", "warn")
	gdbSaysOf(ctx, t, gdb, dir, first, []string{fmt.Sprintf("DAEMON=%d", d.PID), "RESTORED=" + second}, [][]string{
		{"break *vfs_read", `^Breakpoint 1 at `},
		{"continue", `^Breakpoint 1, vfs_read \(fd=`},
		{"watch vfs_bytes_read", `watchpoint 2: vfs_bytes_read$`},
		{`eval "set var $rspThen = %ld, $totalThen = %ld", $rsp, vfs_bytes_read`},
		{"shell guestprobe guest save here.gps", `here\.gps`},
		{"x/2i vfs_read", `<vfs_read>:\tendbr64$`, `<vfs_read\+4>:\tsub +\$0x3,%edi$`},
		{"print $rsp == $rspThen && vfs_bytes_read == $totalThen", ` = 1$`},
		{"stepi"},
		{"x/i $rip", `^=> 0x[0-9a-f]+ <vfs_read\+4>:\tsub`},
		{"shell guestprobe guest reset --to here.gps", `^state +paused$`},
		{"finish", `^The guest was reset, and waits here\.$`, `received signal SIGINT, Interrupt\.$`, `vfs_read \(`}, // not at the end of the function that it was in
		{"print $rsp == $rspThen && vfs_bytes_read == $totalThen", ` = 1$`},
		{"info breakpoints", `^1 +breakpoint `, `^2 +hw watchpoint `},
		{"continue", `^Breakpoint 1, vfs_read \(fd=`}, // the snapshot was taken before it; after an interrupt another thread may get there first
		{"disable 1"},
		{"continue", `^Hardware watchpoint 2: vfs_bytes_read$`, `^Old value = `, `^New value = `},
		{"shell guestprobe guest reset", `^state +created$`},
		{"stepi", `^The guest was reset, and waits here\.$`, `received signal SIGINT, Interrupt\.$`, `^_start \(\) at `},
		{"print vfs_bytes_read", ` = 0$`},
		{"continue", `^Hardware watchpoint 2: vfs_bytes_read$`, `^Old value = `, `^New value = `},
		{"enable 1"},
		{"continue", `^(Breakpoint 1, vfs_read|Hardware watchpoint 2)`},
		{`python import os, signal; os.kill(int(os.environ["DAEMON"]), signal.SIGKILL)`},
		{"stepi", `^(Remote (connection closed|communication error)|No registers\.$)`}, // GDB may have noticed,
		{`python gdb.execute("target remote %s.gdb" % os.environ["RESTORED"])`, `vfs_read \(`},
		{"info breakpoints", `^1 +breakpoint `, `^2 +hw watchpoint `},
		{"continue", `^Breakpoint 1, vfs_read \(fd=`},
		{"disable 1"},
		{"continue", `^Hardware watchpoint 2: vfs_bytes_read$`, `^Old value = `, `^New value = `},
		{"detach", `detached\]$`},
	})
	checkIntact(ctx, t, second)
	if err := r.End(ctx, os.Interrupt); err != nil {
		t.Errorf("the daemon: %v", err)
	}
}

// TestGDBCrashes: GDB reports why a guest crashed or ended, and can inspect it.
func TestGDBCrashes(t *testing.T) {
	gdb := kvmtest.RequireCommand(t, "gdb")
	kvmtest.Require(t)
	for how, steps := range map[string][][]string{
		"triple": {
			{"break crash_on_purpose", `^Breakpoint 1 at `},
			{"continue", `^Breakpoint 1, crash_on_purpose \(`},
			{"continue", `^The guest has crashed on vCPU 0: triple fault: `, `received signal SIGSEGV, Segmentation fault\.$`},
			{"info threads", `"vCPU 0" \(crashed: triple fault: `},
			// On AMD the registers are lost by then.
			{"x/i $rip", `^=> 0x[0-9a-f]+ <crash_on_purpose\+\d+>:\tud2|^=> 0xfff0`},
			{"bt", `crash_on_purpose|0x0*fff0`},
			{"stepi", `^the guest has ended; reset it first$`, `received signal SIGSEGV, Segmentation fault\.$`},
			{"continue", `^The guest has crashed on vCPU 0: triple fault: `, `received signal SIGSEGV, Segmentation fault\.$`},
			{"shell guestprobe guest save crash.gps && guestprobe --core crash.gps guest status", `^state +crashed$`},
			{"monitor guest reset", `^state +created`},
			{"continue", `^The guest was reset, and waits here\.$`, `received signal SIGINT, Interrupt\.$`, `^_start \(\) at `},
			{"continue", `^Breakpoint 1, crash_on_purpose \(`},
			{"bt 2", `^#1 .* in workload_start \(`},
			{"detach", `detached\]$`},
		},
		"panic": {
			{"continue", `^The guest has exited with code 101, on vCPU 0 at guest_exit\+0x4\. Who connects again can look at it\.$`, `exited with code 0145\]$`},
			{"info registers rip", `^The program has no registers now\.$`},
			{`python import os; gdb.execute("target remote %s.gdb" % os.environ["SOCKET"])`},
			{"bt", `guest_exit \(code=`, ` panic \(`, ` crash_on_purpose \(`},
			{"continue", `^The guest has exited with code 101, `, `exited with code 0145\]$`},
		},
	} {
		t.Run(how, func(t *testing.T) {
			ctx := patience.Context(t)
			dir := shortDir(t)
			socket := filepath.Join(dir, "s")
			d := daemonAt(ctx, t, socket, "--vcpus", "1", "--paused", "--cmdline", "crash="+how, "--log-level", "error")
			gdbSaysOf(ctx, t, gdb, dir, socket, nil, steps)
			if err := d.End(ctx, os.Interrupt); err != nil {
				t.Errorf("the daemon: %v", err)
			}
		})
	}
}
