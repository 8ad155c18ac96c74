package linuxtest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSuiteSamples: the kernel's sample modules of a kprobe and a kretprobe
// (samples/kprobes), on a function that has a probe and a return probe of ours: each counts
// each call once, whoever came first, as int3s and as jumps.
func TestSuiteSamples(t *testing.T) {
	for _, dir := range kvmtest.RequireSuite(t, "kprobe_example.ko") {
		t.Run(filepath.Base(dir), func(t *testing.T) { samples(t, dir) })
	}
}

func samples(t *testing.T, dir string) {
	const function, calls = "vfs_mkdir", 25
	g := bootSuites(t, dir)
	e := g.Engine()
	words := func() string {
		_, n, _ := strings.Cut(g.Command("sh /load.sh 1 kernel")[0], " words ") // these modules taint the kernel
		return n
	}
	said, text := words(), g.Text()
	turn := 0
	for _, jumps := range []bool{false, true} {
		for _, first := range []bool{false, true} {
			name := fmt.Sprintf("jumps %v, ours first %v", jumps, first)
			if err := e.SetOptimization(jumps); err != nil {
				t.Fatal(err)
			}
			var hits, returns atomic.Uint64
			p := &probe.Kprobe{Symbol: function, Pre: func(*probe.Context) int { hits.Add(1); return 0 }}
			r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: function}, Return: func(*probe.Context) { returns.Add(1) }}
			ours := func() {
				t.Helper()
				if err := e.Register(p, r); err != nil {
					t.Fatal(err)
				}
			}
			if first {
				ours()
			}
			g.Command("insmod /kprobe_example.ko symbol=" + function + " && insmod /kretprobe_example.ko func=" + function)
			if !first {
				ours()
			}
			if jumps {
				if err := e.Optimize(); err != nil {
					t.Fatal(err)
				}
			}
			// The kernel's log says who was called, from the first turn on.
			theirs := g.Command(fmt.Sprintf("for i in $(seq %d); do mkdir /tmp/m; rmdir /tmp/m; done; dmesg >/tmp/log; ", calls) +
				"grep -c handler_pre: /tmp/log; grep -c handler_post: /tmp/log; grep -c 'returned .* and took' /tmp/log")
			info, _ := e.Info(p)
			turn++
			if got, want := strings.Join(theirs, " "), fmt.Sprint(turn*calls, turn*calls, turn*calls); got != want || hits.Load() != calls || returns.Load() != calls || info.Optimized != jumps {
				t.Errorf("%s: of %d calls the kernel's handlers saw %s, ours %d and %d returns, optimized %v\n%s", name, calls, got, hits.Load(), returns.Load(), info.Optimized,
					strings.Join(g.Command("tail -n 40 /tmp/log"), "\n"))
			}
			// Those who came first go first, in half of the cases.
			if jumps {
				g.Command("rmmod kretprobe_example; rmmod kprobe_example")
			}
			if err := e.Unregister(p, &r.Kprobe); err != nil {
				t.Error(err)
			}
			if !jumps {
				g.Command("rmmod kretprobe_example; rmmod kprobe_example")
			}
		}
	}
	if now := words(); now != said {
		t.Errorf("the kernel's log has %s words of alarm, unprobed %s", now, said)
	}
	g.checkSameText(g.Text(), text)
}

// bootSuites boots a guest that has the kernel's suites below /, and waits for commands.
func bootSuites(t *testing.T, dir string) *Guest {
	t.Helper()
	g := boot(t, dir, "sh /commands.sh", func(c *machine.Config) {
		var err error
		if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, os.DirFS(filepath.Join(dir, kvmtest.Suites))); err != nil {
			t.Fatal(err)
		}
	})
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("READY")
	return g
}
