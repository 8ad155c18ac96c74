package machine

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// bootLinux makes a machine with the Linux guest in dir, which runs command.
func bootLinux(t *testing.T, dir, command string, change func(*Config)) *Machine {
	t.Helper()
	k, err := linux.Load(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	initrd, err := os.ReadFile(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	cfg := Config{Linux: &LinuxConfig{Kernel: k, Initrd: initrd}, Memory: 256 << 20, Cmdline: "console=ttyS0 quiet panic=-1 -- " + command}
	if change != nil {
		change(&cfg)
	}
	m, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close(context.Background()) })
	return m
}

func lines(m *Machine) []string {
	var out []string
	h, _ := m.Console().History()
	for _, l := range h {
		out = append(out, l.Text)
	}
	return out
}

// TestLinuxBoots: each kernel comes to its shell, runs what it is told, and powers off.
func TestLinuxBoots(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "echo hello; nproc", func(c *Config) { c.VCPUs = 2 })
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
			defer cancel()
			s, err := m.Wait(ctx)
			if err != nil || s.Phase != PhaseExited {
				_ = m.Pause()
				t.Errorf("ended in %v, %v, %+v %v", s.Phase, err, m.State(), m.Stats())
			}
			t.Log(strings.Join(lines(m), "\n"))
		})
	}
}

// await waits for a line of the console.
func await(t *testing.T, m *Machine, line string) {
	t.Helper()
	sub, history := m.Console().Subscribe(4096)
	defer sub.Close()
	for _, l := range history {
		if l.Text == line {
			return
		}
	}
	timeout := time.After(2 * time.Minute)
	for {
		select {
		case l, ok := <-sub.C():
			if !ok {
				t.Fatalf("no line %q: %s", line, strings.Join(lines(m), "\n"))
			}
			if l.Text == line {
				return
			}
		case <-timeout:
			_ = m.Pause()
			t.Fatalf("no line %q: %+v\n%s", line, m.State(), strings.Join(lines(m), "\n"))
		}
	}
}

// TestLinuxHits: probes by name, from the first instruction on and while the guest runs,
// count what the guest does.
func TestLinuxHits(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			m := bootLinux(t, dir, "sleep 1; echo ready; read x < /dev/console; i=0; while [ $i -lt 100 ]; do getpid=$(cat /proc/version); i=$((i+1)); done; echo end; cat /proc/uptime", nil)
			n := map[string]*atomic.Uint64{}
			probeAt := func(sym string) {
				n[sym] = new(atomic.Uint64)
				if err := m.Engine().Register(&probe.Kprobe{Symbol: sym, Pre: func(*probe.Context) int { n[sym].Add(1); return 0 }}); err != nil {
					t.Errorf("%s: %v", sym, err)
				}
			}
			for _, sym := range []string{"start_kernel", "setup_arch", "rest_init"} {
				probeAt(sym)
			}
			start := time.Now()
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			await(t, m, "ready")
			t.Logf("ready after %v", time.Since(start))
			for _, sym := range []string{"do_sys_openat2", "kernel_clone", "vfs_read"} {
				start = time.Now()
				probeAt(sym)
				t.Logf("%s after %v", sym, time.Since(start))
			}
			rets := new(atomic.Uint64)
			if err := m.Engine().Register(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kernel_clone"}, Return: func(*probe.Context) { rets.Add(1) }}); err != nil {
				t.Error(err)
			}
			m.Input(context.Background(), []byte("\n"))
			await(t, m, "end")
			for _, i := range m.Engine().List() {
				t.Logf("%+v", i)
			}
			for sym, n := range n {
				t.Log(sym, n.Load())
			}
			t.Logf("%d returns, %+v", rets.Load(), m.Stats())
			t.Log(strings.Join(lines(m), "\n"))
		})
	}
}
