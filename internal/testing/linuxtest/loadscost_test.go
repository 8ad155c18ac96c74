package linuxtest

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/sessiontest"
	"github.com/guestprobe/guestprobe/probe/session"
)

// costOpens is how often a file is opened, and costTimes how often that is measured.
const (
	costOpens = 1000
	costTimes = 5
)

// TestLoadsCost says what a program costs that counts calls by a string of the caller's memory, beside a BPF program of the guest's own
// kernel that does the same, as lines of the table of scripts/bench-linux.sh. On a host that counts instructions as its time the figures
// are instructions.
func TestLoadsCost(t *testing.T) {
	for _, dir := range kvmtest.RequireLinux(t) {
		t.Run(filepath.Base(dir), func(t *testing.T) { loadsCost(t, dir) })
	}
}

func loadsCost(t *testing.T, dir string) {
	l := bootLoads(t, dir, 1)
	base := l.opens()
	costRow("`openat` of a file that is not there, not probed", base[0], base, "-", "-")
	var kernel float64
	for _, c := range []struct{ what, kind string }{
		{"a BPF program of the kernel's, by kprobe: counts by the path, a string of the program's", "names"},
		{"the same by fentry", "fentrynames"},
	} {
		if answer := l.ask("add own " + c.kind + " do_sys_openat2"); answer != "ok" {
			t.Fatal(answer)
		}
		all := l.opens()
		if n, err := strconv.Atoi(strings.TrimPrefix(l.ask("read"), "own=")); err != nil || n < costOpens*costTimes {
			t.Errorf("%s: %d of %d calls, %v", c.what, n, costOpens*costTimes, err)
		}
		l.ask("del own")
		added := costRow(c.what, base[0], all, "-", "-")
		if kernel == 0 || added < kernel {
			kernel = added
		}
	}
	l.scriptCosts("kprobe:do_sys_openat2 { @[str(arg1)] = count(); }", "@[/none/file]: ", base[0], kernel, 1.5)
}

// scriptCosts says what a script costs in the guest and on the host, which is without an exit, and at most that many times a program of
// the kernel's, in the guest. Its output has to have a text.
func (l *loads) scriptCosts(script, text string, base, kernel, most float64) {
	t := l.t
	t.Helper()
	for _, onHost := range []bool{false, true} {
		x := sessiontest.Start(t, l.s, script, session.ScriptOptions{OnHost: onHost})
		if err := l.Engine().Optimize(); err != nil {
			t.Fatal(err)
		}
		before := l.exits()
		all := l.opens()
		exits := float64(l.exits()-before) / (costOpens * costTimes)
		i := x.Probes()[0]
		if i.Site.InGuest == onHost || i.Stats.Missed != 0 || i.Stats.Handled < costOpens*costTimes {
			t.Errorf("on the host %v: %s, %+v", onHost, i.OnHost, i)
		}
		out, _, _ := x.End()
		if !strings.Contains(out, text) {
			t.Errorf("no %s in %s", text, out)
		}
		what := "a script in the guest that does the same"
		if onHost {
			what = "on the host"
		}
		added := median(all) - base
		costRow(what, base, all, fmt.Sprintf("%.2f", exits), fmt.Sprintf("%.2f", added/kernel))
		if !onHost && exits > 0.01 {
			t.Errorf("%.2f exits for a call", exits)
		}
		if !onHost && added > most*kernel {
			t.Errorf("it adds %.0f, more than %.1f times the %.0f of a BPF program of the kernel's", added, most, kernel)
		}
	}
}

// exits returns how many exits probes have taken.
func (l *loads) exits() (n uint64) {
	for _, v := range l.Stats().VCPUs {
		n += v.TrapExits
	}
	return n
}

// opens returns what a call costs, several times, ascending.
func (l *loads) opens() (all []float64) {
	l.t.Helper()
	for range costTimes {
		n, err := strconv.Atoi(l.ask(fmt.Sprintf("open %d", costOpens)))
		if err != nil {
			l.t.Fatal(err)
		}
		all = append(all, float64(n)/(costOpens/10))
	}
	slices.Sort(all)
	return all
}

func median(ascending []float64) float64 { return ascending[len(ascending)/2] }

// costRow prints a row of the table, and returns what is added to the base.
func costRow(what string, base float64, all []float64, exits, ratio string) float64 {
	if base == all[0] {
		base = 0
	}
	fmt.Printf("GP-COST | %s | %.0f (%.0f to %.0f) | - | %s | %s |\n", what, median(all)-base, all[0]-base, all[len(all)-1]-base, exits, ratio)
	return median(all) - base
}
