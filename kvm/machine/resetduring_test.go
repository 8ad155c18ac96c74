package machine

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// TestResetDuringRequests resets a guest again and again of which a vCPU is being stepped: that is cut off wherever it is, also where it
// waits for its turn to stop the world, which the reset has.
func TestResetDuringRequests(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 3, Memory: 16 << 20, Cmdline: "busy quiet"})
	ctx, enough := context.WithCancel(patience.Context(t))
	defer enough()
	var stepped atomic.Int64
	done := make(chan error, 1)
	go func() {
		for ctx.Err() == nil {
			n, err := m.Step(ctx, 0, 50)
			stepped.Add(int64(n))
			switch {
			case err == nil:
			case errors.Is(err, ErrGuestReset), errors.Is(err, ErrNotStopped), errors.Is(err, context.Canceled):
				breathe()
			default:
				done <- err
				return
			}
		}
		done <- nil
	}()
	go func() { // others stop the world, too
		for ctx.Err() == nil {
			_ = m.Look(func(*Look) error { return nil })
		}
	}()
	for range 15 {
		if err := m.Reset(ctx, nil); err != nil {
			t.Fatal(err)
		}
		for was := stepped.Load(); stepped.Load() == was; breathe() {
			if ctx.Err() != nil {
				t.Fatalf("%d steps", was)
			}
		}
	}
	enough()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStepForLong steps a vCPU so often that it does not come to an end: others look at the guest meanwhile, and reset it.
func TestStepForLong(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Memory: 16 << 20, Cmdline: "busy quiet"})
	ctx := patience.Context(t)
	type result struct {
		n   int
		err error
	}
	done := make(chan result, 1)
	go func() {
		n, err := m.Step(ctx, 1, 1<<40)
		done <- result{n, err}
	}()
	rip := func() (r probe.Regs) {
		t.Helper()
		if err := m.Look(func(l *Look) (err error) {
			r, _, err = l.GeneralRegisters(1)
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return r
	}
	for first, moved := rip(), 0; moved < 5; breathe() {
		if ctx.Err() != nil {
			t.Fatalf("seen in %d places", moved)
		}
		if r := rip(); r != first {
			first, moved = r, moved+1
		}
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.Reset(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if r := <-done; r.n == 0 || !errors.Is(r.err, ErrGuestReset) {
		t.Errorf("%d steps: %v", r.n, r.err)
	}
}

// TestResetToRegisters: a guest that goes back to where user code was interrupted has all registers of then, although the last
// exception of the vCPU was an int3, and its last exit before it went back a kick.
func TestResetToRegisters(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Memory: 16 << 20, Cmdline: "busy quiet", Probe: probe.Options{OptimizeDelay: -1}})
	var hits atomic.Int64
	k := &probe.Kprobe{Symbol: "user_hot", Pre: func(*probe.Context) int { hits.Add(1); return 0 }}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	look := func() (out [2]probe.Regs) {
		t.Helper()
		if err := m.Look(func(l *Look) error {
			for cpu := range out {
				r, _, err := l.GeneralRegisters(cpu)
				if err != nil {
					return err
				}
				out[cpu] = r
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	ctx := patience.Context(t)
	resume := func() {
		t.Helper()
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		for n := hits.Load(); hits.Load() < n+3; breathe() {
			if ctx.Err() != nil {
				t.Fatalf("%d hits", hits.Load())
			}
		}
		if err := m.Pause(); err != nil {
			t.Fatal(err)
		}
	}
	rounds := 30
	if testing.Short() {
		rounds = 6
	}
	for range rounds {
		resume()
		s := save(t, m)
		want := look()
		for range 3 {
			resume()
			if err := m.ResetTo(ctx, s); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, look()); diff != "" {
				t.Fatalf("registers (-saved +reset):\n%s", diff)
			}
		}
	}
}

// duringReload is a log that calls f at what the engine reports about its probes at the end of a reset.
type duringReload struct {
	slog.Handler
	f func()
}

func (d duringReload) Enabled(context.Context, slog.Level) bool { return true }

func (d duringReload) Handle(ctx context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "probe is gone") {
		d.f()
	}
	return d.Handler.Handle(ctx, r)
}

// TestStepInReset asks for a step while the engine still puts its probes into a guest that was reset.
func TestStepInReset(t *testing.T) {
	var m *Machine
	asked := false
	log := slog.New(duringReload{slog.DiscardHandler, func() {
		asked = true
		if n, err := m.Step(patience.Context(t), 0, 1); n != 0 || !errors.Is(err, ErrGuestReset) {
			t.Errorf("%d steps, %v", n, err)
		}
	}})
	code, fn := countingGuest(1 << 30)
	m = newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Log: log})
	if err := m.Engine().Register(&probe.Kprobe{Addr: address(t, m, "fn"), Pre: func(*probe.Context) int { return 0 }}); err != nil {
		t.Fatal(err)
	}
	if err := m.Reset(patience.Context(t), tinyGuest(t, spin, nil)); err != nil || !asked {
		t.Fatalf("reset: %v; a probe is gone: %v", err, asked)
	}
	if n, err := m.Step(patience.Context(t), 0, 1); n != 1 || err != nil {
		t.Errorf("after the reset: %d steps, %v", n, err)
	}
}
