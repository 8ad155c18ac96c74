package machine

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// reread is s from a file.
func reread(t *testing.T, s *snapshot.Snapshot) *snapshot.Snapshot {
	t.Helper()
	var b bytes.Buffer
	if _, err := s.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	out, err := snapshot.Read(&b, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s.Config, out.Config); diff != "" {
		t.Fatalf("config (-saved +read):\n%s", diff)
	}
	return out
}

// save saves a guest, which is let go on for a moment where it was paused inside a probe's code.
func save(t *testing.T, m *Machine) *snapshot.Snapshot {
	t.Helper()
	s, err := m.Save(nil)
	for errors.Is(err, probe.ErrInside) {
		if err := errors.Join(m.Resume(), m.Pause()); err != nil {
			t.Fatal(err)
		}
		s, err = m.Save(nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSaveInTheMiddle saves the built-in guest in the middle of its work, with all kinds of probes on it, and has
// another machine, and the same one, go on from there: both come to the results that the guest comes to without
// all that. What is saved has nothing of the probes.
func TestSaveInTheMiddle(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=1", Tick: slowTick}
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	first := save(t, m)
	var hits, next atomic.Int64
	stopped := make(chan error)
	all := functionProbes(t, m, func(*probe.Context) int {
		if hits.Add(1) == next.Load() {
			changed := m.Changed()
			go func() { stopped <- m.Pause() }()
			<-changed
		}
		return 0
	}, nil)
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	var rets []*probe.Kretprobe
	for _, k := range all {
		rets = append(rets, &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: k.Symbol, Addr: k.Addr}})
	}
	for _, r := range rets {
		_ = m.Engine().Register(r) // what does not return takes none
	}
	saves, ways := 3, 2
	if kvmtest.Slow {
		saves, ways = 1, 1
	}
	for range saves {
		next.Store(hits.Load() + 100) // there are some 15,000 in all
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-stopped:
			if err != nil {
				t.Fatal(err)
			}
		case <-patience.Context(t).Done():
			t.Fatalf("not stopped: %+v", m.State())
		}
		s := reread(t, save(t, m))
		if s.Config.ID == first.Config.ID || !s.Config.Started || first.Config.Started {
			t.Errorf("configs %+v and %+v", first.Config, s.Config)
		}
		n := newMachine(t, config)
		if err := n.ResetTo(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		if p := n.State().Phase; p != PhasePaused {
			t.Errorf("phase %s", p)
		}
		checkText(t, n)
		if diff := cmp.Diff(want, results(t, n)); diff != "" {
			t.Errorf("results of another machine (-without +saved):\n%s", diff)
		}
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results of the machine that was saved (-without +saved):\n%s", diff)
	}
	if ended, err := m.Save(nil); err != nil || ended.Config.Ended != "exited" {
		t.Errorf("save of a guest that has ended: %v", err)
	} else if err := m.ResetTo(context.Background(), reread(t, ended)); !errors.Is(err, ErrSavedEnd) {
		t.Errorf("reset to a guest that has ended: %v", err)
	}
	for range ways {
		if err := m.ResetTo(context.Background(), first); err != nil {
			t.Fatal(err)
		}
		if p := m.State().Phase; p != PhaseCreated {
			t.Errorf("phase %s", p)
		}
		if diff := cmp.Diff(want, results(t, m)); diff != "" {
			t.Errorf("results after the way back (-without +saved):\n%s", diff)
		}
	}
}

// TestResetToAgain repeats the same stretch of a guest 100 times, from the middle of a function with a return probe, with
// other probes each time: each run hits what the first has hit.
func TestResetToAgain(t *testing.T) {
	const n = 50
	code, fn := countingGuest(n)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1})
	var hits atomic.Uint64
	var trace []uint64
	stop := make(chan struct{})
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "fn"}, Entry: func(c *probe.Context) int {
		trace = append(trace, c.Regs.RAX, c.Regs.RCX, c.Regs.RSP)
		if hits.Add(1) == 20 {
			changed := m.Changed()
			go func() { _ = m.Pause(); close(stop) }()
			<-changed
		}
		return 0
	}}
	if err := m.Engine().Register(r); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	<-stop
	s := save(t, m)
	var want []uint64
	for i := range 100 {
		trace = nil
		if err := m.ResetTo(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		if st := run(t, m); st.Phase != PhaseExited || st.ExitCode != wantCount(n) {
			t.Fatalf("run %d: %+v", i, st)
		}
		if i == 0 {
			want = trace
		}
		if !slices.Equal(trace, want) {
			t.Fatalf("run %d: %d values of hits, the first has had %d", i, len(trace), len(want))
		}
	}
}

