package linuxtest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// option is a way in which a guest can be made and booted.
type option struct {
	name, cmdline string
	vcpus         int
	memory        uint64            // bytes
	microcode     bool              // stands before the initrd, as distributions have it
	commands      map[string]string // with what each prints
	check         func(*testing.T, *Guest)
}

// options are those that a test of its own would cost a boot for.
var options = []option{
	{"page tables isolated, beyond 4 GiB", "pti=on", 1, 4<<30 + 512<<20, false, map[string]string{
		"dmesg | grep -c 'page tables isolation: enabled'":            "1",
		"awk '/MemTotal/ { print ($2 > 4300000) }' /proc/meminfo":     "1",
		"awk '/Normal/ { n++ } END { print (n > 0) }' /proc/zoneinfo": "1",
	}, checkHidden},
	{"little memory, no slide, 4 levels, microcode", "nokaslr no5lvl", 1, 128 << 20, true, map[string]string{
		"grep -c la57 /proc/cpuinfo; true":                       "0",
		"awk '$3 == \"_text\" { print $1 }' /proc/kallsyms":      "ffffffff81000000",
		"awk '/MemTotal/ { print ($2 < 131072) }' /proc/meminfo": "1",
		"ls /kernel/x86/microcode":                               "GenuineIntel.bin",
	}, nil},
	{"4 vCPUs", "", 4, 256 << 20, false, map[string]string{"nproc": "4"}, nil},
}

// TestOptions: however a guest is booted, a probe is hit from its first instructions on; a system
// call's entries, returns and stacks are exact, as int3 and as jump; and an int3 of a process of
// the guest's own goes to that process.
func TestOptions(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		for _, o := range options {
			t.Run(filepath.Base(dir)+"/"+o.name, func(t *testing.T) { boots(t, dir, o) })
		}
	}
}

func boots(t *testing.T, dir string, o option) {
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) {
		c.VCPUs, c.Memory = o.vcpus, o.memory
		c.Cmdline = strings.Replace(c.Cmdline, " -- ", " "+o.cmdline+" -- ", 1)
		initrd, err := AddFiles(c.Linux.Initrd, fstest.MapFS{"trap": {Data: trap()}})
		if o.microcode && err == nil {
			var front []byte
			front, err = AddFiles(nil, fstest.MapFS{"kernel/x86/microcode/GenuineIntel.bin": {Data: make([]byte, 2048)}})
			initrd = append(front, initrd...)
		}
		if err != nil {
			t.Fatal(err)
		}
		c.Linux.Initrd = initrd
	})
	e := g.Engine()
	var starts atomic.Uint64
	start := &probe.Kprobe{Symbol: "start_kernel", Pre: func(*probe.Context) int { starts.Add(1); return 0 }}
	if err := e.Register(start); err != nil {
		t.Fatal(err)
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	if n := starts.Load(); n != 1 {
		t.Errorf("start_kernel: %d hits", n)
	}
	for command, want := range o.commands {
		if got := strings.Join(g.Command(command), "\n"); got != want {
			t.Errorf("%s: %q, want %q", command, got, want)
		}
	}
	if k, _ := g.Kernel(); strings.Join(k.Checked, " ") != "LSTAR IDT" {
		t.Errorf("the slide %#x is confirmed by %v", k.Slide, k.Checked)
	}
	for _, jumps := range []bool{false, true} {
		systemCalls(t, g, jumps)
	}
	testBySpace(t, g, strings.Contains(o.cmdline, "pti=on"))
	if o.check != nil {
		o.check(t, g)
	}
	if got := strings.Join(g.Command("/trap; echo $?"), "\n"); !strings.HasSuffix(got, "133") { // by SIGTRAP
		t.Errorf("a process with an int3 ended with %q", got)
	}
}

// systemCalls compares entries, returns and stacks of a system call with what the guest is
// told to do.
func systemCalls(t *testing.T, g *Guest, jumps bool) {
	t.Helper()
	const function, calls = "vfs_mkdir", 20
	e := g.Engine()
	if err := e.SetOptimization(jumps); err != nil {
		t.Fatal(err)
	}
	var hits, returns, failed atomic.Uint64
	var stack atomic.Pointer[[]guest.GVA]
	p := &probe.Kprobe{Symbol: function, Pre: func(c *probe.Context) int {
		pcs := make([]guest.GVA, 32)
		k, u := c.Stacks(pcs)
		pcs = pcs[:k+u]
		stack.Store(&pcs)
		hits.Add(1)
		return 0
	}}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: function}, Return: func(c *probe.Context) {
		returns.Add(1)
		if c.Regs.RAX != 0 {
			failed.Add(1)
		}
	}}
	if err := e.Register(p, r); err != nil {
		t.Fatal(err)
	}
	if jumps {
		if err := e.Optimize(); err != nil {
			t.Fatal(err)
		}
	}
	g.Command(fmt.Sprintf("for i in $(seq %d); do mkdir /tmp/$i & done; wait; rmdir /tmp/*", calls))
	info, _ := e.Info(p)
	if hits.Load() != calls || returns.Load() != calls || failed.Load() != 0 || info.Optimized != jumps {
		t.Errorf("%d calls: %d hits, %d returns, %d of them failures; a jump: %v %s", calls, hits.Load(), returns.Load(), failed.Load(), info.Optimized, info.Unoptimized.Reason)
	}
	var names []string
	if pcs := stack.Load(); pcs != nil {
		for i, pc := range *pcs {
			if i > 0 {
				pc-- // behind a call
			}
			s, _ := g.Image().Find(pc)
			names = append(names, s.Name)
		}
	}
	// The last ones are the user's, which have no name.
	if n := slices.Index(names, "do_syscall_64"); n < 1 || names[0] != function || names[len(names)-1] != "" || !strings.HasPrefix(names[n+1], "entry_SYSCALL_64") {
		t.Errorf("a stack of %q", names)
	}
	if err := e.Unregister(p, &r.Kprobe); err != nil {
		t.Error(err)
	}
}

