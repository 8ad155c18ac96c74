package machine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/device"
	"github.com/guestprobe/guestprobe/probe"
)

// ask types a line at the shell, which counts that, and waits for what it says: the line's name with the count, and more.
func ask(t *testing.T, m *Machine, name, line string, answers ...string) {
	t.Helper()
	t.Log("asks ", name)
	skip := len(lines(m))
	if _, err := m.Input(patience.Context(t), []byte(line+";n=$((n+1));echo "+name+" $n\n")); err != nil {
		t.Fatal(err)
	}
	for _, want := range answers {
		awaitAfter(t, m, skip, want)
	}
}

// What the shell is asked.
const (
	askBeside = "(while :;do busybox usleep 20000;done)& (while :;do i=0;while [ $i -lt 300 ];do i=$((i+1));done;busybox usleep 50000;done)&"
	askTime   = "a=$(busybox cut -d. -f1 /proc/uptime);sleep 2;b=$(busybox cut -d. -f1 /proc/uptime);echo slept $((b-a>=1&&b-a<60))"
	askDisk   = "busybox dd if=/dev/vda bs=512 count=1 skip=3 iflag=direct 2>/dev/null|busybox tr '\\003' x|busybox cut -c1-8"
	askRandom = "busybox head -c16 /dev/hwrng|busybox wc -c"
)

// describeGuest is what is seen of a guest: where each vCPU is, and its callers; and the tasks with their stacks.
func describeGuest(t *testing.T, m *Machine) (out []string) {
	t.Helper()
	err := m.Look(func(l *Look) error {
		frames := func(f []guest.Frame) string {
			var s []string
			for _, x := range f {
				s = append(s, symbolize(m.Image(), guest.GVA(x.PC)))
			}
			return strings.Join(s, " ")
		}
		for cpu := range l.NumVCPU() {
			r, err := l.Registers(cpu)
			if err != nil {
				return err
			}
			f, _, err := l.Stack(cpu, 64)
			if err != nil {
				return err
			}
			gs, _ := l.KernelGS(cpu)
			out = append(out, fmt.Sprintf("%d %+v %v %v %v %v %s", cpu, r.Regs, r.System, r.Debug, r.KernelGS, gs, frames(f)))
		}
		view := m.Image().(*linux.View)
		tasks, _, err := view.Tasks(1000)
		if err != nil {
			return err
		}
		for _, task := range tasks {
			line := fmt.Sprintf("%d %s", task.PID, task.Comm)
			read := func(at guest.GVA, p []byte) error { _, err := l.Read(0, at, p, false); return err }
			if f, err := view.TaskReader().SavedFrame(task.Addr, read); err == nil {
				all, _ := l.StackFrom(f, 64)
				line += " " + frames(all)
			}
			out = append(out, line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLinuxSave saves a Linux guest in the middle of its work, with probes on it. Another machine, which has neither booted nor an
// initrd, and the same one several times, go on from there: the shell knows how often it was asked, tasks wake, time goes on, the
// devices answer, and probes are hit. Looked at without KVM it shows what it has shown.
func TestLinuxSave(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { testLinuxSave(t, dir) })
	}
}

func testLinuxSave(t *testing.T, dir string) {
	disk := filepath.Join(t.TempDir(), "disk")
	sectors := make([]byte, 1<<20)
	for i := range sectors {
		sectors[i] = byte(i / 512)
	}
	if err := os.WriteFile(disk, sectors, 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(c *Config) { c.VCPUs, c.Linux.Disks = 2, []device.Disk{{Path: disk, ReadOnly: true}} }
	m := bootLinux(t, dir, "echo ready;sh", config)
	var hits, returns atomic.Uint64
	probes := func(m *Machine) {
		t.Helper()
		p := &probe.Kprobe{Symbol: "ksys_read", Pre: func(*probe.Context) int { hits.Add(1); return 0 }}
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "vfs_read"}, Return: func(*probe.Context) { returns.Add(1) }}
		s := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "schedule"}}
		if err := m.Engine().Register(p, r, s); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	await(t, m, "ready")
	t.Log("ready")
	probes(m)
	ask(t, m, "one", askBeside+":", "one 1")
	ask(t, m, "disk", askDisk, "disk 2", "xxxxxxxx")
	t.Log("asked")
	s := reread(t, save(t, m))
	t.Log("saved", s.Len())
	ask(t, m, "three", ":", "three 3")

	// Without KVM.
	k, err := linux.Load(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Open(Config{Linux: &LinuxConfig{Kernel: k}}, s)
	if err != nil {
		t.Fatal(err)
	}
	offline := describeGuest(t, o)
	t.Log("looked")
	if err := o.Close(context.Background()); err != nil {
		t.Error(err)
	}

	resume := func(m *Machine, other string) {
		t.Helper()
		had, returned := hits.Load(), returns.Load()
		if diff := cmp.Diff(offline, describeGuest(t, m)); diff != "" {
			t.Errorf("looked at without KVM, and here (-offline +here):\n%s", diff)
		}
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		ask(t, m, other, ":", other+" 3")
		ask(t, m, "time", askTime, "time 4", "slept 1")
		ask(t, m, "disk", askDisk, "disk 5", "xxxxxxxx")
		ask(t, m, "random", askRandom, "random 6", "16")
		if hits.Load() == had || returns.Load() == returned {
			t.Errorf("%d hits, %d returns", hits.Load()-had, returns.Load()-returned)
		}
	}
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	n := bootLinux(t, dir, "echo ready;sh", func(c *Config) { config(c); c.Linux.Initrd = nil })
	if err := n.ResetTo(patience.Context(t), s); err != nil {
		t.Fatal(err)
	}
	t.Log("reset")
	probes(n)
	resume(n, "other")
	ask(t, n, "end", "exit")
	if st, err := n.Wait(patience.Context(t)); err != nil || st.Phase != PhaseExited || st.ExitCode != 0 {
		t.Errorf("the other guest has ended in %+v, %v", st, err)
	}
	for i := range 2 {
		if err := m.ResetTo(patience.Context(t), s); err != nil {
			t.Fatal(err)
		}
		resume(m, fmt.Sprint("again", i))
	}
	if st := m.State(); st.Phase != PhaseRunning {
		t.Errorf("%+v", st)
	}
}
