package machine

import (
	"bytes"
	_ "embed"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/session"
)

//go:embed testdata/costs.txt
var costs string

var updateCosts = flag.Bool("update-costs", false, "write testdata/costs.txt anew")

// TestCosts compares the sizes of programs and the exits of their hits with testdata/costs.txt: both depend on the guest only, not on the host. Where a change makes a hit cost
// more, the file's change shows it; -update-costs writes the file.
func TestCosts(t *testing.T) {
	kvmtest.Require(t)
	const path = "testdata/costs.txt"
	var out bytes.Buffer
	fmt.Fprintln(&out, "# Programs of scripts: instructions of BPF, bytes of machine code, and exits of 10 hits. TestCosts (kvm/machine) holds them, -update-costs writes them.")
	x := onIdle(t)
	for _, script := range []string{
		`kprobe:fib_recursive { @ = count(); }`,
		`kprobe:fib_recursive /arg0 == 99/ { @ = count(); }`,
		`kprobe:fib_recursive { @[arg0] = count(); }`,
		`kprobe:fib_recursive { @[comm] = count(); }`,
		`kprobe:fib_recursive { @[probe] = count(); }`,
		`kprobe:fib_recursive { @[kstack] = count(); }`,
		`kprobe:fib_recursive { @ = sum(arg0); }`,
		`kprobe:fib_recursive { @ = stats(arg0); }`,
		`kprobe:fib_recursive { @ = hist(arg0); }`,
		`kprobe:fib_recursive { @ = lhist(arg0, 0, 100, 10); }`,
		`kprobe:fib_recursive { @t[tid] = nsecs; }`,
		`kprobe:fib_recursive { printf("%d\n", arg0); }`,
		`kprobe:fib_recursive { printf("%s %d\n", comm, tid); }`,
		`kretprobe:fib_recursive { @ = count(); }`,
		`kretprobe:fib_recursive { @[retval] = count(); }`,
	} {
		sc := sessiontest.Start(t, x.s, script, session.ScriptOptions{})
		for range 10 {
			x.calls("fib_recursive", 1)
		}
		p, err := x.s.Get(sc.Probes()[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		if p.Program.Runs < 10 && !strings.Contains(script, "99") || p.Program.Faults > 0 {
			t.Errorf("%s: %+v", script, p.Program)
		}
		fmt.Fprintf(&out, "%-60s %4d %5d %3d\n", script, p.Program.Instructions, p.Program.CodeBytes, p.Program.Runs-p.Program.InGuest)
		sc.End()
	}
	if *updateCosts {
		if err := os.WriteFile(path, out.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := gocmp.Diff(strings.Split(costs, "\n"), strings.Split(out.String(), "\n")); diff != "" {
		t.Errorf("costs of a hit (-%s +now); if this is wanted: go test ./kvm/machine -run TestCosts -update-costs\n%s", path, diff)
	}
}
