package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// taken has a set for each run state: the states that have followed it in this test binary.
var taken [numRunStates]atomic.Uint32

// trial is set while TestIllegalTransition makes transitions, of a vCPU without a thread.
var trial atomic.Bool

// All tests of this package end at an illegal transition, as by a panic of their own: Machine.mu is held, and a panic here
// would wait for it in deferred functions.
func init() {
	onRunStep = func(from, to runState) {
		switch legal := runSteps[from].has(to); {
		case !legal && trial.Load():
			panic("illegal")
		case !legal:
			fmt.Fprintf(os.Stderr, "illegal transition of a vCPU's run state: from %v to %v\n%s", from, to, debug.Stack())
			os.Exit(2)
		}
		taken[from].Or(1 << to)
	}
}

// TestIllegalTransition checks the check: what is not in runSteps ends a test, and what is there does not.
func TestIllegalTransition(t *testing.T) {
	m, err := newEmpty(Config{Image: tinyGuest(t, spin, nil)})
	if err != nil {
		t.Fatal(err)
	}
	trial.Store(true)
	defer trial.Store(false)
	for from := range numRunStates {
		for to := range numRunStates {
			failed := func() (failed bool) {
				defer func() { failed = recover() != nil }()
				v := newVCPU(m, 0)
				v.where = from
				v.setState(to)
				return false
			}()
			if legal := runSteps[from].has(to); failed == legal {
				t.Errorf("from %v to %v: failed %v, legal %v", from, to, failed, legal)
			}
		}
	}
}

// TestRunStateTable checks what the rest of the package takes for granted of the table.
func TestRunStateTable(t *testing.T) {
	var reached runStates
	for from := range numRunStates {
		reached |= runSteps[from]
		if !slices.Contains(runStateNames[:], from.String()) || from.String() == "" {
			t.Errorf("state %d has the name %q", from, from)
		}
		if runSteps[from] == 0 {
			t.Errorf("nothing follows %v", from)
		}
		for to := range numRunStates {
			if !runSteps[from].has(to) {
				continue
			}
			// Who stops the world has been in the queue, where it counts as resting: two who stop would wait for each other.
			if to.stops() && !(from.rests() && from.midExit()) {
				t.Errorf("from %v to %v: not out of the queue", from, to)
			}
			// What is in the middle of an exit comes between two exits only through that exit's end.
			if from.midExit() && to.between() && !from.between() {
				t.Errorf("from %v to %v: the exit has not ended", from, to)
			}
			// A thread that is to end does not run the guest.
			if from == stateCut && !to.rests() {
				t.Errorf("from %v to %v", from, to)
			}
		}
		if from.stops() && from.rests() {
			t.Errorf("%v stops the world, and rests", from)
		}
	}
	if all := runStates(1<<numRunStates - 1); reached != all {
		t.Errorf("states %b of %b are reached", reached, all)
	}
}

// TestStepsWhileTidied: a vCPU that has executed instructions for a debugger is told to look at its place again before its thread has come to where it rests.
func TestStepsWhileTidied(t *testing.T) {
	code, fn := countingGuest(1 << 30)
	m := newMachine(t, Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}})
	ctx := patience.Context(t)
	ended, stopped := make(chan error, 1), make(chan struct{})
	go func() {
		for {
			select {
			case <-stopped:
				ended <- nil
				return
			default:
			}
			if err := m.runTidied(func() error { return nil }); err != nil {
				ended <- err
				return
			}
		}
	}()
	for k := range 2000 {
		if did, err := m.Step(ctx, 0, 1); did != 1 || err != nil {
			t.Fatalf("step %d: %d, %v", k, did, err)
		}
	}
	close(stopped)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// TestRunStates drives vCPUs through the life of a guest, and checks which transitions that takes.
