package linuxtest

import (
	"fmt"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// stackFunctions are functions of system calls, of page faults of the user's and of the kernel's own, of the scheduler and of interrupts.
var stackFunctions = []string{
	"do_sys_openat2", "vfs_read", "ksys_read", "vfs_write", "handle_mm_fault", "__fput", "do_exit", "update_process_times",
	"enqueue_task_fair", "free_pgtables", "getname_flags", "do_filp_open", "vfs_statx", "iterate_dir", "alloc_file",
}

// TestStacks: the stacks that programs in the guest count are those that the host finds. A second probe in the same functions, behind their
// first instructions, runs on the host: the callers are the same each time.
func TestStacks(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { testStacks(t, dir) })
	}
}

func testStacks(t *testing.T, dir string) {
	l := bootLoads(t, dir, 2)
	before := l.Text()
	const filter = `/comm == "find" || comm == "dd" || comm == "wc"/`
	var inGuest, onHost strings.Builder
	var functions []string
	for _, f := range stackFunctions {
		off := l.afterEntry(f)
		if off == 0 {
			continue
		}
		fmt.Fprintf(&inGuest, "kprobe:%s %s { @f%d[kstack] = count(); }\n", f, filter, len(functions))
		fmt.Fprintf(&onHost, "kprobe:%s+%d %s { @f%d[kstack(unwind)] = count(); }\n", f, off, filter, len(functions))
		functions = append(functions, f)
	}
	if len(functions) < 5 {
		t.Fatalf("only %d functions can be probed twice: %v", len(functions), functions)
	}
	host := sessiontest.Start(t, l.s, onHost.String(), session.ScriptOptions{OnHost: true})
	guest := sessiontest.Start(t, l.s, inGuest.String(), session.ScriptOptions{})
	if err := l.Engine().Optimize(); err != nil {
		t.Fatal(err)
	}
	l.Command("find /bin /etc | wc -c; dd if=/bin/busybox of=/tmp/copy bs=64k 2>/dev/null; find /proc/self | wc; wc /tmp/copy; rm /tmp/copy")
	hits, without := uint64(0), uint64(0)
	for _, i := range guest.Probes() {
		hits, without = hits+i.Stats.Handled, without+i.Stats.InGuest
		t.Logf("%s: %d of %d hits without an exit, %d missed; in the guest %v: %s", i.Name, i.Stats.InGuest, i.Stats.Hits, i.Stats.Missed, i.Site.InGuest, i.OnHost)
		if i.Stats.Missed != 0 || i.Stats.InGuest == 0 && i.Stats.Hits > 20 {
			t.Errorf("%s: %d hits missed, %d in the guest of %d", i.Name, i.Stats.Missed, i.Stats.InGuest, i.Stats.Hits)
		}
	}
	t.Logf("%d of %d hits without an exit", without, hits)
	got, want := stackCounts(t, guest), stackCounts(t, host)
	for i, f := range functions {
		m := fmt.Sprintf("@f%d", i)
		if !maps.Equal(got[m], want[m]) {
			t.Errorf("%s:\nin the guest %v\non the host %v", f, got[m], want[m])
		}
		t.Logf("%s: %d stacks", f, len(got[m]))
	}
	l.checkSameText(l.Text(), before)
}

// afterEntry returns the offset of an instruction of a function that follows those which a jump at its entry displaces, and to which there
// is no other way; 0 if there is none.
func (l *loads) afterEntry(function string) int {
	s, err := l.Image().Lookup(function)
	if err != nil {
		return 0
	}
	code := l.Image().Code(s.Addr, int(min(s.Size, 64)))
	for off, traced := 0, 0; off < len(code); {
		i, err := x86.Decode(code[off:])
		switch {
		case err != nil:
			return 0
		case traced == 0 && (i.Class() == x86.ClassCall || i.Class() == x86.ClassNop):
			if i.Len == x86.JmpLen {
				traced = off + x86.JmpLen
			}
		case i.Class() != x86.ClassOther:
			return 0
		}
		if off += int(i.Len); off >= traced+x86.JmpLen && traced > 0 {
			return off
		}
	}
	return 0
}

// stackCounts ends a script and returns what each map of it has counted, by the callers.
func stackCounts(t *testing.T, x *sessiontest.Script) map[string]map[string]int {
	t.Helper()
	out, warnings, _ := x.End()
	if len(warnings) != 0 {
		t.Errorf("warnings: %q", warnings)
	}
	all := map[string]map[string]int{}
	name, stack := "", []string(nil)
	for line := range strings.SplitSeq(out, "\n") {
		if m, ok := strings.CutSuffix(line, "["); ok {
			name, stack = m, nil
			continue
		}
		count, ok := strings.CutPrefix(line, "]: ")
		if !ok {
			stack = append(stack, strings.TrimSpace(line))
			continue
		}
		n, err := strconv.Atoi(count)
		if err != nil || len(stack) == 0 {
			t.Fatalf("%q in %s", line, out)
		}
		if all[name] == nil {
			all[name] = map[string]int{}
		}
		all[name][strings.Join(stack[1:], " ")] += n
	}
	return all
}

// TestStacksCost says what a program costs that counts calls by the kernel's stack, beside a BPF program of the guest's own kernel that does
// the same, as lines of the table of TestLoadsCost.
func TestStacksCost(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { stacksCost(t, dir) })
	}
}

func stacksCost(t *testing.T, dir string) {
	l := bootLoads(t, dir, 1)
	base := l.opens()
	if answer := l.ask("add own stacks do_sys_openat2"); answer != "ok" {
		t.Fatal(answer)
	}
	all := l.opens()
	if n, err := strconv.Atoi(strings.TrimPrefix(l.ask("read"), "own=")); err != nil || n < costOpens*costTimes {
		t.Errorf("%d of %d calls, %v", n, costOpens*costTimes, err)
	}
	l.ask("del own")
	kernel := costRow("a BPF program of the kernel's, by kprobe: counts by the kernel's stack", base[0], all, "-", "-")
	l.scriptCosts("kprobe:do_sys_openat2 { @[kstack] = count(); }", "do_syscall_64+", base[0], kernel, 1.5)
}
