package linuxtest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe"
)

// nextKernel is how the test's own program is called in the guest, where it starts another kernel.
const nextKernel = "/next-kernel"

func init() {
	if os.Args[0] != nextKernel {
		return
	}
	fmt.Println("next:", startNext())
	os.Exit(1)
}

// startNext starts the kernel in /vmlinuz. It returns only with an error.
func startNext() error {
	f, err := os.Open("/vmlinuz")
	if err != nil {
		return err
	}
	if err := unix.KexecFileLoad(int(f.Fd()), -1, "console=ttyS0 printk.time=0 panic=-1", unix.KEXEC_FILE_NO_INITRAMFS); err != nil {
		return fmt.Errorf("kexec_file_load: %w", err)
	}
	return os.NewSyscallError("reboot", unix.Reboot(unix.LINUX_REBOOT_CMD_KEXEC))
}

// replaced is a log that hears that another kernel has come.
type replaced chan struct{}

func (replaced) Enabled(context.Context, slog.Level) bool { return true }
func (r replaced) WithAttrs([]slog.Attr) slog.Handler     { return r }
func (r replaced) WithGroup(string) slog.Handler          { return r }

func (r replaced) Handle(_ context.Context, rec slog.Record) error {
	if rec.Message == linux.ReplacedText {
		r <- struct{}{}
	}
	return nil
}

// TestKexec: a guest whose kernel starts another one has no probes then, and is told of, once; the
// other kernel runs as it would. After a reset they are back.
func TestKexec(t *testing.T) {
	dir := kvmtest.RequireLinux(t)[0]
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := os.ReadFile(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	heard := make(replaced, 16)
	g := boot(t, dir, "echo ready; read x </dev/console; "+nextKernel, func(c *machine.Config) {
		c.VCPUs, c.Memory, c.Log = 2, 512<<20, slog.New(heard)
		c.Probe.OptimizeDelay = -1 // a look at the whole image takes long in an emulated machine
		if c.Linux.Initrd, err = AddFiles(c.Linux.Initrd, fstest.MapFS{nextKernel[1:]: {Data: self}, "vmlinuz": {Data: kernel}}); err != nil {
			t.Fatal(err)
		}
	})
	nothing := func(*probe.Context) int { return 0 }
	open := &probe.Kprobe{Symbol: "do_sys_openat2", Pre: nothing}
	fork := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kernel_clone"}}
	if err := g.Engine().Register(open, fork); err != nil {
		t.Fatal(err)
	}
	if err := g.Resume(); err != nil {
		t.Fatal(err)
	}
	g.await("ready")
	check := func(other, gone bool) (hits uint64) {
		t.Helper()
		if k, _ := g.Kernel(); (k.System == "replaced") != other {
			t.Errorf("the kernel is %q", k.System)
		}
		for _, p := range []*probe.Kprobe{open, &fork.Kprobe} {
			i, _ := g.Engine().Info(p)
			if i.Gone != gone || i.Armed == gone {
				t.Errorf("%s: gone %v, armed %v, %+v", p.Symbol, i.Gone, i.Armed, i.Stats)
			}
			hits += i.Stats.Hits
		}
		return hits
	}
	check(false, false)
	g.Type("\n")
	select {
	case <-heard:
	case <-patience.Context(t).Done():
		t.Fatal("nobody has seen the other kernel")
	}
	err = g.Engine().TargetChanged() // behind the one that takes the probes off
	if err != nil {
		t.Error(err)
	}
	hits := check(true, true)
	var no *probe.Error
	if err := g.Engine().Register(&probe.Kprobe{Symbol: "vfs_read", Pre: nothing}); !errors.As(err, &no) || no.Code != probe.CodeNotText || no.Detail != linux.ReplacedText {
		t.Errorf("a probe on what is not there: %v", err)
	}
	if _, _, err := g.Image().(*linux.View).Tasks(10); err == nil {
		t.Error("tasks of a kernel that is gone")
	}
	// It finds no root, panics and asks for a reset.
	s, err := g.Wait(patience.Context(t))
	if err != nil || s.Phase != machine.PhaseExited || s.ExitCode != 1 {
		t.Errorf("ended in %v, %v", s.Phase, err)
	}
	g.await("Kernel panic - not syncing: VFS: ")
	if now := check(true, true); now != hits || len(heard) != 0 {
		t.Errorf("%d hits, then %d; told %d times more", hits, now, len(heard))
	}
	if err := g.Reset(patience.Context(t), nil); err != nil {
		t.Fatal(err)
	}
	check(false, false)
}
