package linuxtest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/session"
)

// awaitOn waits until the guest's kernel has switched on the tracepoints of all probes.
func (g *Guest) awaitOn(s *session.Session) {
	g.t.Helper()
	for limit := time.Now().Add(silence); ; time.Sleep(50 * time.Millisecond) {
		off := slices.IndexFunc(s.Describe(s.Probes()), func(i session.Info) bool { return i.Tracepoint != "" && !i.TracepointOn })
		if off < 0 {
			return
		}
		if time.Now().After(limit) {
			g.t.Fatalf("the guest's kernel has not switched %s on", s.Probes()[off].Name())
		}
	}
}

// tracedPoints are tracepoints that uname hits, and the kernel's events at them.
var tracedPoints = []struct{ tracepoint, event string }{
	{"sched_process_exec", "sched/sched_process_exec"},
	{"sched_process_exit", "sched/sched_process_exit"},
	{"sys_enter", "raw_syscalls/sys_enter"},
	{"sys_exit", "raw_syscalls/sys_exit"},
	{"page_fault_user", "exceptions/page_fault_user"},
	{"mm_page_alloc", "kmem/mm_page_alloc"},
	{"rss_stat", "kmem/rss_stat"},
}

// TestTracepoints: probes of tracepoints count the same hits as the kernel's own events, with the same arguments, as an int3 and as a jump, while
// the guest switches the same tracepoints on and off. Afterwards everything is as before.
func TestTracepoints(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		for _, n := range selectVCPUs() {
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(dir), n), func(t *testing.T) { tracepointCounts(t, dir, n) })
		}
	}
}

func tracepointCounts(t *testing.T, dir string, vcpus int) {
	var k *linux.Kernel
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) { c.VCPUs, k = vcpus, c.Linux.Kernel })
	s := g.newSession(k)
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	g.Command("mount -t tracefs none " + tracing + " 2>/dev/null; test -e " + tracing + "/set_event; ln -s /bin/busybox /tmp/uname")
	funcs := func() string {
		var all []string
		v := g.Image().(*linux.View).Tracing()
		err := g.Target().Stop(func(probe.World) error {
			for _, name := range v.Tracepoints() {
				tp, err := v.Tracepoint(name)
				if err != nil {
					return err
				}
				users, err := v.Users(tp)
				if err != nil {
					return err
				}
				for _, u := range users {
					all = append(all, fmt.Sprintf("%s: %v %#x", name, u.Func, u.Data))
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(all, "\n")
	}
	before := funcs()
	const load = "for i in 1 2 3 4 5 6 7 8 9 10; do /tmp/uname >/dev/null; done; "
	var kernels strings.Builder // switches the kernel's own events on, and counts them
	fmt.Fprintf(&kernels, "cd %s; echo >trace; ", tracing)
	for _, tp := range tracedPoints {
		fmt.Fprintf(&kernels, `echo 'COMM == "uname"' >events/%[1]s/filter; echo 1 >events/%[1]s/enable; `, tp.event)
	}
	kernels.WriteString(load)
	for _, tp := range tracedPoints {
		fmt.Fprintf(&kernels, "echo 0 >events/%[1]s/enable; echo 0 >events/%[1]s/filter; grep -c ' %[2]s[:(]' trace; ", tp.event, tp.tracepoint)
	}
	kernels.WriteString("cat set_event")
	for _, jumps := range []bool{false, true} {
		if err := g.Engine().SetOptimization(jumps); err != nil {
			t.Fatal(err)
		}
		var specs []session.Spec
		for _, tp := range tracedPoints {
			specs = append(specs, session.Spec{Def: "t:gp/ " + tp.tracepoint, Filter: `COMM == "uname"`})
		}
		begin := time.Now()
		list, err := s.Attach(specs, nil)
		if err != nil {
			t.Fatal(err)
		}
		g.awaitOn(s)
		t.Logf("%d tracepoints in %v", len(specs), time.Since(begin))
		if jumps {
			if err := g.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
		}
		var want []uint64 // from the round with the kernel's own events
		for _, both := range []bool{true, false, true} {
			was := s.Describe(list.Probes)
			line := load + "true"
			if both {
				line = kernels.String()
			}
			out := g.Command(line)
			now := s.Describe(list.Probes)
			if both && len(out) != len(tracedPoints) {
				t.Fatalf("the guest says %q", out)
			}
			for i, tp := range tracedPoints {
				if both {
					kernel, err := strconv.ParseUint(out[i], 10, 64)
					if err != nil {
						t.Fatalf("%s: %q", tp.event, out)
					}
					want = append(want[:i], kernel)
				}
				ours := now[i].Stats.Handled - was[i].Stats.Handled
				t.Logf("jumps %v, the kernel's own %v: %-20s %5d hits, want %5d, optimized %v (%s), missed %d", jumps, both, tp.tracepoint, ours, want[i], now[i].Site.Optimized, now[i].Site.Unoptimized.Reason, now[i].Stats.Missed)
				exact := both || tp.tracepoint[0] == 's' // the events of memory are not always the same
				if !now[i].TracepointOn || ours == 0 || exact && ours != want[i] || now[i].Stats.Missed != 0 {
					t.Errorf("%s: %d hits, %d of the kernel's own", tp.tracepoint, ours, want[i])
				}
			}
		}
		if _, err := s.Detach(); err != nil {
			t.Fatal(err)
		}
		if now := funcs(); now != before {
			t.Errorf("functions of tracepoints before:\n%s\nafter:\n%s", before, now)
		}
	}
	if out := g.Command("dmesg | grep -c 'BUG:\\|WARNING:' ; true"); len(out) != 1 || out[0] != "0" {
		t.Errorf("the kernel's log: %q; %q", out, g.Command("dmesg | tail -40"))
	}
}
