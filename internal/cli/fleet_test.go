package cli

import (
	"errors"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/guestprobe/guestprobe/internal/cli/child"
)

// fleetDaemons are the daemons started with member, by script and name.
var fleetDaemons sync.Map

type memberKey struct {
	ts   *testscript.TestScript
	name string
}

// cmdMember starts a guestprobed with that name, in the fleet of $FLEET and $CREDS if they are set, and waits until it is ready:
//
//	member vm1 --label rack=1
func cmdMember(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 1 {
		ts.Fatalf("usage: member name [flag...]")
	}
	bin, err := exec.LookPath("guestprobed")
	ts.Check(err)
	file := ts.MkAbs(args[0] + ".log")
	log, err := os.Create(file)
	ts.Check(err)
	defer log.Close()
	flags := []string{"--socket", ts.Getenv("SOCKDIR") + "/" + args[0]}
	if url := ts.Getenv("FLEET"); url != "" {
		flags = append(flags, "--fleet", url, "--fleet-creds", ts.Getenv("CREDS"), "--fleet-name", args[0])
	}
	d, err := child.Start(waitContext(ts), child.Options{
		Program: bin, Dir: ts.MkAbs("."), Output: log,
		Args: append(flags, addSlowTimer(args[1:])...),
	})
	if d != nil {
		key := memberKey{ts, args[0]}
		fleetDaemons.Store(key, d)
		ts.Defer(func() {
			d.Kill()
			fleetDaemons.Delete(key)
		})
	}
	if err != nil {
		ts.Fatalf("%v; log:\n%s", err, ts.ReadFile(file))
	}
}

// cmdLeave ends a daemon of member with a signal, by default TERM, and checks its exit status (-1: killed by the signal):
//
//	leave vm1 0
//	leave vm2 -1 KILL
func cmdLeave(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: leave name status [TERM|KILL]")
	}
	d, ok := fleetDaemons.Load(memberKey{ts, args[0]})
	if !ok {
		ts.Fatalf("no member %s", args[0])
	}
	sig := syscall.SIGTERM
	if len(args) > 2 && args[2] == "KILL" {
		sig = syscall.SIGKILL
	}
	err := d.(*child.Daemon).End(waitContext(ts), sig)
	got := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if strconv.Itoa(got) != args[1] {
		ts.Fatalf("exit status %d, want %s; log:\n%s", got, args[1], ts.ReadFile(args[0]+".log"))
	}
}

// cmdRepeat runs a program until its output matches a regular expression, to wait for other processes:
//
//	repeat '^reads +3 running' guestprobe scripts
func cmdRepeat(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: repeat regexp program [arg...]")
	}
	re, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for waitContext(ts).Err() == nil {
		if err := ts.Exec(args[1], args[2:]...); err == nil && re.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("no match for %s", args[0])
}

// cmdSetenv sets a variable to the content of a file:
//
//	setenv FLEET url
func cmdSetenv(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: setenv name file")
	}
	ts.Setenv(args[0], strings.TrimSpace(ts.ReadFile(args[1])))
}
