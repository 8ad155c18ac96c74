package machine

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/builtin"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// builtinImage returns the built-in guest.
func builtinImage(t testing.TB) *guest.Image {
	t.Helper()
	img, err := guest.ParseELF(builtin.ELF())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// results runs the built-in guest's workload to its end, and returns its result
// lines in order of vCPU.
func results(t testing.TB, m *Machine) []string {
	t.Helper()
	before, _ := m.Console().History()
	s := run(t, m)
	lines, dropped := m.Console().History()
	var out []string
	for _, l := range lines[len(before):] {
		if strings.HasPrefix(l.Text, "result ") {
			out = append(out, l.Text)
		}
	}
	if s.Phase != PhaseExited || s.ExitCode != builtin.ExitOK || s.Checks.Count != 0 || dropped != 0 {
		t.Errorf("workload: phase %s, exit code %d, %d failed checks, crash %v, console %q", s.Phase, s.ExitCode, s.Checks.Count, s.Crash, texts(lines))
	}
	slices.Sort(out)
	return out
}

// functionProbes returns a probe for the entry of every function that can be
// probed.
func functionProbes(t testing.TB, m *Machine, pre func(*probe.Context) int, post func(*probe.Context)) []*probe.Kprobe {
	t.Helper()
	var all []*probe.Kprobe
	user := 0
	for _, s := range m.Image().Symbols() {
		if s.Kind != guest.SymFunc {
			continue
		}
		k := &probe.Kprobe{Name: s.Name, Addr: s.Addr, Pre: pre, Post: post}
		if _, err := m.Engine().Check(k); err != nil {
			continue
		}
		all = append(all, k)
		if s.User {
			user++
		}
	}
	if len(all) < 100 || user < 10 && m.Host().Traps.CPL3.Int3.Breakpoints(true) {
		t.Fatalf("only %d functions can be probed, %d in user code", len(all), user)
	}
	return all
}

// TestWorkloadProbedAndUnprobed runs the built-in guest's self-checking workload
// without probes, with a probe on every function, and with post handlers too:
// it computes the same.
func TestWorkloadProbedAndUnprobed(t *testing.T) {
	sizes := kvmtest.ChooseSize([]int{1, 2, 4}, []int{1, 2, 4, 8})
	if testing.Short() {
		sizes = []int{1, 2, 8} // emulated hosts: some of it takes minutes there
	}
	if kvmtest.Slow {
		sizes = []int{2}
	}
	for _, vcpus := range sizes {
		t.Run(fmt.Sprintf("%d vcpus", vcpus), func(t *testing.T) {
			config := Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=1", Tick: slowTick}
			want := results(t, newMachine(t, config))
			if len(want) != vcpus {
				t.Fatalf("results %q, want one line for each vCPU", want)
			}
			for _, post := range []bool{false, true} {
				t.Run(fmt.Sprintf("post %v", post), func(t *testing.T) {
					m := newMachine(t, config)
					var pres, posts atomic.Uint64
					pre := func(*probe.Context) int { pres.Add(1); return 0 }
					var after func(*probe.Context)
					if post {
						after = func(*probe.Context) { posts.Add(1) }
					}
					all := functionProbes(t, m, pre, after)
					if err := m.Engine().Register(probe.Probes(all)...); err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(want, results(t, m)); diff != "" {
						t.Errorf("results (-unprobed +probed):\n%s", diff)
					}
					checkAccounts(t, m, all, &pres)
					e := m.Engine().Totals(-1)
					t.Logf("%d probes, %d pre and %d post handlers, exits per hit %.3f, %+v", len(all), pres.Load(), posts.Load(), m.Stats().ExitsPerHit(), e)
					if x := m.Stats().ExitsPerHit(); x > 2 || !post && x > 1.2 {
						t.Errorf("%.3f exits per hit", x)
					}
					if err := m.Engine().Unregister(all...); err != nil {
						t.Error(err)
					}
					checkText(t, m)
				})
			}
		})
	}
}

// checkAccounts checks that no hit was lost.
func checkAccounts(t *testing.T, m *Machine, all []*probe.Kprobe, handled *atomic.Uint64) {
	t.Helper()
	// The guest has ended, but a vCPU may still be in its last hit.
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	var sum probe.Stats
	for _, k := range all {
		s, _, ok := m.Engine().Stats(k)
		if !ok || s.Hits != s.Handled+s.Filtered+s.Missed {
			t.Errorf("probe %s: counts do not close: %+v", k.Name, s)
		}
		sum.Hits += s.Hits
		sum.Handled += s.Handled
	}
	if sum.Handled != handled.Load() {
		t.Errorf("%d hits counted as handled, %d handlers ran", sum.Handled, handled.Load())
	}
	if e := m.Engine().Totals(-1); e.Breakpoints+e.Detours != sum.Hits || e.Strays != 0 {
		t.Errorf("engine counts %+v, want %d breakpoints and no strays", e, sum.Hits)
	}
}

// checkText compares the guest's text with the image.
func checkText(t testing.TB, m *Machine) {
	t.Helper()
	for _, s := range m.Image().(*guest.Image).Segments {
		if !s.X {
			continue
		}
		got := make([]byte, len(s.Data))
		if err := m.Peek(s.VAddr, got); err != nil {
			t.Fatal(err)
		}
		for i := range got {
			if got[i] != s.Data[i] {
				t.Errorf("text at %v is %02x, the image has %02x", s.VAddr+guest.GVA(i), got[i], s.Data[i])
				return
			}
		}
	}
}

// TestProbesComeAndGo attaches and detaches while the workload runs on all
// vCPUs.
func TestProbesComeAndGo(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=4", Tick: slowTick})
	var hits atomic.Uint64
	hit := make(chan struct{}, 64)
	all := functionProbes(t, m, func(*probe.Context) int {
		hits.Add(1)
		select {
		case hit <- struct{}{}:
		default:
		}
		return 0
	}, nil)
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan State, 1)
	go func() {
		s, _ := m.Wait(context.Background())
		ended <- s
	}()
	rounds := 0
	for done := false; !done; rounds++ {
		part := all[rounds%7*len(all)/7 : (rounds%7+1)*len(all)/7]
		if err := m.Engine().Register(probe.Probes(part)...); err != nil {
			t.Fatal(err)
		}
		for n := 0; n < rounds%20 && !done; n++ {
			select {
			case <-hit:
			case s := <-ended:
				if s.Phase != PhaseExited || s.ExitCode != 0 || s.Checks.Count != 0 {
					t.Errorf("phase %s, exit code %d, %d failed checks, crash %v", s.Phase, s.ExitCode, s.Checks.Count, s.Crash)
				}
				done = true
			}
		}
		if err := m.Engine().Unregister(part...); err != nil {
			t.Fatal(err)
		}
		for _, k := range part {
			*k = probe.Kprobe{Name: k.Name, Addr: k.Addr, Pre: k.Pre}
		}
	}
	checkText(t, m)
	t.Logf("%d rounds, %d hits, %+v", rounds, hits.Load(), m.Engine().Totals(-1))
}

// TestForeignBreakpoints: the guest's own int3, in kernel and user code, reach
// its own handler, with probes around or not.
func TestForeignBreakpoints(t *testing.T) {
	vcpus := 2
	if kvmtest.Slow {
		vcpus = 1
	}
	config := Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=1 int3"}
	m := newMachine(t, config)
	want := results(t, m)
	foreign := func(m *Machine) (n uint64) {
		for _, v := range m.Stats().VCPUs {
			n += v.Foreign
		}
		return n
	}
	if foreign(m) == 0 {
		t.Errorf("the guest's own int3 were not seen: %+v", m.Stats())
	}
	m = newMachine(t, config)
	all := functionProbes(t, m, func(*probe.Context) int { return 0 }, nil)
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unprobed +probed):\n%s", diff)
	}
	t.Logf("%d foreign breakpoints", foreign(m))
}
