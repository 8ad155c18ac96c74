package machine

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// bootLinux makes a machine with the Linux guest in dir, which runs command.
func bootLinux(t *testing.T, dir, command string, change func(*Config)) *Machine {
	t.Helper()
	k, err := linux.Load(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	if names := filepath.Join(dir, "System.map"); !k.Embeds {
		if err := k.ReadSymbols(names); err != nil {
			t.Fatal(err)
		}
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

// await waits for a line of the console, awaitAfter for one behind the first skip lines.
func await(t *testing.T, m *Machine, line string) {
	t.Helper()
	awaitAfter(t, m, 0, line)
}

func awaitAfter(t *testing.T, m *Machine, skip int, line string) {
	t.Helper()
	sub, history := m.Console().Subscribe(4096)
	defer sub.Close()
	for _, l := range history[min(skip, len(history)):] {
		if l.Text == line {
			return
		}
	}
	ctx := patience.Context(t)
	for {
		select {
		case l, ok := <-sub.C():
			if !ok {
				t.Fatalf("no line %q: %s", line, strings.Join(lines(m), "\n"))
			}
			if l.Text == line {
				return
			}
		case <-ctx.Done():
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
			const rounds = 100
			m := bootLinux(t, dir, "echo ready; read x </dev/console; for i in $(seq 100); do cat /proc/version >/dev/null; done; echo end; read x </dev/console", nil)
			want := map[string]uint64{"start_kernel": 1, "setup_arch": 1, "rest_init": 1}
			got := map[string]*atomic.Uint64{}
			register := func(p probe.Probe, name string, n uint64) {
				t.Helper()
				want[name] = n
				if err := m.Engine().Register(p); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
			}
			// The kernel makes threads of its own, and may start a program, at any time.
			var theirs sync.Map
			ours := func(c *probe.Context) bool {
				var who guest.Task
				ok := c.Task(&who)
				name := string(bytes.TrimRight(who.Comm[:], "\x00"))
				if ok = ok && name != "kthreadd" && !strings.HasPrefix(name, "kworker/"); !ok {
					theirs.Store(name, true)
				}
				return ok
			}
			entry := func(sym string, counts func(*probe.Context) bool) *probe.Kprobe {
				n := new(atomic.Uint64)
				got[sym] = n
				return &probe.Kprobe{Symbol: sym, Pre: func(c *probe.Context) int {
					if counts(c) {
						n.Add(1)
					}
					return 0
				}}
			}
			for _, sym := range []string{"start_kernel", "setup_arch", "rest_init"} {
				register(entry(sym, func(*probe.Context) bool { return true }), sym, 1)
			}
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			await(t, m, "ready")
			// seq is one more process. Each round opens two files: the shell /dev/null, cat its own.
			register(entry("kernel_clone", ours), "kernel_clone", rounds+1)
			register(entry("do_sys_openat2", ours), "do_sys_openat2", 2*rounds)
			rets := new(atomic.Uint64)
			got["return"] = rets
			register(&probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kernel_clone"}, Return: func(c *probe.Context) {
				if ours(c) {
					rets.Add(1)
				}
			}}, "return", rounds+1)
			if _, err := m.Input(context.Background(), []byte("\n")); err != nil {
				t.Fatal(err)
			}
			await(t, m, "end")
			for name, n := range want {
				if g := got[name].Load(); g != n && !(name == "do_sys_openat2" && g == n+1) { // the read behind the end
					t.Errorf("%s: %d hits, want %d", name, g, n)
				}
			}
			k, _ := m.Kernel()
			if strings.Join(k.Checked, " ") != "LSTAR IDT" {
				t.Errorf("the slide %#x is confirmed by %v", k.Slide, k.Checked)
			}
			theirs.Range(func(name, _ any) bool { t.Logf("not counted: %s", name); return true })
			t.Logf("%+v", m.Stats())
		})
	}
}

// TestLinuxReset: a running guest starts again, its probe by name
// where the name is then.
func TestLinuxReset(t *testing.T) {
	dir := kvmtest.RequireLinux(t)[0]
	m := bootLinux(t, dir, "echo ready; read x </dev/console; cat /proc/version >/dev/null; echo end; read x </dev/console", nil)
	var n atomic.Uint64
	if err := m.Engine().Register(&probe.Kprobe{Symbol: "kernel_clone", Pre: func(c *probe.Context) int {
		var who guest.Task
		if c.Task(&who) && string(bytes.TrimRight(who.Comm[:], "\x00")) == "init" {
			n.Add(1)
		}
		return 0
	}}); err != nil {
		t.Fatal(err)
	}
	for boot := range uint64(2) {
		if boot > 0 {
			if err := m.Reset(context.Background(), nil); err != nil {
				t.Fatal(err)
			}
		}
		n.Store(0)
		before := len(lines(m))
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		awaitAfter(t, m, before, "ready")
		if n.Load() == 0 {
			t.Errorf("boot %d: the first process was never seen", boot)
		}
		if _, err := m.Input(context.Background(), []byte("\n")); err != nil {
			t.Fatal(err)
		}
		awaitAfter(t, m, before, "end")
	}
}

// TestLinuxResetAddresses: a reset boots at another slide, but not while memory is held whose
// addresses stand in code that comes back. No instruction of the guest's runs.
func TestLinuxResetAddresses(t *testing.T) {
	m := bootLinux(t, kvmtest.RequireLinux(t)[0], "true", nil)
	slides := map[uint64]bool{}
	reset := func() guest.GVA {
		t.Helper()
		if err := m.Reset(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		k, _ := m.Kernel()
		slides[k.Slide] = true
		return m.SharedBase(false)
	}
	for range 4 { // four of some hundred are never the same
		reset()
	}
	if len(slides) == 1 {
		t.Errorf("the slide is %v each time", slides)
	}
	before := m.SharedBase(false)
	at, _, err := m.AllocShared(64, false)
	if err != nil {
		t.Fatal(err)
	}
	if now := reset(); now != before {
		t.Errorf("shared memory was at %v and is at %v, although it is held", before, now)
	}
	m.FreeShared(at)
	clear(slides)
	for range 4 {
		reset()
	}
	if len(slides) == 1 {
		t.Errorf("the slide is %v each time, although nothing is held", slides)
	}
}
