package linuxtest

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSuiteLivepatch: the kernel's sample of a livepatch (samples/livepatch) replaces a function that has probes of ours and of the
// guest's own, while a task sleeps in a call that a return probe follows, and is taken away again. What runs is counted by
// both: the function's probes without the livepatch, those of the function in its module with it.
func TestSuiteLivepatch(t *testing.T) {
	for _, dir := range kvmtest.RequireSuite(t, "livepatch-sample.ko") {
		t.Run(filepath.Base(dir), func(t *testing.T) { livepatch(t, dir) })
	}
}

func livepatch(t *testing.T, dir string) {
	const function, calls = "cmdline_proc_show", 5
	g := bootSuites(t, dir)
	e := g.Engine()
	text := g.Text()
	inner := g.boundaries(function, 24)[1:]                   // behind the call of the function tracer
	g.Command("echo 0 >/proc/sys/debug/kprobes-optimization") // its jump would be over the place of ours, where it comes first
	show := fmt.Sprintf("for i in $(seq %d); do cat /proc/cmdline; done", calls)
	for _, jumps := range []bool{false, true} {
		for _, first := range []bool{false, true} { // ours before the livepatch
			name := fmt.Sprintf("jumps %v, ours first %v", jumps, first)
			if err := e.SetOptimization(jumps); err != nil {
				t.Fatal(err)
			}
			nothing := func(*probe.Context) int { return 0 }
			old := []*probe.Kprobe{{Symbol: function, Pre: nothing}, {Symbol: function, Offset: uint64(inner[len(inner)-1]), Pre: nothing}}
			ret, read := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: function}}, &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "vfs_read"}}
			ours := func() {
				t.Helper()
				if err := e.Register(old[0], old[1], ret, read); err != nil {
					t.Fatal(err)
				}
			}
			optimize := func() {
				t.Helper()
				if !jumps {
					return
				}
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
			}
			hits := func() (n []uint64) {
				for _, p := range []*probe.Kprobe{old[0], old[1], &ret.Kprobe} {
					s, _, _ := e.Stats(p)
					n = append(n, s.Hits)
				}
				return n
			}
			// run has the function called, and checks who counts it: all of ours so often, the guest's probe behind its entry likewise.
			run := func(when, says string, want uint64) {
				t.Helper()
				before, theirs := hits(), g.kprobeHits("inner")
				if n := strings.Count(strings.Join(g.Command(show), "\n"), says); n != calls {
					t.Errorf("%s, %s: %d of %d answers say %q", name, when, n, calls, says)
				}
				after := hits()
				for i := range after {
					if after[i]-before[i] != want {
						t.Errorf("%s, %s: %d hits of our probe %d, want %d", name, when, after[i]-before[i], i, want)
					}
				}
				if n := g.kprobeHits("inner") - theirs; n != int(want) {
					t.Errorf("%s, %s: %d hits of the guest's own, want %d", name, when, n, want)
				}
			}
			if first {
				ours()
				optimize()
			}
			g.Command(fmt.Sprintf("cd %s; echo 'p:gp/inner %s+%d' >kprobe_events && echo 1 >events/gp/inner/enable", tracing, function, inner[0]))
			if first {
				run("before", "console=ttyS0", calls)
				g.Command("mkfifo /tmp/fifo; (exec 3<>/tmp/fifo; cat <&3 >/dev/null) & sleep 1")
			}
			const transition = "until [ \"$(cat /sys/kernel/livepatch/livepatch_sample/transition 2>/dev/null || echo 0)\" = 0 ]; do sleep 0.2; done"
			g.Command("insmod /livepatch-sample.ko && " + transition)
			if !first {
				ours()
			}
			optimize()
			replaced := &probe.Kprobe{Symbol: "livepatch_sample:livepatch_cmdline_proc_show", Pre: nothing}
			if err := e.Register(replaced); err != nil {
				t.Fatal(err)
			}
			optimize()
			run("with the livepatch", "this has been live patched", 0)
			if s, _, _ := e.Stats(replaced); s.Hits != calls {
				t.Errorf("%s: %d hits in the livepatch, want %d", name, s.Hits, calls)
			}
			g.Command("echo 0 >/sys/kernel/livepatch/livepatch_sample/enabled; " + transition + "; until rmmod livepatch_sample 2>/dev/null; do sleep 0.2; done")
			run("afterwards", "console=ttyS0", calls)
			if first {
				g.Command("echo end >/tmp/fifo; kill $(pidof cat); rm /tmp/fifo")
			}
			g.Command("cd " + tracing + "; echo 0 >events/gp/inner/enable; echo >kprobe_events")
			if err := e.Unregister(replaced, old[0], old[1], &ret.Kprobe, &read.Kprobe); err != nil {
				t.Error(err)
			}
			g.checkQuiet(name)
		}
	}
	g.checkSameText(g.Text(), text)
	g.checkExpected("at the end")
}

// kprobeHits returns the hits of a kprobe event of the guest's own.
func (g *Guest) kprobeHits(event string) (n int) {
	g.t.Helper()
	for _, l := range g.Command("cat " + tracing + "/kprobe_profile") {
		if w := strings.Fields(l); len(w) == 3 && w[0] == event {
			_, _ = fmt.Sscan(w[1], &n)
		}
	}
	return n
}
