package machine

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stopBound is how long one stop of a busy world may take.
const stopBound = 2 * time.Second

// TestStopUnderLoad stops the world again and again, from several callers,
// while all vCPUs run, and checks that nothing moves meanwhile.
func TestStopUnderLoad(t *testing.T) {
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
					for range 50 {
						start := time.Now()
						err := m.Stop(func(w probe.World) error {
							if n := inside.Add(1); n != 1 {
								t.Errorf("%d stoppers at once", n)
							}
							for i := range vcpus {
								if rip := w.CPU(i).Regs.RIP; rip != tinyText {
									t.Errorf("vcpu %d stands at %#x", i, rip)
								}
							}
							for _, v := range m.vcpus {
								if !v.resting { // stable: the world is stopped
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
						if d := time.Since(start); d > stopBound {
							t.Errorf("a stop took %v", d)
						}
					}
				})
			}
			wg.Wait()
			if stops.Load() != 150 {
				t.Errorf("%d stops, want 150", stops.Load())
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
