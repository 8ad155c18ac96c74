package cli

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/internal/cli/child"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/internal/server/fleetd"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// leakTest runs the tests and fails if goroutines remain.
type leakTest struct{ *testing.M }

func (m leakTest) Run() int {
	code := m.M.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// TestMain makes this binary also the two real programs, and helpers for
// scripts.
func TestMain(m *testing.M) {
	commands := map[string]func(){
		"guestprobe":    func() { os.Exit(Main()) },
		"guestprobed":   func() { os.Exit(daemon.Main(Monitor)) },
		fleet.Server:    func() { os.Exit(fleetd.Main()) },
		"http":          func() { os.Exit(httpMain(os.Args[1:])) },
		"mkguest":       func() { os.Exit(mkguestMain(os.Args[1:])) },
		"mkprog":        func() { os.Exit(mkprogMain(os.Args[1:])) },
		"mkunoptimized": func() { os.Exit(mkunoptimizedMain(os.Args[1:])) },
	}
	// Programs started by tests would inherit an ignored SIGINT from a background job.
	if _, ok := commands[filepath.Base(os.Args[0])]; !ok && signal.Ignored(os.Interrupt) {
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
	}
	// Scripts mostly wait: one of them waits half a minute for a dead connection.
	if err := flag.Set("test.parallel", strconv.Itoa(2*runtime.GOMAXPROCS(0))); err != nil {
		panic(err)
	}
	testscript.Main(leakTest{m}, commands)
}

// TestScripts runs the scripts that do not need /dev/kvm.
func TestScripts(t *testing.T) { runScripts(t, "../../testdata/script", nil) }

// TestKVMScripts runs the real daemon with real guests.
func TestKVMScripts(t *testing.T) {
	kvmtest.Require(t)
	runScripts(t, "../../testdata/script/kvm", nil)
}

// TestLinuxScripts runs the real daemon with Linux guests, from $KERNEL and $INITRD.
func TestLinuxScripts(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			runScripts(t, "../../testdata/script/linux", map[string]string{"KERNEL": filepath.Join(dir, "vmlinuz"), "INITRD": filepath.Join(dir, "initrd")})
		})
	}
}

func runScripts(t *testing.T, dir string, vars map[string]string) {
	wait := patience.Context(t)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			// The path of a work directory may be too long for a socket.
			short, err := os.MkdirTemp("", "gp")
			if err != nil {
				return err
			}
			// Other users must reach the socket, and fail for the expected reason.
			if err := os.Chmod(short, 0o755); err != nil {
				return err
			}
			env.Defer(func() { os.RemoveAll(short) })
			env.Values[waitKey{}] = wait
			env.Setenv("SOCKDIR", short)
			env.Setenv("GUESTPROBE_SOCKET", filepath.Join(short, "s"))
			env.Setenv(answerTimeEnv, "5m") // the machine may be busy
			// With scripts/cover.sh the programs record their coverage.
			if dir := os.Getenv("GUESTPROBE_COVER"); dir != "" {
				path := filepath.Join(dir, "bin") + string(filepath.ListSeparator) + env.Getenv("PATH")
				env.Setenv("PATH", path)
				env.Setenv("GOCOVERDIR", filepath.Join(dir, "data"))
				if err := os.Setenv("PATH", path); err != nil {
					return err
				}
			}
			bin, err := exec.LookPath("guestprobe")
			if err != nil {
				return err
			}
			env.Setenv("GUESTPROBE", bin)
			for k, v := range vars {
				env.Setenv(k, v)
			}
			objects, err := filepath.Abs("../../probe/bpf/testdata/obj")
			if err != nil {
				return err
			}
			env.Setenv("OBJ", objects)
			examples, err := filepath.Abs("../../docs/examples")
			if err != nil {
				return err
			}
			env.Setenv("EXAMPLES", examples)
			guests, err := filepath.Abs("../../testdata/guests")
			if err != nil {
				return err
			}
			env.Setenv("GUESTS", guests)
			env.Setenv("LONG", strings.Repeat("x", 120))
			env.Setenv("ROOT", strconv.FormatBool(os.Getuid() == 0))
			return nil
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Getuid() == 0, nil
			case "systemdaemon":
				conn, err := net.Dial("unix", api.SystemSocket)
				if err == nil {
					conn.Close()
				}
				return err == nil, nil
			}
			return false, fmt.Errorf("unknown condition %q", cond)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":        cmdExits,
			"daemon":       cmdDaemon,
			"halt":         cmdHalt,
			"signal":       cmdSignal,
			"stranger":     cmdStranger,
			"await":        cmdAwait,
			"closes":       cmdCloses,
			"drawn":        cmdDrawn,
			"same":         cmdSame,
			"offline":      cmdOffline,
			"member":       cmdMember,
			"leave":        cmdLeave,
			"certificates": cmdCertificates,
			"operator":     cmdOperator,
			"setenv":       cmdSetenv,
			"listen":       cmdListen,
			"repeat":       cmdRepeat,
			"results":      cmdResults,
		},
	})
}

