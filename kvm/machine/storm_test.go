package machine

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// followed is a kretprobe of a storm, with a count of its own beside the
// engine's: a kprobe at the same place, and each handler that ran.
type followed struct {
	ret   *probe.Kretprobe
	entry *probe.Kprobe

	calls, entries, returns atomic.Uint64
}

// follow returns a kretprobe for every function that can have one, each with a
// kprobe that counts the same calls.
func follow(t *testing.T, m *Machine, maxActive int) []*followed {
	t.Helper()
	var all []*followed
	for _, r := range returnProbes(t, m, maxActive, nil) {
		f := &followed{ret: r}
		f.entry = &probe.Kprobe{Name: r.Name, Addr: r.Addr, Pre: func(*probe.Context) int { f.calls.Add(1); return 0 }}
		r.Entry = func(*probe.Context) int { f.entries.Add(1); return 0 }
		r.Return = func(*probe.Context) { f.returns.Add(1) }
		all = append(all, f)
	}
	return all
}

// drain ends the following of new calls and waits until those under way have
// returned, or were found to be left in another way: no instance is lost.
func drain(t *testing.T, m *Machine, all []*followed) {
	t.Helper()
	for _, f := range all {
		if err := m.Engine().Disable(&f.ret.Kprobe); err != nil {
			t.Fatal(err)
		}
	}
	wait := patience.Context(t)
	for i := 0; i < len(all); {
		if in, _ := m.Engine().Info(&all[i].ret.Kprobe); in.InUse == 0 {
			i++
			continue
		}
		if p := m.State().Phase; p != PhaseRunning {
			t.Fatalf("the guest is %s: %v", p, m.State().Crash)
		}
		// What has become of the others may only be seen in a stopped world.
		if err := m.Engine().Reclaim(); err != nil {
			t.Fatal(err)
		}
		if wait.Err() != nil {
			for _, f := range all[i:] {
				if in, _ := m.Engine().Info(&f.ret.Kprobe); in.InUse != 0 {
					t.Errorf("kretprobe %s: %d instances still in use", f.ret.Name, in.InUse)
				}
			}
			return
		}
		breathe()
	}
}

// awaitRounds waits until each vCPU has done its first rounds: what the guest
// runs for ever it has entered then.
func awaitRounds(t *testing.T, m *Machine, vcpus int) {
	t.Helper()
	v, err := m.Image().Lookup("workload_rounds")
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < vcpus; {
		var b [8]byte
		if err := m.Peek(v.Addr+guest.GVA(8*i), b[:]); err != nil {
			t.Fatal(err)
		}
		if littleEndian(b[:]) >= 2 {
			i++
		}
		if p := m.State().Phase; p != PhaseRunning {
			t.Fatalf("the guest is %s: %v", p, m.State().Crash)
		}
		breathe()
	}
}

// settle checks that the engine counted what the handlers did, to the unit. The
// probes are off; inUse says that calls may have been under way then.
func (f *followed) settle(t *testing.T, m *Machine, inUse bool) (s probe.Stats) {
	t.Helper()
	s, _, _ = m.Engine().Stats(&f.ret.Kprobe)
	ended := s.Returns + s.Abandoned
	switch {
	case s.Hits != s.Handled+s.Filtered+s.Missed || s.Filtered != 0,
		s.Handled != f.entries.Load() || s.Returns != f.returns.Load(),
		ended > s.Handled || !inUse && ended != s.Handled:
		t.Errorf("kretprobe %s: %+v; %d entry and %d return handlers ran", f.ret.Name, s, f.entries.Load(), f.returns.Load())
	}
	return s
}