// checkHidden fails the test when the page tables with which a process runs its own code, those of
// init_mm for one (Linux, arch/x86/include/asm/pgtable.h, kernel_to_user_pgdp), have the engine's code,
// which the kernel's have.
func checkHidden(t *testing.T, g *Guest) {
	t.Helper()
	p := &probe.Kprobe{Symbol: "do_mkdirat", Post: func(*probe.Context) {}}
	if err := g.Engine().Register(p); err != nil {
		t.Fatal(err)
	}
	slot, ok := g.Engine().SlotOf(p)
	top, err := g.Image().Lookup("init_top_pgt")
	entry, err2 := g.Image().Lookup("entry_SYSCALL_64")
	if err := errors.Join(err, err2); err != nil || !ok {
		t.Fatal(ok, err)
	}
	pages := g.Target().(probe.PageTables)
	kernels, _ := pages.Translate(0, top.Addr)
	for _, tc := range []struct {
		root guest.GPA
		at   guest.GVA
		want bool
	}{{kernels, slot, true}, {kernels + guest.PageSize, slot, false}, {kernels, entry.Addr, true}, {kernels + guest.PageSize, entry.Addr, true}} {
		if _, ok := pages.Translate(tc.root, tc.at); ok != tc.want {
			t.Errorf("%v in the page tables at %v: %v", tc.at, tc.root, ok)
		}
	}
	if err := g.Engine().Unregister(p); err != nil {
		t.Error(err)
	}
}

// testBySpace: a probe that is bound to an address space is hit by its process, whichever of its top-level page tables, of which there are two
// with isolation, is given; and by none in the page behind it without.
func testBySpace(t *testing.T, g *Guest, isolated bool) {
	t.Helper()
	const function = "do_sys_openat2"
	pid := strings.Join(g.Command("while [ ! -e /tmp/stop ]; do echo >/tmp/space; done & echo $!"), "\n")
	var root atomic.Uint64
	wait := patience.Context(t)
	attach := func(p *probe.Kprobe, until func(probe.Info) bool) probe.Stats {
		t.Helper()
		if err := g.Engine().Register(p); err != nil {
			t.Fatal(err)
		}
		var i probe.Info
		for i, _ = g.Engine().Info(p); !until(i) && wait.Err() == nil; i, _ = g.Engine().Info(p) {
			time.Sleep(time.Millisecond)
		}
		if err := g.Engine().Unregister(p); err != nil {
			t.Error(err)
		}
		return i.Stats
	}
	attach(&probe.Kprobe{Symbol: function, Pre: func(c *probe.Context) int {
		var task guest.Task
		if c.Task(&task) && fmt.Sprint(task.PID) == pid {
			root.Store(uint64(c.Root))
		}
		return 0
	}}, func(probe.Info) bool { return root.Load() != 0 })
	kernels := guest.GPA(root.Load())
	const some = 20
	for _, tc := range []struct {
		space guest.GPA
		hit   bool
	}{{kernels, true}, {kernels ^ guest.PageSize, isolated}, {kernels ^ 2*guest.PageSize, false}} {
		s := attach(&probe.Kprobe{Symbol: function, Space: tc.space}, func(i probe.Info) bool { return i.Stats.Handled >= some || i.Stats.Elsewhere >= some })
		if s.Handled > 0 != tc.hit {
			t.Errorf("bound to %v, where the kernel has %v: %+v", tc.space, kernels, s)
		}
	}
	same := false
	if n := testing.AllocsPerRun(100, func() { same = g.Target().(probe.Spaces).SameSpace(kernels^guest.PageSize, kernels) }); n != 0 || same != isolated {
		t.Errorf("%v and the next table are of one space: %v, with %v allocations", kernels, same, n)
	}
	g.Command("touch /tmp/stop; wait; rm /tmp/stop /tmp/space")
}

// trap is a program that runs an int3, and ends with 42 where that does nothing.
func trap() []byte {
	const base, head = 0x400000, 64 + 56
	code := []byte("\xcc\xbf\x2a\x00\x00\x00\xb8\x3c\x00\x00\x00\x0f\x05") // int3; mov $42,%edi; mov $60,%eax; syscall
	le := binary.LittleEndian
	b := append([]byte("\x7fELF\x02\x01\x01"), make([]byte, 9)...)
	b = le.AppendUint32(b, 2|62<<16) // ET_EXEC, EM_X86_64
	b = le.AppendUint32(b, 1)
	for _, v := range []uint64{base + head, 64, 0} { // entry, program headers, sections
		b = le.AppendUint64(b, v)
	}
	b = le.AppendUint32(b, 0)
	for _, v := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, v)
	}
	b = le.AppendUint64(b, 1|5<<32) // PT_LOAD, PF_R|PF_X
	size := uint64(head + len(code))
	for _, v := range []uint64{0, base, base, size, size, guest.PageSize} {
		b = le.AppendUint64(b, v)
	}
	return append(b, code...)
}
