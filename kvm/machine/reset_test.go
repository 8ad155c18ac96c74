package machine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestReset boots the same guest again and again: after its end, out of a
// crash, and in the middle of its work, with probes that stay.
func TestReset(t *testing.T) {
	const n = 50
	code, fn := countingGuest(n)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	var hits atomic.Uint64
	k := &probe.Kprobe{Symbol: "fn", Pre: func(*probe.Context) int { hits.Add(1); return 0 }}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != wantCount(n) {
			t.Fatalf("round %d: %+v", i, s)
		}
		if hits.Load() != uint64(n*(i+1)) {
			t.Errorf("round %d: %d hits, want %d", i, hits.Load(), n*(i+1))
		}
		if err := m.Reset(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
		s := m.State()
		if s.Phase != PhaseCreated || s.ExitCode != 0 || s.VCPUs[0].RIP != tinyText || s.VCPUs[0].Activity != VCPUParked {
			t.Errorf("round %d: after the reset %+v", i, s)
		}
	}
	if err := m.Engine().Unregister(k); err != nil {
		t.Error(err)
	}
	checkText(t, m)

	crash := tinyGuest(t, []byte{0x0f, 0x0b}, nil)
	if err := m.Reset(context.Background(), crash); err != nil {
		t.Fatal(err)
	}
	if m.Image() != crash {
		t.Error("the image was not replaced")
	}
	if s := run(t, m); s.Phase != PhaseCrashed {
		t.Fatalf("state %+v, want a crash", s)
	}
	busy := tinyGuest(t, spin, nil)
	for range 3 {
		if err := m.Reset(context.Background(), busy); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestResetOfABusyWorkload resets the built-in guest in the middle of its work:
// the results of the last round are those of the first boot.
func TestResetOfABusyWorkload(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=1", Tick: slowTick}
	want := results(t, newMachine(t, config))
	m := newMachine(t, config)
	hit := make(chan struct{}, 64)
	all := functionProbes(t, m, func(*probe.Context) int {
		select {
		case hit <- struct{}{}:
		default:
		}
		return 0
	}, nil)
	if err := m.Engine().Register(probe.Probes(all)...); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		for range 10 * (i + 1) {
			select {
			case <-hit:
			case <-patience.Context(t).Done():
				t.Fatalf("no hit: %+v", m.State())
			}
		}
		if err := m.Reset(context.Background(), nil); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want, results(t, m)); diff != "" {
		t.Errorf("results (-first boot +after resets):\n%s", diff)
	}
	if err := m.Engine().Unregister(all...); err != nil {
		t.Error(err)
	}
	checkText(t, m)
}

// TestResetToAnotherImage: probes on code that is gone are gone.
func TestResetToAnotherImage(t *testing.T) {
	code, fn := countingGuest(3)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1})
	k := &probe.Kprobe{Symbol: "fn"}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	if err := m.Reset(context.Background(), tinyGuest(t, asm(exitCode(5), hltForever), nil)); err != nil {
		t.Fatal(err)
	}
	if i, ok := m.Engine().Info(k); !ok || !i.Gone {
		t.Errorf("info %+v, want a probe that is gone", i)
	}
	if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != 5 {
		t.Errorf("state %+v", s)
	}
	if err := m.Engine().Unregister(k); err != nil {
		t.Error(err)
	}
}

// TestResetWithAnImageThatCannotBoot leaves a machine that says so and can be
// reset with one that can.
func TestResetWithAnImageThatCannotBoot(t *testing.T) {
	good := tinyGuest(t, asm(exitCode(5), hltForever), nil)
	m := newMachine(t, Config{Image: good, Memory: 16 << 20, Tick: -1})
	outside := tinyGuest(t, spin, nil)
	outside.Segments[0].PAddr = 64 << 20
	var ie *guest.ImageError
	if err := m.Reset(context.Background(), outside); !errors.As(err, &ie) {
		t.Fatalf("reset with an image outside memory: %v", err)
	}
	if s := m.State(); s.Phase != PhaseCreated {
		t.Errorf("phase %s", s.Phase)
	}
	if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != 5 {
		t.Errorf("state %+v: the guest from before must still run", s)
	}
}

// TestResetToRest: after a reset, all vCPUs are parked with the registers that they have then, however busy the host is.
func TestResetToRest(t *testing.T) {
	vcpus, resets := 4, 60
	if testing.Short() { // emulated hosts
		vcpus, resets = 2, 10
	}
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: vcpus, Memory: 16 << 20, Cmdline: "busy quiet", Tick: slowTick})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitRounds(t, m, vcpus)
	snap, err := m.Save(nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := range resets {
		to := func() error { return m.ResetTo(context.Background(), snap) }
		if i%2 == 1 {
			to = func() error { return m.Reset(context.Background(), nil) }
		}
		if err := to(); err != nil {
			t.Fatal(err)
		}
		for _, v := range m.State().VCPUs {
			if v.RIP == 0 || i%2 == 0 && v.RIP != guest.GVA(snap.CPUs[v.ID].Regs.RIP) {
				t.Fatalf("reset %d: vCPU %d is %s at %#x, saved at %#x", i, v.ID, v.Activity, v.RIP, snap.CPUs[v.ID].Regs.RIP)
			}
		}
	}
}
