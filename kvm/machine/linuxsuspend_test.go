package machine

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestLinuxSuspends: a guest that was suspended to idle, with all devices, goes on with its
// probes when somebody types.
func TestLinuxSuspends(t *testing.T) {
	const rounds = 20
	m := bootLinux(t, kvmtest.RequireLinux(t)[0],
		"echo enabled >/sys/class/tty/ttyS0/power/wakeup; echo ready; read x </dev/console; echo freeze >/sys/power/state; "+
			"for i in $(seq 20); do cat /proc/version >/dev/null; done; echo; echo end; read x </dev/console", func(c *Config) {
			c.Cmdline = strings.Replace(c.Cmdline, "quiet", "loglevel=7", 1)
		})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	await(t, m, "ready")
	var opens, reads, ends atomic.Int64
	count := func(n *atomic.Int64) func(*probe.Context) int {
		return func(*probe.Context) int { n.Add(1); return 0 }
	}
	open := &probe.Kprobe{Symbol: "do_sys_openat2", Pre: count(&opens)}
	read := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "version_proc_show"}, Entry: count(&reads), Return: func(*probe.Context) { ends.Add(1) }}
	if err := m.Engine().Register(open, read); err != nil {
		t.Fatal(err)
	}
	// What is typed too early does not wake it.
	sub, _ := m.Console().Subscribe(4096)
	defer sub.Close()
	ctx, again := patience.Context(t), time.NewTicker(time.Second)
	defer again.Stop()
	for ended := false; !ended; {
		select {
		case l := <-sub.C():
			ended = l.Text == "end"
		case <-again.C:
			if _, err := m.Input(ctx, []byte("\n")); err != nil {
				t.Fatal(err)
			}
		case <-ctx.Done():
			_ = m.Pause()
			t.Fatalf("it sleeps: %+v\n%s", m.State(), strings.Join(lines(m), "\n"))
		}
	}
	said := strings.Join(lines(m), "\n")
	if !strings.Contains(said, "PM: suspend entry (s2idle)") || !strings.Contains(said, "PM: suspend exit") {
		t.Errorf("it was not suspended:\n%s", said)
	}
	// The shell opens the file by which it is suspended, and for each round /dev/null; cat its own;
	// behind the end perhaps the console.
	if n := opens.Load(); n != 2*rounds+1 && n != 2*rounds+2 {
		t.Errorf("%d opens, want %d", n, 2*rounds+1)
	}
	if reads.Load() != rounds || ends.Load() != rounds {
		t.Errorf("%d reads, %d returns, want %d", reads.Load(), ends.Load(), rounds)
	}
	for _, p := range []*probe.Kprobe{open, &read.Kprobe} {
		if i, _ := m.Engine().Info(p); !i.Armed || i.Gone {
			t.Errorf("behind it: %+v", i)
		}
	}
	i, _ := m.Engine().Info(open)
	t.Logf("%+v, optimized: %v", i.Unoptimized, i.Optimized)
}
