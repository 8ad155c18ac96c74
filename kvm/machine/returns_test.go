package machine

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

// returnProbes returns a kretprobe for every function of the built-in guest
// that can have one.
func returnProbes(t testing.TB, m *Machine, maxActive int, ret func(*probe.Context)) []*probe.Kretprobe {
	t.Helper()
	var all []*probe.Kretprobe
	for _, s := range m.Image().Symbols() {
		if s.Kind != guest.SymFunc {
			continue
		}
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: s.Name, Addr: s.Addr}, MaxActive: maxActive, Return: ret}
		if _, err := m.Engine().Check(r); err == nil {
			all = append(all, r)
		}
	}
	if len(all) < 80 {
		t.Fatalf("only %d functions can have a kretprobe", len(all))
	}
	return all
}

// settleReturns checks, of a guest that has ended, that every call was handled
// or missed, and what became of each that was handled.
func settleReturns(t *testing.T, m *Machine, all []*probe.Kretprobe, returned *atomic.Uint64) {
	t.Helper()
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	var sum probe.Stats
	inUse := 0
	for _, r := range all {
		i, _ := m.Engine().Info(&r.Kprobe)
		s := i.Stats
		if s.Hits != s.Handled+s.Filtered+s.Missed || s.Handled != s.Returns+s.Abandoned+uint64(i.InUse) || i.HighWater > i.MaxActive {
			t.Errorf("kretprobe %s: counts do not close: %d in use, high water %d of %d, %+v", r.Name, i.InUse, i.HighWater, i.MaxActive, s)
		}
		if i.InUse > 0 || s.Missed > 0 || s.Abandoned > 0 {
			t.Logf("%-24s %d calls: %d returned, %d abandoned, %d in use (at most %d of %d), %d missed", r.Name, s.Hits, s.Returns, s.Abandoned, i.InUse, i.HighWater, i.MaxActive, s.Missed)
		}
		sum.Hits += s.Hits
		sum.Returns += s.Returns
		sum.Missed += s.Missed
		inUse += i.InUse
	}
	e := m.Engine().Totals(-1)
	if e.Strays != 0 || e.Foreign != 0 || e.Breakpoints+e.Detours != sum.Hits || sum.Returns != returned.Load() {
		t.Errorf("engine counts %+v, want %d breakpoints; %d return handlers ran for %d returns", e, sum.Hits, returned.Load(), sum.Returns)
	}
	t.Logf("%d kretprobes, %d calls, %d returned, %d missed, %d under way at the end; exits per hit %.3f", len(all), sum.Hits, sum.Returns, sum.Missed, inUse, m.Stats().ExitsPerHit())
}

// TestWorkloadWithReturns runs the built-in guest's self-checking workload with
// a kretprobe on every function that can have one, with enough instances and
// with hardly any: tasks are preempted and switched, exit, and are killed, and it
// computes the same. A copy is what a function that returns twice makes of its
// second return: set_jump does.
func TestWorkloadWithReturns(t *testing.T) {
	sizes := []int{1, kvmtest.ChooseSize(4, 8)}
	if testing.Short() {
		sizes = []int{1, 2} // emulated hosts
	}
	rounds := "rounds=2"
	if kvmtest.Slow {
		sizes, rounds = []int{2}, "rounds=1"
	}
	for _, vcpus := range sizes {
		config := Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: rounds, Tick: slowTick}
		want := results(t, newMachine(t, config))
		for _, maxActive := range []int{0, 2} {
			t.Run(fmt.Sprintf("%d vcpus, max %d", vcpus, maxActive), func(t *testing.T) {
				m := newMachine(t, config)
				var returned atomic.Uint64
				all := returnProbes(t, m, maxActive, func(*probe.Context) { returned.Add(1) })
				if err := m.Engine().Register(probe.Probes(all)...); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, results(t, m)); diff != "" {
					t.Errorf("results (-unprobed +probed):\n%s", diff)
				}
				settleReturns(t, m, all, &returned)
				for _, r := range all {
					if err := m.Engine().Unregister(&r.Kprobe); err != nil {
						t.Error(err)
					}
				}
				checkText(t, m)
			})
		}
	}
}

// TestNoInstanceLeft: tasks that exit, that are killed, and functions that are
// left by a long jump leave no instance in use, although nobody may ever use
// their stacks again; none is missing meanwhile, and the guest computes the same.
func TestNoInstanceLeft(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=12 nouser", Tick: time.Millisecond}
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	var all []*probe.Kretprobe
	for _, s := range m.Image().Symbols() {
		switch s.Name {
		case "do_exit", "fork_child", "sleep_forever", "long_jump", "jump_out", "set_jump":
			all = append(all, &probe.Kretprobe{Kprobe: probe.Kprobe{Name: s.Name, Addr: s.Addr}, MaxActive: 4})
		}
	}
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-unprobed +probed):\n%s", diff)
	}
	// The guest may end before its tasks show that the last calls are over.
	if err := m.Engine().Reclaim(); err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		i, _ := m.Engine().Info(&r.Kprobe)
		s := i.Stats
		if i.InUse != 0 || s.Missed != 0 || s.Handled != s.Returns+s.Abandoned {
			t.Errorf("%s: %d in use, at most %d: %+v", r.Name, i.InUse, i.HighWater, s)
		}
		// Whether it comes to sleep_forever before its end is for the host to say.
		if never := r.Name != "set_jump" && r.Name != "fork_child"; !i.User && (s.Hits == 0 && r.Name != "sleep_forever" || never && s.Returns != 0) {
			t.Errorf("%s: %d calls, %d of them returned", r.Name, s.Hits, s.Returns)
		}
		t.Logf("%-14s %3d calls: %d returned, %d abandoned, at most %d at a time", r.Name, s.Hits, s.Returns, s.Abandoned, i.HighWater)
	}
}

// TestStackByFrameInformation: at every instruction of a function that sets up
// its frame late, behind a check, the walk finds the true callers, with
// kretprobes on the function and on its callers.
func TestStackByFrameInformation(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "rounds=8 nouser"})
	fork, err := m.Symbols().Lookup("do_fork")
	if err != nil {
		t.Fatal(err)
	}
	name := func(pc guest.GVA) string {
		s, _ := m.Symbols().Find(pc)
		return s.Name
	}
	seen := map[guest.GVA]string{} // by one vCPU's thread
	pcs := make([]guest.GVA, 8)
	walk := func(c *probe.Context) int {
		chain := ""
		for _, pc := range pcs[:c.Stack(pcs)] {
			chain += name(pc) + " "
		}
		seen[c.Addr] = chain
		return 0
	}
	var all []probe.Probe
	for _, f := range []string{"do_fork", "work_fork", "work_kill", "workload_round"} {
		all = append(all, &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: f}})
	}
	for off := range fork.Size {
		k := &probe.Kprobe{Symbol: "do_fork", Offset: off, Pre: walk}
		if _, err := m.Engine().Check(k); err == nil {
			all = append(all, k)
		}
	}
	if err := m.Engine().Register(all...); err != nil {
		t.Fatal(err)
	}
	results(t, m)
	if err := m.Stop(doNothing); err != nil {
		t.Fatal(err)
	}
	if len(seen) < 10 {
		t.Errorf("only %d instructions were seen", len(seen))
	}
	for at, chain := range seen {
		if chain != "do_fork work_fork workload_round workload ret_from_fork " && chain != "do_fork work_kill workload_round workload ret_from_fork " {
			t.Errorf("stack at do_fork+%#x: %s", at-fork.Addr, chain)
		}
	}
}