// storm has kretprobes come and go on the functions of a guest that never
// rests, each time for so many returns. In every other round they go while calls are under way; in the others
// these are waited for, and must all come back.
func storm(t *testing.T, vcpus int, length time.Duration, returns uint64) {
	tick := time.Millisecond
	if vcpus > 8 { // where kernel code is emulated ticks would be all that they do
		tick = time.Duration(vcpus) * time.Millisecond / 2
	}
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "busy quiet", Tick: tick})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitRounds(t, m, vcpus)
	var sum probe.Stats
	rounds, drained := 0, 0
	for end := time.Now().Add(length); time.Now().Before(end) || rounds < 2; rounds++ {
		all := follow(t, m, 1+rounds%5)
		var probes []probe.Probe
		for _, f := range all {
			probes = append(probes, f.ret, f.entry)
		}
		if err := m.Engine().Register(probes...); err != nil {
			t.Fatal(err)
		}
		for before := m.Engine().Totals(-1).Returns; m.Engine().Totals(-1).Returns < before+returns; {
			if p := m.State().Phase; p != PhaseRunning {
				t.Fatalf("the guest is %s: %v", p, m.State().Crash)
			}
			breathe()
		}
		if rounds%2 == 0 {
			if vcpus > kvmtest.ChooseSize(4, 8) { // the rounds under way would take up to a minute with each function probed
				var ps []*probe.Kprobe
				for _, f := range all {
					ps = append(ps, &f.ret.Kprobe, f.entry)
				}
				if err := m.Engine().Disable(ps...); err != nil {
					t.Fatal(err)
				}
			}
			drain(t, m, all)
			drained++
		}
		var ps []*probe.Kprobe
		for _, f := range all {
			ps = append(ps, &f.ret.Kprobe, f.entry)
		}
		if err := errors.Join(m.Engine().Unregister(ps...), m.Engine().Collect()); err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			s := f.settle(t, m, rounds%2 != 0)
			// While both were enabled they were hit together.
			if k, _, _ := m.Engine().Stats(f.entry); k.Hits != f.calls.Load() || rounds%2 != 0 && s.Hits != k.Hits {
				t.Errorf("%s: %d calls seen by the kretprobe, %d by the kprobe beside it, whose handler ran %d times", f.ret.Name, s.Hits, k.Hits, f.calls.Load())
			}
			sum.Hits += s.Hits
			sum.Handled += s.Handled
			sum.Missed += s.Missed
			sum.Returns += s.Returns
			sum.Abandoned += s.Abandoned
		}
	}
	s := m.State()
	if s.Phase != PhaseRunning || s.Checks.Count != 0 {
		t.Errorf("the guest is %s with %d failed checks: %v", s.Phase, s.Checks.Count, s.Crash)
	}
	e := m.Engine().Totals(-1)
	t.Logf("%d rounds, %d of them until no call was under way: %d calls = %d handled + %d missed; %d returned, %d abandoned; %d returned again; %d failed self-checks",
		rounds, drained, sum.Hits, sum.Handled, sum.Missed, sum.Returns, sum.Abandoned, e.Copies, s.Checks.Count)
	if e.Foreign != 0 || e.Strays != 0 {
		t.Errorf("%d foreign breakpoints, %d strays", e.Foreign, e.Strays)
	}
	checkText(t, m)
	checkCollected(t, m)
}

// TestReturnStorm: kretprobes with hardly any instances on every function, also
// recursive and preempted ones, that come and go. It is short by default;
// GUESTPROBE_STORM=60s makes it longer at 8 vCPUs.
func TestReturnStorm(t *testing.T) {
	sizes, length, returns := []int{2, 4, 8}, kvmtest.ChooseSize(400*time.Millisecond, time.Second), kvmtest.ChooseSize(uint64(1500), 4000)
	if testing.Short() { // emulated hosts
		sizes, length, returns = []int{2, 4}, 200*time.Millisecond, 500
	}
	for _, vcpus := range sizes {
		length := length
		if s := os.Getenv("GUESTPROBE_STORM"); s != "" && vcpus == 8 {
			var err error
			if length, err = time.ParseDuration(s); err != nil {
				t.Fatal(err)
			}
		}
		t.Run(fmt.Sprintf("%d vcpus", vcpus), func(t *testing.T) { storm(t, vcpus, length, returns) })
	}
}
