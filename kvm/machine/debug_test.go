package machine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// loop counts in RAX: stepped is where it is at each of its instructions.
var loop = []byte{
	0x31, 0xc0, // 00 xor %eax,%eax
	0x83, 0xc0, 0x01, // 02 add $1,%eax
	0x50,                         // 05 push %rax
	0x5b,                         // 06 pop %rbx
	0xe8, 0x02, 0x00, 0x00, 0x00, // 07 call 0e
	0xeb, 0xf4, // 0c jmp 02
	0x48, 0x8d, 0x48, 0x01, // 0e lea 1(%rax),%rcx
	0xf3, 0x90, // 12 pause
	0xc3, // 14 ret
}

var loopSteps = []guest.GVA{0x02, 0x05, 0x06, 0x07, 0x0e, 0x12, 0x14, 0x0c}

// cannotStop reports whether the host serves no probes on a guest without a stub, and wants that refused; other
// errors are fatal.
func cannotStop(t *testing.T, m *Machine, err error) bool {
	t.Helper()
	cannot := m.Host().NoBreakReason(false, false) != ""
	var e *probe.Error
	if err == nil && !cannot || cannot && errors.As(err, &e) && e.Code == probe.CodeHostCannot {
		return cannot
	}
	t.Fatal(err)
	return true
}

// awaitStops waits until that many vCPUs are stopped.
func awaitStops(t *testing.T, m *Machine, n int) []Stop {
	t.Helper()
	ctx := patience.Context(t)
	for {
		changed := m.Changed()
		if s := m.Stops(); len(s) >= n {
			return s
		}
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("%d vCPUs are stopped, want %d: %+v", len(m.Stops()), n, m.State())
		}
	}
}