// waitKey is the key of the context that limits a script's waiting.
type waitKey struct{}

func waitContext(ts *testscript.TestScript) context.Context {
	return ts.Value(waitKey{}).(context.Context)
}

// cmdExits runs a program and checks its exit status:
//
//	exits 4 guestprobe detach nope
func cmdExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits status program [arg...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

// background is a daemon started by a script.
type background struct {
	*child.Daemon
	log string // a file
}

// daemons holds the daemons of scripts, which run in
// parallel.
type daemons struct{ m sync.Map }

var scripts daemons

func (d *daemons) get(ts *testscript.TestScript) *background {
	b, _ := d.m.Load(ts)
	out, _ := b.(*background)
	return out
}

func (d *daemons) set(ts *testscript.TestScript, b *background) { d.m.Store(ts, b) }

// addSlowTimer gives a daemon's guest a slower timer, unless the flags set one. The built-in guest does work at
// each tick. With the default timer that takes a third of a processor while the script does other things.
func addSlowTimer(args []string) []string {
	for _, a := range args {
		switch a {
		case "--tick", "--guest", "--kernel", "--config", "--restore":
			return args
		}
	}
	return append([]string{"--tick", "100ms"}, args...)
}

// cmdDaemon starts guestprobed in the background and waits until it is ready.
// The daemon's output is written to daemon.log.
//
//	daemon --vcpus 2
func cmdDaemon(ts *testscript.TestScript, neg bool, args []string) {
	if neg || scripts.get(ts) != nil {
		ts.Fatalf("usage: daemon [flag...], once until halt")
	}
	bin, err := exec.LookPath("guestprobed")
	ts.Check(err)
	b := &background{log: ts.MkAbs("daemon.log")}
	log, err := os.Create(b.log)
	ts.Check(err)
	defer log.Close()
	b.Daemon, err = child.Start(waitContext(ts), child.Options{
		Program: bin, Args: addSlowTimer(args), Dir: ts.MkAbs("."), Env: append(os.Environ(), "GUESTPROBE_SOCKET="+ts.Getenv("GUESTPROBE_SOCKET")), Output: log,
	})
	if b.Daemon != nil {
		scripts.set(ts, b)
		ts.Defer(func() {
			if scripts.get(ts) == b {
				b.Kill()
				scripts.set(ts, nil)
			}
		})
	}
	if err != nil {
		ts.Fatalf("%v; log:\n%s", err, ts.ReadFile(b.log))
	}
}

// cmdHalt sends a signal to the daemon, by default TERM, waits for
// its exit, and checks its exit status (-1: killed by the signal):
//
//	halt 0
//	halt -1 KILL
func cmdHalt(ts *testscript.TestScript, neg bool, args []string) {
	b := scripts.get(ts)
	if neg || b == nil || len(args) < 1 || len(args) > 2 {
		ts.Fatalf("usage: halt status [TERM|INT|HUP|KILL], after daemon")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	sig := syscall.SIGTERM
	if len(args) == 2 {
		sig = map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}[args[1]]
	}
	err = b.End(waitContext(ts), sig)
	if errors.Is(err, child.ErrBusy) {
		ts.Fatalf("%v; log:\n%s", err, ts.ReadFile(b.log))
	}
	scripts.set(ts, nil)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("the daemon's exit status is %d, want %d; log:\n%s", got, want, ts.ReadFile(b.log))
	}
}