func TestRunStates(t *testing.T) {
	type step struct{ from, to runState }
	wants := func(t *testing.T, what string, do func(), steps ...step) {
		t.Helper()
		for i := range taken {
			taken[i].Store(0)
		}
		do()
		for _, s := range steps {
			for ctx := patience.Context(t); !runStates(taken[s.from].Load()).has(s.to); breathe() {
				if ctx.Err() != nil {
					t.Fatalf("%s: no transition from %v to %v", what, s.from, s.to)
				}
			}
		}
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	code, fn := countingGuest(1 << 30)
	var m *Machine
	config := Config{Image: tinyGuest(t, code, nil, fn), Memory: 16 << 20, Tick: -1, Probe: probe.Options{OptimizeDelay: -1}}
	wants(t, "boot", func() {
		m = newMachine(t, config)
		must(m.Pause()) // all have come to rest then
		must(m.Resume())
	}, step{stateOff, stateRunning}, step{stateRunning, stateParked}, step{stateParked, stateRunning})

	stop := &probe.Kprobe{Symbol: "fn", Pre: func(c *probe.Context) int { c.Stop(); return 0 }}
	wants(t, "stop by a handler, and step", func() {
		must(m.Engine().Register(stop))
		awaitActivity(t, m, VCPUStopped)
		did, err := m.Step(patience.Context(t), 0, 3)
		if did != 3 || err != nil {
			t.Fatalf("%d steps: %v", did, err)
		}
		must(m.Engine().Unregister(stop))
		must(m.Continue(0))
	}, step{stateRunning, stateSettled}, step{stateSettled, stateRunning})

	wants(t, "stop of the world by a vCPU", func() {
		done := make(chan error, 1)
		callOnVCPU(t, m, func() { done <- m.stopWorld(m.vcpus[0], func() error { return nil }) })
		must(<-done)
	}, step{stateRunning, stateQueued}, step{stateQueued, stateStops}, step{stateStops, stateRunning})
	wants(t, "pause", func() {
		must(m.Pause())
		if at := runStateOf(m.vcpus[0]); at != stateSettled {
			t.Errorf("a vCPU of a paused guest is %v", at)
		}
	}, step{stateParked, stateLeaving}, step{stateLeaving, stateSettled})
	wants(t, "reset", func() { must(m.Reset(context.Background(), nil)) }, step{stateSettled, stateRunning}, step{stateRunning, stateOff})
	wants(t, "save", func() {
		must(m.Resume())
		must(m.Pause())
		must(m.runTidied(func() error { return nil }))
	}, step{stateSettled, stateParked}, step{stateParked, stateLeaving})
}

// runStateOf returns a vCPU's run state.
func runStateOf(v *vcpu) runState {
	v.m.mu.Lock()
	defer v.m.mu.Unlock()
	return v.where
}

// callOnVCPU has f called on the thread of vCPU 0, which runs, between two exits. It does not wait for that.
func callOnVCPU(t *testing.T, m *Machine, f func()) {
	t.Helper()
	for ctx := patience.Context(t); ; breathe() {
		if asked, _ := m.Sample(func(int, probe.State) { f() }); asked == 1 {
			return
		}
		if ctx.Err() != nil {
			t.Fatalf("vCPU 0 is %v", runStateOf(m.vcpus[0]))
		}
	}
}

// TestCutOff has a vCPU's thread end while it waits for its turn to stop the world. The thread loses its place, and does not run the guest
// on its way to the end.
func TestCutOff(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20, Tick: -1})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	v := m.vcpus[0]
	m.mu.Lock()
	m.stoppers.join() // there is another one in the queue
	m.mu.Unlock()
	got := make(chan error, 1)
	callOnVCPU(t, m, func() { got <- m.stopWorld(v, func() error { return nil }) })
	for ctx := patience.Context(t); runStateOf(v) != stateQueued; breathe() {
		if ctx.Err() != nil {
			t.Fatalf("the vCPU is %v", runStateOf(v))
		}
	}
	m.life.Lock()
	err := m.endThreads(m.stopTimeout)
	m.life.Unlock()
	if err != nil {
		t.Error(err)
	}
	if err := <-got; !errors.Is(err, ErrGuestReset) {
		t.Errorf("cut off: %v", err)
	}
	if at := runStateOf(v); at != stateOff {
		t.Errorf("the vCPU is %v", at)
	}
	m.mu.Lock() // the other one is done
	m.stoppers.leave()
	m.mu.Unlock()
}

// TestPauseWhileGuestRunsNested has a pause come while a vCPU runs the guest from inside of something else, as it does to leave the
// engine's code before an interrupt. The kick is not lost: a guest without exits of its own would not come back.
func TestPauseWhileGuestRunsNested(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20, Tick: -1})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	v := m.vcpus[0]
	paused, nested := make(chan error, 1), make(chan error, 1)
	ctx := patience.Context(t)
	callOnVCPU(t, m, func() { // between proceed and KVM_RUN
		go func() { paused <- m.Pause() }()
		for !v.kvm.Kicked() && ctx.Err() == nil {
			breathe()
		}
		nested <- v.runNestedFor(time.Millisecond, func() bool { return false }, nil)
	})
	if err := <-nested; !errors.Is(err, errElsewhere) {
		t.Errorf("the nested run: %v", err)
	}
	if err := <-paused; err != nil {
		t.Error(err)
	}
}

// TestPauseWaitsForLeaving has a vCPU in the queue to stop the world because it leaves the engine's code. A stop of the world
// takes that for rest, and a pause does not: the vCPU is to run a little more.
func TestPauseWaitsForLeaving(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, spin, nil), Memory: 16 << 20, Tick: -1})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	v := m.vcpus[0]
	states := func(all ...runState) {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, s := range all {
			v.setState(s)
		}
	}
	m.mu.Lock()
	m.stoppers.join() // there is another one in the queue
	m.mu.Unlock()
	done := make(chan error, 1)
	callOnVCPU(t, m, func() {
		states(stateParked, stateLeaving)
		err := m.stopWorld(v, func() error { return nil })
		states(stateSettled, stateRunning)
		done <- err
	})
	for ctx := patience.Context(t); runStateOf(v) != stateLeavingQueued; breathe() {
		if ctx.Err() != nil {
			t.Fatalf("the vCPU is %v", runStateOf(v))
		}
	}
	m.mu.Lock()
	stop, pause := m.awaitRest(nil, time.Millisecond, false), m.awaitRest(nil, time.Millisecond, true)
	m.stoppers.leave() // the other one is done
	m.mu.Unlock()
	var late *StopTimeoutError
	if stop != nil || !errors.As(pause, &late) {
		t.Errorf("a stop: %v; a pause: %v", stop, pause)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := m.Pause(); err != nil {
		t.Error(err)
	}
}
