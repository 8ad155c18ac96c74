package machine

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// panics is a log that hears of the guest's panics.
type panics chan string

func (panics) Enabled(context.Context, slog.Level) bool { return true }
func (p panics) WithAttrs([]slog.Attr) slog.Handler     { return p }
func (p panics) WithGroup(string) slog.Handler          { return p }

func (p panics) Handle(_ context.Context, r slog.Record) error {
	if r.Message == "the guest's kernel has panicked" {
		r.Attrs(func(a slog.Attr) bool { p <- a.Value.String(); return false })
	}
	return nil
}

// TestLinuxPanics: a kernel that panics and stays there is told of, once, with what it says:
// on request, or because it has neither an initrd nor a disk. Reset, it is as any other.
func TestLinuxPanics(t *testing.T) {
	dir := kvmtest.RequireLinux(t)[0]
	t.Run("sysrq", func(t *testing.T) { testPanic(t, dir, "sysrq triggered crash", nil) })
	t.Run("no root", func(t *testing.T) {
		testPanic(t, dir, "VFS: Unable to mount root fs on unknown-block(0,0)", func(c *Config) { c.Linux.Initrd = nil })
	})
}

func testPanic(t *testing.T, dir, said string, change func(*Config)) {
	heard := make(panics, 16)
	m := bootLinux(t, dir, "echo c >/proc/sysrq-trigger", func(c *Config) {
		c.Cmdline = strings.Replace(c.Cmdline, "panic=-1", "panic=0", 1)
		c.Log = slog.New(heard)
		if change != nil {
			change(c)
		}
	})
	state := func(want, words string) {
		t.Helper()
		if k, _ := m.Kernel(); k.System != want || k.Panic != words {
			t.Errorf("the kernel is %q, with %q, want %q, %q", k.System, k.Panic, want, words)
		}
	}
	state("booting", "")
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	select {
	case words := <-heard:
		if words != said {
			t.Errorf("the log says %q: %s", words, strings.Join(lines(m), "\n"))
		}
	case <-patience.Context(t).Done():
		t.Errorf("nothing in the log: %s", strings.Join(lines(m), "\n"))
	}
	state("panicked", said)
	if err := m.Reset(patience.Context(t), nil); err != nil {
		t.Fatal(err)
	}
	state("booting", "")
	if len(heard) != 0 {
		t.Errorf("the log says it again: %q", <-heard)
	}
}