// cmdSignal sends the daemon a signal that does not end it:
//
//	signal STOP
func cmdSignal(ts *testscript.TestScript, neg bool, args []string) {
	b := scripts.get(ts)
	if neg || b == nil || len(args) != 1 {
		ts.Fatalf("usage: signal STOP|CONT|HUP, after daemon")
	}
	ts.Check(b.Signal(map[string]syscall.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "HUP": syscall.SIGHUP}[args[0]]))
}

// cmdSame checks in a script's output that maps have the same value, and that it is
// not 0:
//
//	same out @a @b
func cmdSame(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: same file map map...")
	}
	first := ""
	for i, name := range args[1:] {
		value := regexp.MustCompile("(?m)^" + regexp.QuoteMeta(name) + ": ([1-9][0-9]*)$").FindStringSubmatch(ts.ReadFile(args[0]))
		switch {
		case value == nil:
			ts.Fatalf("%s has no value of %s", args[0], name)
		case i == 0:
			first = value[1]
		case value[1] != first:
			ts.Fatalf("%s is %s, and %s is %s", args[1], first, name, value[1])
		}
	}
}

// cmdAwait waits until a line of a file that a background program writes matches
// a regular expression:
//
//	await trace.out ' a: '
//
// It does not wait for what guestprobe will not write any more, because it has failed: a file NAME.err has its error then.
func cmdAwait(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: await file regexp")
	}
	re, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		b, err := os.ReadFile(ts.MkAbs(args[0]))
		switch {
		case err == nil && re.Match(b):
			return
		case strings.HasSuffix(args[0], ".err") && lastWords.Match(b):
			ts.Fatalf("%s has no match for %s, but an error:\n%s", args[0], args[1], b)
		}
		select {
		case <-tick.C:
		case <-waitContext(ts).Done():
			ts.Fatalf("%s has no match for %s:\n%s", args[0], args[1], ts.ReadFile(args[0]))
		}
	}
}

// lastWords matches a whole line with which guestprobe ends.
var lastWords = regexp.MustCompile(`(?m)^guestprobe: .*\n`)

// cmdStranger runs a program as a user that is neither the daemon's nor root,
// and checks its exit status. Its output is in the files out and err. Only root
// can change the user, so scripts use the condition [root]:
//
//	[root] stranger 5 guestprobe list
func cmdStranger(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: stranger status program [arg...]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	bin, err := exec.LookPath(args[1])
	ts.Check(err)
	// The program must be where other users can execute it.
	dir, err := os.MkdirTemp("", "gp")
	ts.Check(err)
	defer os.RemoveAll(dir)
	ts.Check(os.Chmod(dir, 0o755))
	prog := filepath.Join(dir, args[1])
	// Use another process to write the program: a process that another script starts at the same time
	// could inherit our writable descriptor, and the kernel does not
	// execute files that are open for writing (ETXTBSY).
	ts.Check(exec.Command("cp", "--", bin, prog).Run())
	ts.Check(os.Chmod(prog, 0o755))
	var out, errs bytes.Buffer
	cmd := exec.Command(prog, args[2:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", &out, &errs
	cmd.Env = append(os.Environ(), "GUESTPROBE_SOCKET="+ts.Getenv("GUESTPROBE_SOCKET"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		ts.Fatalf("%v", err)
	}
	ts.Check(os.WriteFile(ts.MkAbs("out"), out.Bytes(), 0o600))
	ts.Check(os.WriteFile(ts.MkAbs("err"), errs.Bytes(), 0o600))
	if got := cmd.ProcessState.ExitCode(); got != want {
		ts.Fatalf("exit status %d, want %d; it said:\n%s%s", got, want, out.String(), errs.String())
	}
}
