package cli

import (
	"bufio"
	"context"
	"fmt"

	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// terminal is a tmux terminal that runs a command.
type terminal struct {
	testing.TB
	ctx    context.Context
	tmux   string
	socket string
	drawn  chan struct{} // capacity 1: the screen has changed
}

// openTerminal starts a shell command in a terminal of that size.
func openTerminal(ctx context.Context, t testing.TB, dir string, width, height int, command string) *terminal {
	t.Helper()
	x := &terminal{TB: t, ctx: ctx, tmux: kvmtest.RequireCommand(t, "tmux"), socket: filepath.Join(dir, "tmux"), drawn: make(chan struct{}, 1)}
	x.do("new-session", "-d", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height), command)
	// A client in control mode is notified of all output (tmux(1), CONTROL MODE).
	control := exec.CommandContext(ctx, x.tmux, "-S", x.socket, "-C", "attach", "-f", "ignore-size")
	in, err := control.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := control.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := control.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewReader(out); ; {
			if _, err := lines.ReadString('\n'); err != nil {
				return
			}
			select {
			case x.drawn <- struct{}{}:
			default:
			}
		}
	}()
	select {
	case <-x.drawn:
		x.do("set-option", "destroy-unattached", "on") // the session ends with this process
	case <-ctx.Done():
		t.Fatal("tmux does not answer")
	}
	t.Cleanup(func() {
		_ = exec.Command(x.tmux, "-S", x.socket, "kill-server").Run()
		in.Close()
		<-read
		_ = control.Wait()
	})
	return x
}

