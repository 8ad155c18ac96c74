package linuxtest

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/linux"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// scripts are what guests have below /: load.sh says what a load is.
//
//go:embed testdata/*.sh
var scripts embed.FS

// quiet is the command line of a test's guest, without the program to run. A
// guest that is probed everywhere is slow, and the emulated machine below it may
// pause. The guest's watchdogs would take that for a hang.
const quiet = "console=ttyS0 quiet panic=-1 oops=panic nowatchdog rcupdate.rcu_cpu_stall_suppress=1"

// consoleLines is how many lines of its console may wait for the test.
const consoleLines = 1 << 14

// Guest is a Linux guest of a test.
type Guest struct {
	*machine.Machine
	t     testing.TB
	lines *machine.ConsoleSub
	said  []string // so far, for the message of a failure
}

// boot creates a machine with the Linux guest in dir (kvmtest.RequireLinux),
// which runs a shell's command and then switches itself off. Its vCPUs are
// paused before the first instruction. change, unless nil, may change the
// machine's configuration at last. The machine is closed when the test ends,
// which shows the console if the test has failed.
func boot(t testing.TB, dir, command string, change func(*machine.Config)) *Guest {
	t.Helper()
	k, err := linux.Load(filepath.Join(dir, "vmlinuz"))
	if err != nil {
		t.Fatal(err)
	}
	initrd, err := os.ReadFile(filepath.Join(dir, "initrd"))
	if err != nil {
		t.Fatal(err)
	}
	files, err := fs.Sub(scripts, "testdata")
	if err != nil {
		t.Fatal(err)
	}
	if initrd, err = AddFiles(initrd, files); err != nil {
		t.Fatal(err)
	}
	cfg := machine.Config{
		Linux:   &machine.LinuxConfig{Kernel: k, Initrd: initrd},
		Memory:  256 << 20,
		Cmdline: quiet + " -- " + command,
	}
	if change != nil {
		change(&cfg)
	}
	m, err := machine.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	g := &Guest{Machine: m, t: t}
	g.lines, _ = m.Console().Subscribe(consoleLines)
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
		if t.Failed() {
			t.Logf("the guest's console:\n%s", strings.Join(g.said[max(0, len(g.said)-200):], "\n"))
		}
	})
	return g
}

// await reads the console up to the next line that begins with prefix, and
// returns the rest of that line. The test fails when the guest ends before, or
// prints nothing for too long.
func (g *Guest) await(prefix string) string {
	g.t.Helper()
	for {
		line := g.line("a line that begins with " + prefix)
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return rest
		}
	}
}

// Type types text at the guest's console.
func (g *Guest) Type(text string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), silence)
	defer cancel()
	if _, err := g.Input(ctx, []byte(text)); err != nil {
		g.t.Fatal(err)
	}
}

// silence is how long a guest may print nothing.
const silence = 4 * time.Minute

// line reads the next line of the console.
func (g *Guest) line(want string) string {
	g.t.Helper()
	timeout := time.NewTimer(silence)
	defer timeout.Stop()
	take := func(l machine.ConsoleLine, ok bool) string {
		if !ok {
			g.t.Fatalf("the machine is closed; waited for %s", want)
		}
		g.said = append(g.said, l.Text)
		return l.Text
	}
	for {
		changed, s := g.Changed(), g.State()
		select {
		case l, ok := <-g.lines.C():
			return take(l, ok)
		default:
		}
		// Its earlier output is read, and no more will come.
		switch s.Phase {
		case machine.PhaseCrashed:
			g.t.Fatalf("the guest crashed; waited for %s\n%s", want, s.Crash)
		case machine.PhaseExited:
			g.t.Fatalf("the guest has switched itself off; waited for %s", want)
		}
		select {
		case l, ok := <-g.lines.C():
			return take(l, ok)
		case <-changed:
		case <-timeout.C:
			g.t.Fatalf("no word from the guest for %v; waited for %s\n%+v\n%s", silence, want, s, g.vcpus())
		}
	}
}

// vcpus describes what the guest's vCPUs do, and where its processes wait, for the message of a test in which it hangs.
func (g *Guest) vcpus() string {
	var b strings.Builder
	err := g.Look(func(l *machine.Look) error {
		for cpu := range l.NumVCPU() {
			r, err := l.Registers(cpu)
			if err != nil {
				return err
			}
			fmt.Fprintf(&b, "vCPU %d: %v, RIP %#x live %#x inside %v RFLAGS %#x CR2 %#x\n", cpu, r.Activity, r.Regs.RIP, r.Live, r.Inside, r.Regs.RFLAGS, r.System.CR2)
			frames, _, err := l.Stack(cpu, 24)
			if err != nil {
				fmt.Fprintf(&b, "  %v\n", err)
			}
			g.writeFrames(&b, frames)
		}
		g.writeTasks(&b, l)
		return nil
	})
	if err != nil {
		fmt.Fprintf(&b, "%v\n", err)
	}
	fmt.Fprintf(&b, "%+v\n", g.Stats())
	return b.String()
}

func (g *Guest) writeFrames(b *strings.Builder, frames []guest.Frame) {
	for _, f := range frames {
		name := "?"
		if sym, ok := g.Image().Find(f.RuleAddr()); ok {
			name = fmt.Sprintf("%s+%#x", sym.Name, f.PC-uint64(sym.Addr))
		}
		fmt.Fprintf(b, "  %#x %s\n", f.PC, name)
	}
}

// writeTasks writes the stacks of tasks that have memory of their own.
func (g *Guest) writeTasks(b *strings.Builder, l *machine.Look) {
	const most = 1000
	view := g.Image().(*linux.View)
	tasks, _, err := view.Tasks(most)
	if err != nil {
		fmt.Fprintf(b, "tasks: %v\n", err)
	}
	for _, t := range tasks {
		if t.Root == 0 {
			continue
		}
		fmt.Fprintf(b, "task %d %s\n", t.PID, t.Comm)
		f, err := view.TaskReader().SavedFrame(t.Addr, func(addr guest.GVA, p []byte) error {
			_, err := l.Read(0, addr, p, false)
			return err
		})
		if err != nil {
			fmt.Fprintf(b, "  %v\n", err)
			continue
		}
		frames, _ := l.StackFrom(f, 24)
		g.writeFrames(b, frames)
	}
}