// registers returns those of a vCPU.
func registers(t *testing.T, m *Machine, cpu int) (r Registers) {
	t.Helper()
	err := m.Look(func(l *Look) (err error) {
		r, err = l.Registers(cpu)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestStopAndStep stops a vCPU at a hit, steps it around its loop with probes on each instruction and without,
// takes the probe off while it stands there, and lets it go on: each instruction is executed once, and hit once.
func TestStopAndStep(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, loop, nil, tinySym{"loop", tinyText, uint64(len(loop))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	e, ctx := m.Engine(), patience.Context(t)
	var hits [8]atomic.Uint64
	stopAt := &probe.Kprobe{Name: "stop", Addr: tinyText + 0x0e, Pre: func(c *probe.Context) int { c.Stop(); return 0 }}
	if cannotStop(t, m, e.Register(stopAt)) {
		return
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	if s := awaitStops(t, m, 1); s[0].CPU != 0 || s[0].RIP != tinyText+0x0e || s[0].By != nil || s[0].All || s[0].Seq != 1 || s[0].At.IsZero() {
		t.Fatalf("stopped at %+v", s)
	}
	if st := m.State(); st.Phase != PhaseRunning || st.VCPUs[0].Activity != VCPUStopped || st.VCPUs[0].RIP != tinyText+0x0e {
		t.Errorf("%+v", st)
	}
	r := registers(t, m, 0)
	if r.Regs.RAX != 1 || r.Regs.RBX != 1 || r.Regs.RCX == 2 || r.Live != tinyText+0x0e {
		t.Errorf("%+v", r.Regs)
	}
	at, rax := 4, uint64(1) // in loopSteps
	step := func(n int, why string) {
		t.Helper()
		for range n {
			if did, err := m.Step(ctx, 0, 1); did != 1 || err != nil {
				t.Fatalf("%s: %d, %v", why, did, err)
			}
			at = (at + 1) % len(loopSteps)
			if loopSteps[at] == 0x05 {
				rax++
			}
			r := registers(t, m, 0)
			if r.Live != tinyText+loopSteps[at] || r.Regs.RIP != uint64(r.Live) || r.Regs.RAX != rax || r.Activity != VCPUStopped {
				t.Fatalf("%s: at %v, %v, RAX %d; want +%#x, %d", why, r.Live, r.Activity, r.Regs.RAX, loopSteps[at], rax)
			}
		}
	}
	step(20, "with one probe")
	var all []probe.Probe
	for i, off := range loopSteps {
		k := &probe.Kprobe{Name: "all", Addr: tinyText + off, Pre: func(*probe.Context) int { hits[i].Add(1); return 0 }}
		if i%2 == 0 {
			k.Post = func(*probe.Context) { hits[i].Add(1 << 32) }
		}
		all = append(all, k)
	}
	if err := e.Register(all...); err != nil {
		t.Fatal(err)
	}
	begin := at
	step(8*5, "with probes on all")
	for i := range loopSteps {
		want := uint64(5)
		if i%2 == 0 {
			want |= 5 << 32
		}
		if got := hits[i].Load(); got != want {
			t.Errorf("+%#x: %#x hits and post handlers, want %#x; begun at +%#x", loopSteps[i], got, want, loopSteps[begin])
		}
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	step(8*3+4, "with jumps")
	for _, p := range all {
		if err := e.Unregister(p.(*probe.Kprobe)); err != nil {
			t.Fatal(err)
		}
	}
	step(9, "without")
	if did, err := m.Step(ctx, 0, 1000); did != 1000 || err != nil {
		t.Fatal(did, err)
	}

	// It goes on to the next hit, which comes once for each round.
	before, _, _ := e.Stats(stopAt)
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	s := awaitStops(t, m, 1)
	r = registers(t, m, 0)
	rax = r.Regs.RAX
	for range 5 {
		if err := m.Continue(0); err != nil {
			t.Fatal(err)
		}
		s = awaitStops(t, m, 1)
		rax++
		if r = registers(t, m, 0); r.Regs.RAX != rax || s[0].RIP != tinyText+0x0e {
			t.Fatalf("at %+v, RAX %d, want %d", s, r.Regs.RAX, rax)
		}
	}
	after, _, _ := e.Stats(stopAt)
	if n := after.Hits - before.Hits; n < 5 || n > 6 {
		t.Errorf("%d hits", n)
	}
	// Detached while it stands there, with the guest paused and resumed as a whole.
	if err := e.Unregister(stopAt); err != nil {
		t.Fatal(err)
	}
	if err := m.Pause(); err != nil {
		t.Fatal(err)
	}
	if did, err := m.Step(ctx, 0, 1); did != 1 || err != nil {
		t.Fatal(did, err)
	}
	if r = registers(t, m, 0); r.Live != tinyText+0x12 || r.Regs.RCX != rax+1 {
		t.Errorf("at %v, RCX %d", r.Live, r.Regs.RCX)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Step(ctx, 0, 1); !errors.Is(err, ErrNotStopped) {
		t.Error(err)
	}
	if err := m.Continue(0); !errors.Is(err, ErrNotStopped) {
		t.Error(err)
	}
	if _, err := m.Step(ctx, 1, 1); !errors.Is(err, ErrNoVCPU) {
		t.Error(err)
	}
	// Reset while it is stopped.
	if err := e.Register(stopAt); err == nil {
		awaitStops(t, m, 1)
	} else {
		t.Error(err)
	}
	if err := m.Reset(ctx, nil); err != nil {
		t.Fatal(err)
	}
	if s := m.Stops(); len(s) != 0 {
		t.Errorf("%+v", s)
	}
	if did, err := m.Step(ctx, 0, 3); did != 3 || err != nil {
		t.Error(did, err)
	}
	if r = registers(t, m, 0); r.Live != tinyText+0x06 || r.Regs.RAX != 1 {
		t.Errorf("at %v, RAX %d", r.Live, r.Regs.RAX)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitStops(t, m, 1)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if did, err := m.Step(ended, 0, 1); did != 0 || !errors.Is(err, context.Canceled) {
		t.Error(did, err)
	}
}

// TestGoOnInAJump: a vCPU that a step has led into what a jump displaces goes on in the copy there, without the
// trap that the guest would come to.
func TestGoOnInAJump(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, loop, nil, tinySym{"loop", tinyText, uint64(len(loop))}), VCPUs: 1, Memory: 16 << 20, Tick: -1})
	e, ctx := m.Engine(), patience.Context(t)
	stopAt := &probe.Kprobe{Name: "stop", Addr: tinyText + 0x0e, Pre: func(c *probe.Context) int { c.Stop(); return 0 }}
	if cannotStop(t, m, e.Register(stopAt)) {
		return
	}
	if err := e.Optimize(); err != nil {
		t.Fatal(err)
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitStops(t, m, 1)
	for range 10 {
		if did, err := m.Step(ctx, 0, 1); did != 1 || err != nil {
			t.Fatal(did, err)
		}
		before := m.Stats()
		if err := m.Continue(0); err != nil {
			t.Fatal(err)
		}
		if s := awaitStops(t, m, 1); s[0].RIP != tinyText+0x0e {
			t.Fatalf("%+v", s)
		}
		if n := m.Stats().VCPUs[0].TrapExits - before.VCPUs[0].TrapExits; n != 1 {
			t.Errorf("%d traps to the next stop, want 1", n)
		}
	}
}

// TestTwoStops: two vCPUs are stopped at one time, are stepped one by one, and one goes on while the other does not;
// a stop of all takes the other along.
func TestTwoStops(t *testing.T) {
	m := newMachine(t, Config{Image: tinyGuest(t, loop, nil, tinySym{"loop", tinyText, uint64(len(loop))}), VCPUs: 2, Memory: 16 << 20, Tick: -1})
	e, ctx := m.Engine(), patience.Context(t)
	var all atomic.Bool
	p := &probe.Kprobe{Name: "stop", Addr: tinyText + 0x0e, Pre: func(c *probe.Context) int {
		c.Stop()
		if all.Load() {
			m.StopAll(c)
		}
		return 0
	}}
	if cannotStop(t, m, e.Register(p)) {
		return
	}
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitStops(t, m, 2)
	for i := range 2 * len(loopSteps) {
		if did, err := m.Step(ctx, i%2, 1+i%3); err != nil || did != 1+i%3 {
			t.Fatal(did, err)
		}
	}
	if err := m.Continue(1); err != nil {
		t.Fatal(err)
	}
	awaitStops(t, m, 2)
	one := registers(t, m, 0)
	for range 20 {
		if err := m.Continue(1); err != nil {
			t.Fatal(err)
		}
		awaitStops(t, m, 2)
	}
	if r := registers(t, m, 0); r.Regs != one.Regs {
		t.Errorf("the other has moved: %+v, was %+v", r.Regs, one.Regs)
	}
	all.Store(true)
	for range 10 {
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		changed := m.Changed()
		for m.State().Phase != PhasePaused {
			select {
			case <-changed:
				changed = m.Changed()
			case <-ctx.Done():
				t.Fatalf("%+v", m.State())
			}
		}
	}
	stats, _, _ := e.Stats(p)
	if stats.Missed != 0 || stats.Hits < 30 {
		t.Errorf("%+v", stats)
	}
}
