package machine

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/probe"
)

func TestMain(m *testing.M) {
	kvmtest.Examples()
	goleak.VerifyTestMain(m)
}

// TestStopUnderLoad stops the world again and again, from several callers,
// while all vCPUs run, and checks that nothing moves meanwhile.
func TestStopUnderLoad(t *testing.T) {
	each := 50
	if testing.Short() { // emulated hosts with one or two CPUs
		each = 10
	}
	for _, vcpus := range []int{1, 2, 4, 8} {
		t.Run("", func(t *testing.T) {
			m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), VCPUs: vcpus, Memory: 16 << 20})
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
			var inside, stops atomic.Int32
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					for n := range each {
						if n%5 == 0 {
							awaitBusy(m)
						}
						err := m.Stop(func(w probe.World) error {
							if n := inside.Add(1); n != 1 {
								t.Errorf("%d stoppers at once", n)
							}
							for i := range vcpus {
								if rip := w.CPU(i).Regs.RIP; rip != tinyText && rip != tinyText+2 { // the two instructions of spin
									t.Errorf("vcpu %d stands at %#x", i, rip)
								}
							}
							for _, v := range m.vcpus {
								if !v.where.rests() { // stable: the world is stopped
									t.Errorf("vcpu %d is not resting", v.id)
								}
							}
							inside.Add(-1)
							stops.Add(1)
							return nil
						})
						if err != nil {
							t.Error(err)
						}
					}
				})
			}
			wg.Wait()
			if want := int32(3 * each); stops.Load() != want {
				t.Errorf("%d stops, want %d", stops.Load(), want)
			}
		})
	}
}

func TestStopReturnsWhatItsFunctionReturns(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20})
	want := errors.New("mine")
	if err := m.Stop(func(probe.World) error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
	// A panic of the function must not leave the world stopped.
	func() {
		defer func() { _ = recover() }()
		_ = m.Stop(func(probe.World) error { panic("x") })
	}()
	if err := m.Stop(func(probe.World) error { return nil }); err != nil {
		t.Error(err)
	}
}

func TestPauseResume(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), VCPUs: 2, Memory: 16 << 20})
	phase := func(want Phase, activity VCPUActivity) {
		t.Helper()
		s := m.State()
		if s.Phase != want {
			t.Errorf("phase %s, want %s", s.Phase, want)
		}
		for _, v := range s.VCPUs {
			if v.Activity != activity {
				t.Errorf("vcpu %d is %s, want %s", v.ID, v.Activity, activity)
			}
		}
	}
	phase(PhaseCreated, VCPUParked)
	for range 20 {
		changed := m.Changed()
		for range 2 { // the second call has nothing to do
			if err := m.Resume(); err != nil {
				t.Fatal(err)
			}
		}
		<-changed
		if s := m.State(); s.Phase != PhaseRunning {
			t.Errorf("phase %s, want running", s.Phase)
		}
		for range 2 {
			if err := m.Pause(); err != nil {
				t.Fatal(err)
			}
		}
		phase(PhasePaused, VCPUParked)
	}
}

// TestHandlerThatDoesNotReturn: everything that waits for the vCPU gives up in
// time and says which it was, and what it held is freed when it comes back.
func TestHandlerThatDoesNotReturn(t *testing.T) {
	code, fn := countingGuest(1000)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	m.mu.Lock()
	m.stopTimeout = 50 * time.Millisecond
	m.mu.Unlock()
	entered, leave := make(chan struct{}), make(chan struct{})
	k := &probe.Kprobe{Symbol: "fn", Pre: func(*probe.Context) int {
		close(entered)
		<-leave
		return 0
	}}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	<-entered
	var timeout *StopTimeoutError
	if err := m.Stop(doNothing); !errors.As(err, &timeout) || timeout.CPU != 0 {
		t.Errorf("stop: %v, want a timeout of vcpu 0", err)
	}
	if err := m.Engine().Unregister(k); !errors.As(err, &timeout) {
		t.Errorf("unregister: %v", err)
	}
	if err := m.Pause(); !errors.As(err, &timeout) {
		t.Errorf("pause: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if err := m.Close(ctx); !errors.As(err, &timeout) {
		t.Errorf("close: %v", err)
	}
	if err := m.Close(context.Background()); err != nil {
		t.Errorf("second close: %v", err)
	}
	close(leave)
	for {
		m.memory.RLock()
		freed := m.freed
		m.memory.RUnlock()
		if freed {
			break
		}
		breathe()
	}
}

// TestCallsFromAHandler: what would wait for the handler's own vCPU is refused.
func TestCallsFromAHandler(t *testing.T) {
	code, fn := countingGuest(1)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1})
	ctx := context.Background()
	refused := make(map[string]error)
	k := &probe.Kprobe{Symbol: "fn"}
	k.Pre = func(*probe.Context) int {
		refused["stop"] = m.Stop(doNothing)
		refused["pause"] = m.Pause()
		refused["resume"] = m.Resume()
		refused["reset"] = m.Reset(ctx, nil)
		refused["close"] = m.Close(ctx)
		refused["register"] = m.Engine().Register(&probe.Kprobe{Symbol: "fn"})
		_, refused["call"] = m.Call(ctx, guest.GVA(fn.addr))
		return 0
	}
	if err := m.Engine().Register(k); err != nil {
		t.Fatal(err)
	}
	if s := run(t, m); s.Phase != PhaseExited || s.ExitCode != wantCount(1) {
		t.Errorf("state %+v", s)
	}
	if len(refused) != 7 {
		t.Errorf("%d refusals", len(refused))
	}
	for what, err := range refused {
		if !errors.Is(err, probe.ErrInHandler) {
			t.Errorf("%s from a handler: %v", what, err)
		}
	}
}

func TestAfterClose(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20})
	changed := m.Changed()
	closeMachine(t, m)
	<-changed
	ctx := context.Background()
	for what, err := range map[string]error{
		"resume": m.Resume(), "pause": m.Pause(), "reset": m.Reset(ctx, nil), "stop": m.Stop(doNothing), "peek": m.Peek(tinyText, make([]byte, 1)),
	} {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("%s after close: %v", what, err)
		}
	}
	if _, err := m.Call(ctx, tinyText); err == nil {
		t.Error("call after close")
	}
	if s, err := m.Wait(ctx); err != nil || s.Phase != PhaseClosed {
		t.Errorf("wait: %+v, %v", s, err)
	}
	_ = m.Stats()
}
