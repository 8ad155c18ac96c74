package soak_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/internal/cli"
	"github.com/guestprobe/guestprobe/internal/dev/soak"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// TestMain makes this binary the two real programs as well, by their names.
func TestMain(m *testing.M) {
	switch filepath.Base(os.Args[0]) {
	case "guestprobed":
		os.Exit(daemon.Main(nil))
	case "guestprobe":
		os.Exit(cli.Main())
	}
	goleak.VerifyTestMain(m)
}

// TestShort is a whole soak in seconds: every phase, at 2 and at 4 vCPUs. It is
// longer where the machine is so busy that something did not happen in it.
func TestShort(t *testing.T) {
	kvmtest.Require(t)
	for d := kvmtest.ChooseSize(soak.MinDuration, 10*time.Second); ; d *= 3 {
		idle := runShort(t, d)
		if len(idle) == 0 {
			return
		}
		// A soak in which nothing happened would pass as well.
		if d > time.Minute {
			t.Fatalf("none of these in a soak of %v: %s", d, strings.Join(idle, ", "))
		}
		t.Logf("none of these in %v: %s; a longer one", d, strings.Join(idle, ", "))
	}
}

// runShort makes one soak and returns what did not happen in it.
func runShort(t *testing.T, d time.Duration) (idle []string) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A test's own directory may be too long for a socket.
	dir, err := os.MkdirTemp("", "gpsoak-")
	if err != nil {
		t.Fatal(err)
	}
	o := soak.Options{
		Duration: d, VCPUs: []int{2, 4}, Seed: 1, Dir: dir, Patience: time.Hour,
		Daemon: filepath.Join(dir, "guestprobed"), CLI: filepath.Join(dir, "guestprobe"),
		Progress: func(line string) { t.Log(line) },
	}
	for _, p := range []string{o.Daemon, o.CLI} {
		if err := os.Symlink(self, p); err != nil {
			t.Fatal(err)
		}
	}
	res, err := soak.Run(patience.Context(t), o)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range res.Failures() {
		t.Error(f)
	}
	if !res.Passed {
		t.Fatalf("failed; the daemons' logs are in %s", dir)
	}
	os.RemoveAll(dir)
	if want := 7 * len(o.VCPUs); len(res.Phases) != want {
		t.Errorf("%d phases, want %d", len(res.Phases), want)
	}
	begun, refused := res.Total.Operations()
	for what, n := range map[string]uint64{
		"operations": uint64(begun), "refusals": uint64(refused), "probes": res.Total.Attached, "hits": res.Total.Hits, "events": res.Total.Events,
		"closed sums": uint64(res.Total.Summed), "ended streams": uint64(res.Total.Ended), "cut streams": uint64(res.Total.Cut),
		"killed clients": uint64(res.Total.Killed), "scripts": uint64(res.Total.Scripts), "snapshots": uint64(res.Total.Saved), "stops": uint64(res.Total.Stopped), "not_boundary": uint64(res.Total.Refusals["not_boundary"]),
		"blacklisted": uint64(res.Total.Refusals["blacklisted"]),
	} {
		if n == 0 {
			idle = append(idle, what)
		}
	}
	return idle
}

// TestOptions: what cannot be is refused before anything starts.
func TestOptions(t *testing.T) {
	for _, tc := range []struct {
		name string
		set  func(*soak.Options)
	}{
		{"too short", func(o *soak.Options) { o.Duration = soak.MinDuration - 1 }},
		{"negative", func(o *soak.Options) { o.Duration = -1 }},
		{"too long", func(o *soak.Options) { o.Duration = soak.MaxDuration + 1 }},
		{"no size", func(o *soak.Options) { o.VCPUs = []int{} }},
		{"0 vCPUs", func(o *soak.Options) { o.VCPUs = []int{2, 0} }},
		{"65 vCPUs", func(o *soak.Options) { o.VCPUs = []int{65} }},
		{"negative patience", func(o *soak.Options) { o.Patience = -1 }},
		{"negative clients", func(o *soak.Options) { o.Clients = -1 }},
		{"too many clients", func(o *soak.Options) { o.Clients = soak.MaxClients + 1 }},
		{"no daemon", func(o *soak.Options) { o.Daemon = "" }},
		{"no command line", func(o *soak.Options) { o.CLI = "" }},
		{"no directory", func(o *soak.Options) { o.Dir = "" }},
	} {
		o := soak.Options{Daemon: "d", CLI: "c", Dir: "x"}
		tc.set(&o)
		if res, err := soak.Run(context.Background(), o); err == nil || res != nil {
			t.Errorf("%s: %v, %v", tc.name, res, err)
		}
	}
}

// TestNoDaemon: a program that cannot be run, and one that says no, are errors
// with their reason, not failures of the product.
func TestNoDaemon(t *testing.T) {
	dir := t.TempDir()
	no := filepath.Join(dir, "no")
	if err := os.WriteFile(no, []byte("#!/bin/sh\necho 'not today' >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for program, want := range map[string]string{
		filepath.Join(dir, "missing"): "start " + filepath.Join(dir, "missing"),
		no:                            "guestprobed did not start: exit status 3: not today",
	} {
		res, err := soak.Run(context.Background(), soak.Options{Daemon: program, CLI: program, Dir: dir})
		if err == nil || len(err.Error()) < len(want) || err.Error()[:len(want)] != want || res == nil || res.Passed {
			t.Errorf("%s: %+v, %v; want an error that begins with %q", program, res, err, want)
		}
	}
}

// ExampleResult_Failures shows how failures read.
func ExampleResult_Failures() {
	r := soak.Result{Phases: []*soak.Phase{{Name: "2 vCPUs, load 1 of 3", Failures: []string{"text: differs"}, FailuresMore: 2}}}
	for _, f := range r.Failures() {
		fmt.Println(f)
	}
	// Output:
	// 2 vCPUs, load 1 of 3: text: differs
	// 2 vCPUs, load 1 of 3: and 2 more
}