// do runs a tmux command and returns its output.
func (x *terminal) do(args ...string) string {
	x.Helper()
	cmd := exec.CommandContext(x.ctx, x.tmux, append([]string{"-S", x.socket, "-f", "/dev/null"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		x.Fatalf("tmux %q: %v\n%s", args, err, out)
	}
	return string(out)
}

// keys types keys, and waits until the screen contains want.
func (x *terminal) keys(want string, keys ...string) string {
	x.Helper()
	if len(keys) > 0 {
		x.do(append([]string{"send-keys"}, keys...)...)
	}
	return x.awaitText(want)
}

// awaitText waits until the screen contains want.
func (x *terminal) awaitText(want string) string {
	x.Helper()
	re := regexp.MustCompile("(?m)" + want)
	// After a resize on a busy machine the screen's library can have a wrong idea of some cells. Redraw, as a user would.
	redraw := time.NewTicker(5 * time.Second)
	defer redraw.Stop()
	for {
		screen := x.do("capture-pane", "-p")
		if re.MatchString(screen) {
			return screen
		}
		select {
		case <-x.drawn:
		case <-redraw.C:
			x.do("send-keys", "C-l")
		case <-x.ctx.Done():
			x.Fatalf("no %s on the screen:\n%s", want, screen)
		}
	}
}

func (x *terminal) resize(width, height int) {
	x.Helper()
	x.do("resize-window", "-x", fmt.Sprint(width), "-y", fmt.Sprint(height))
}

// TestTopScreen runs top on terminals of several sizes, with its keys, and ends it in several ways.
func TestTopScreen(t *testing.T) {
	kvmtest.RequireCommand(t, "tmux")
	kvmtest.Require(t)
	ctx := patience.Context(t)
	dir, socket, end := debuggee(ctx, t)
	guestprobe := func(args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, "guestprobe", append([]string{"--socket", socket}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	guestprobe("attach", "p:io/a vfs_read fd=%di:s32", "r:b do_fork", "p:never panic")
	run := func(env string) string {
		return fmt.Sprintf("%s guestprobe --socket %s top --interval 100ms", env, socket)
	}
	const status = "; echo STATUS=$?; exec cat"
	x := openTerminal(ctx, t, dir, 80, 24, run("env LC_ALL=C TERM=screen-256color")+status)
	screen := x.awaitText(`^ kprobes/never +k +0 +0 +0 +- +- +- host +(int3|jump)$`)
	for _, want := range []string{`^guest running, 3 probes, \S+ hits/s, 0 missed, \d+ lost$`, `^vCPU 0   \w+ +\S+ exits/s`, `^>(io/a|kprobes/b) `, `^\? help  q quit  `} {
		if !regexp.MustCompile("(?m)" + want).MatchString(screen) {
			t.Errorf("no %s on the first screen:\n%s", want, screen)
		}
	}
	x.resize(200, 50)
	x.awaitText(`^ kprobes/never .* panic\+0x[04]$`)
	x.resize(20, 5)
	x.awaitText(`^guest running, 3 pr>\n NAME         HITS/S\n>\S.*\n \S.*\n\? help  q quit  ent>`)
	x.resize(80, 40)
	x.keys(`^guest running, 1 of 3 probes`, "/", "n", "e", "v", "e", "r")
	x.keys(`^>kprobes/never`, "Enter")
	x.keys(`^Detach kprobes/never\? y detaches it`, "d")
	x.keys(`^kprobes/never was detached\.$`, "y")
	x.awaitText(`^guest running, 0 of 2 probes`)
	x.keys(`^guest running, 2 probes`, "Escape")
	x.keys(`s sort \(name\)`, "s", "s", "s", "s", "s", "s")
	x.keys(`^>kprobes/b `, "End")
	x.keys(`^durations of \d+ of \d+ calls: mean \d\S+, p99 \d\S+$`, "Enter")
	x.awaitText(`^last hits\n\S.* b: \(`)
	x.keys(`^PAUSED, guest running`, "Space")
	x.keys(`^guest running`, "Space")
	x.resize(80, 100)
	x.keys(`(?s)^stacks\n\d+ hits?.*, vCPU [01]\n  do_fork\+0x0/0x`, "S")
	x.keys(`any key goes back`, "?")
	x.do("send-keys", "x", "C-z") // ignored: no shell could continue the process
	x.keys(`^PAUSED, guest running`, "Space")
	x.keys(`^STATUS=0$`, "q")
	// The probe for the stacks was removed with them.
	if out, err := exec.CommandContext(ctx, "guestprobe", "--socket", socket, "list", "-q").Output(); err != nil || string(out) != "io/a\nkprobes/b\n" {
		t.Errorf("left are %q, %v", out, err)
	}
	x.do("kill-server")

	// Job control: the window has another size when the shell continues top.
	jobs := filepath.Join(dir, "jobs")
	if err := os.Mkdir(jobs, 0o700); err != nil {
		t.Fatal(err)
	}
	x = openTerminal(ctx, t, jobs, 80, 24, "env ENV= PS1='shell ' sh -i")
	x.keys(`^>(io/a|kprobes/b) `, run("env TERM=screen-256color"), "Enter")
	x.keys(`(?i)^.*stopped.*\n(.*\n)*shell *$`, "C-z")
	x.resize(200, 50)
	x.keys(`^>(io/a|kprobes/b) .*0x\S+$`, "fg", "Enter")
	x.keys(`(?i)^.*stopped.*\n(.*\n)*shell *$`, "C-z")
	x.keys(`^>(io/a|kprobes/b) `, "fg", "Enter")
	x.keys(`^shell *$`, "q")
	x.do("kill-server")

	// Without colors, on a simple terminal, and with a daemon that ends.
	dumb := filepath.Join(dir, "2")
	if err := os.Mkdir(dumb, 0o700); err != nil {
		t.Fatal(err)
	}
	x = openTerminal(ctx, t, dumb, 80, 24, run("env LC_ALL=C.UTF-8 TERM=vt100 NO_COLOR=1")+status)
	x.awaitText(`^>(io/a|kprobes/b) `)
	if painted := x.do("capture-pane", "-p", "-e"); strings.Contains(painted, "\x1b[") {
		t.Errorf("there are colours: %q", painted)
	}
	guestprobe("detach", "--all")
	x.awaitText(`^No probe is attached`)
	plain := filepath.Join(dir, "3")
	if err := os.Mkdir(plain, 0o700); err != nil {
		t.Fatal(err)
	}
	openTerminal(ctx, t, plain, 120, 24, run("env TERM=dumb")+status).awaitText(`^guestprobe: the terminal cannot move its cursor \(TERM=dumb\): 'guestprobe top --batch' prints tables\n(.*\n)*STATUS=2$`)
	end()
	x.awaitText(`^guestprobe: no daemon answers any more: the daemon has ended\n(.*\n)*STATUS=3$`)
}