// TestResetToAnother refuses what is of another guest, and leaves the one there is alone.
func TestResetToAnother(t *testing.T) {
	code, fn := countingGuest(5)
	image := tinyGuest(t, code, nil, fn)
	s := save(t, newMachine(t, Config{Image: image, Memory: 16 << 20, Tick: -1}))
	for name, c := range map[string]Config{
		"vcpus":  {Image: image, Memory: 16 << 20, VCPUs: 2},
		"memory": {Image: image, Memory: 32 << 20},
		"image":  {Image: tinyGuest(t, spin, nil), Memory: 16 << 20},
	} {
		m := newMachine(t, c)
		if err := m.ResetTo(context.Background(), s); !errors.Is(err, ErrOtherGuest) {
			t.Errorf("%s: %v", name, err)
		}
		if p := m.State().Phase; p != PhaseCreated {
			t.Errorf("%s: phase %s", name, p)
		}
	}
}

// TestResetToWhatTheHostWrote has the host alone write to the guest's memory, as devices, debuggers and probes do, where the snapshot
// has bytes and where it has none: all of it is gone when the guest comes back, and again the next time.
func TestResetToWhatTheHostWrote(t *testing.T) {
	code, fn := countingGuest(5)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}}) // no page for a board comes in between
	s := save(t, m)
	for round := range 3 {
		k := &probe.Kprobe{Symbol: "fn", Pre: func(*probe.Context) int { return 0 }}
		if err := m.Engine().Register(k); err != nil {
			t.Fatal(err)
		}
		for _, at := range []guest.GPA{s.Memory[0].At, 12 << 20, 15<<20 + 8} {
			b, err := m.mem.Slice(at, 8)
			if err != nil {
				t.Fatal(err)
			}
			copy(b, "of a dev")
		}
		stay := round == 1 // the probe is there when the guest comes back
		if !stay {
			if err := m.Engine().Unregister(k); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.ResetTo(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		if stay {
			if err := m.Engine().Unregister(k); err != nil {
				t.Fatal(err)
			}
		}
		isMemory(t, m, s)
		if st := run(t, m); st.Phase != PhaseExited || st.ExitCode != wantCount(5) {
			t.Fatalf("%+v", st)
		}
		if err := m.ResetTo(context.Background(), s); err != nil {
			t.Fatal(err)
		}
		isMemory(t, m, s)
	}
}

// isMemory compares the memory of a guest that rests, and has no probe, with a snapshot's.
func isMemory(t *testing.T, m *Machine, s *snapshot.Snapshot) {
	t.Helper()
	for i, r := range m.mem.ranges {
		want := make([]byte, guest.PageSize)
		for off := uint64(0); r.Kind == guest.RangeRAM && off < r.Size; off += guest.PageSize {
			clear(want)
			copy(want, snapshot.Find(s.Memory, r.Base+guest.GPA(off)))
			if got := m.mem.regions[i][off:][:guest.PageSize]; !bytes.Equal(got, want) {
				t.Fatalf("the page at %v differs (-want +got):\n%s", r.Base+guest.GPA(off), cmp.Diff(want, got))
			}
		}
	}
}
