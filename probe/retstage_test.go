package probe_test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/internal/testing/probetest"
	"github.com/guestprobe/guestprobe/probe"
)

// staged is a fake guest with kretprobes that run in it.
type staged struct {
	*testing.T
	f *probetest.Fake
	e *probe.Engine
}

func newStaged(t *testing.T, tasks bool) *staged {
	t.Helper()
	f, err := probetest.NewFake(probetest.FakeOptions{Profile: tasks, Probe: probe.Options{OptimizeDelay: -1}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return &staged{t, f, f.Engine()}
}

// setStack makes the stack of task i that of the task with that number.
func (s *staged) setStack(i, pid uint64) {
	s.Helper()
	if _, err := s.f.Call(0, s.addr("co_own"), i, pid); err != nil {
		s.Fatal(err)
	}
}

// begin has task i begin co_body, and resume end it.
func (s *staged) begin(i uint64) {
	s.Helper()
	s.call("co_begin", 1, i, 10*i)
}

func (s *staged) resume(i uint64) {
	s.Helper()
	s.call("co_resume", 100+10*i, i)
}

// newReturnStage is a stage that does nothing.
func newReturnStage(code ...byte) *probe.Stage {
	return &probe.Stage{Code: append(code, 0xc3), NoStrings: true, Stack: 8}
}

// registerOn makes a kretprobe; what its host's handlers see goes to returns.
func (s *staged) registerOn(f string, max int, returns *int) *probe.Kretprobe {
	return &probe.Kretprobe{Kprobe: probe.Kprobe{Name: f, Symbol: f}, MaxActive: max, ReturnStage: newReturnStage(),
		Return: func(*probe.Context) { *returns++ }}
}

// register puts kretprobes on, with their jumps if in is set.
func (s *staged) register(in bool, rs ...*probe.Kretprobe) {
	s.Helper()
	if err := s.e.Register(probe.Probes(rs)...); err != nil {
		s.Fatal(err)
	}
	if !in {
		return
	}
	if err := s.e.Optimize(); err != nil {
		s.Fatal(err)
	}
	for _, r := range rs {
		if i, _ := s.e.Info(&r.Kprobe); !i.InGuest {
			s.Fatalf("%s is not in the guest: %+v %s", r.Name, i.Unoptimized, i.NoStage)
		}
	}
}

func (s *staged) addr(f string) guest.GVA {
	s.Helper()
	sym, err := s.f.Symbol(f)
	if err != nil {
		s.Fatal(err)
	}
	return sym.Addr
}

// call calls a function and checks its result.
func (s *staged) call(f string, want uint64, args ...uint64) {
	s.Helper()
	got, err := s.f.Call(0, s.addr(f), args...)
	if err != nil || got != want {
		s.Fatalf("%s%v = %d, %v, want %d", f, args, got, err, want)
	}
}

// counts checks the counts of r; they close.
func (s *staged) counts(r *probe.Kretprobe, handled, filtered, missed, returns, abandoned uint64, inUse int) {
	s.Helper()
	i, _ := s.e.Info(&r.Kprobe)
	x := i.Stats
	got := fmt.Sprint(x.Handled, x.Filtered, x.Missed, x.Returns, x.Abandoned, i.InUse)
	if want := fmt.Sprint(handled, filtered, missed, returns, abandoned, inUse); got != want || x.Hits != handled+filtered+missed {
		s.Errorf("%s: handled, filtered, missed, returns, abandoned, in use: %s, want %s; %d hits", r.Name, got, want, x.Hits)
	}
}

// checkQuiet checks that nothing since before has taken an exit.
func (s *staged) checkQuiet(before probe.EngineStats) {
	s.Helper()
	if now := s.e.Totals(-1); now != before {
		s.Errorf("exits: %+v, before %+v", now, before)
	}
}

// TestReturnStageRecursion: depth 10 with 3 instances gives 3 handled and 7
// missed, without an exit.
func TestReturnStageRecursion(t *testing.T) {
	for _, c := range []struct{ max, depth, handled uint64 }{
		{3, 10, 3}, {1, 10, 1}, {9, 10, 9}, {10, 10, 10}, {11, 10, 10}, {0, 10, 10}, {0, 11, 10},
	} {
		s := newStaged(t, false)
		returns := 0
		r := s.registerOn("recurse", int(c.max), &returns)
		s.register(true, r)
		before := s.e.Totals(-1)
		for range 3 {
			s.call("recurse", (c.depth-1)*c.depth/2, c.depth-1)
		}
		s.checkQuiet(before)
		s.counts(r, 3*c.handled, 0, 3*(c.depth-c.handled), 3*c.handled, 0, 0)
		if i, _ := s.e.Info(&r.Kprobe); i.HighWater != int(c.handled) || returns != 0 {
			t.Errorf("max %d: high water %d, %d returns on the host", c.max, i.HighWater, returns)
		}
	}
}

// TestReturnStageFilter: an entry stage that says so has the call not followed,
// and the instance is free again.
func TestReturnStageFilter(t *testing.T) {
	s := newStaged(t, false)
	returns := 0
	r := s.registerOn("recurse", 1, &returns)
	// mov 112(%rdi), %rax; and $1, %eax: odd arguments are not followed.
	r.Stage = newReturnStage(0x48, 0x8b, 0x47, 112, 0x83, 0xe0, 0x01)
	r.Stage.Reads = 1 << (112 / 8)
	s.register(true, r)
	s.call("recurse", 0, 0)
	s.counts(r, 1, 0, 0, 1, 0, 0)
	s.call("recurse", 1, 1) // 1 is not followed, 0 is
	s.counts(r, 2, 1, 0, 2, 0, 0)
	s.call("recurse", 3, 2) // 2 is, so there is no instance for the others
	s.counts(r, 3, 1, 2, 3, 0, 0)
}

// TestReturnStageTailCall: activations that share a place on the stack end
// together, in the guest, on the host, and mixed in both ways.
func TestReturnStageTailCall(t *testing.T) {
	for _, tc := range []struct{ first, second bool }{{true, true}, {true, false}, {false, true}} {
		t.Run(fmt.Sprintf("guest %v %v", tc.first, tc.second), func(t *testing.T) {
			s := newStaged(t, false)
			var na, nb int
			a, b := s.registerOn("tail_call", 2, &na), s.registerOn("tail_end", 2, &nb)
			if !tc.first {
				a.ReturnStage = nil
			}
			if !tc.second {
				b.ReturnStage = nil
			}
			home := guest.GVA(0)
			b.Return = func(c *probe.Context) {
				nb++
				if c.Ret != guest.GVA(c.Regs.RIP) || s.e.InSlot(c.Ret) {
					t.Errorf("returns to %v, RIP %#x", c.Ret, c.Regs.RIP)
				}
				home = c.Ret
			}
			s.register(false, a, b)
			if err := s.e.Optimize(); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				s.call("tail_call", 12, 10)
			}
			s.counts(a, 3, 0, 0, 3, 0, 0)
			s.counts(b, 3, 0, 0, 3, 0, 0)
			if !tc.first && na != 3 || !tc.second && (nb != 3 || home == 0) {
				t.Errorf("%d and %d return handlers", na, nb)
			}
		})
	}
	s := newStaged(t, false)
	n := 0
	l := s.registerOn("tail_loop", 5, &n)
	s.register(true, l)
	s.call("tail_loop", 0, 7)
	s.counts(l, 5, 0, 2, 5, 0, 0)
}

// TestReturnStageSeveral: several kretprobes and kprobes on one function all run
// in the guest.
func TestReturnStageSeveral(t *testing.T) {
	s := newStaged(t, false)
	n := 0
	a, b := s.registerOn("recurse", 20, &n), s.registerOn("recurse", 2, &n)
	s.register(false, a, b)
	if err := s.e.Optimize(); err != nil {
		t.Fatal(err)
	}
	before := s.e.Totals(-1)
	s.call("recurse", 10, 4)
	s.checkQuiet(before)
	s.counts(a, 5, 0, 0, 5, 0, 0)
	s.counts(b, 2, 0, 3, 2, 0, 0)
	// A third one that needs the host takes both there.
	c := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "recurse"}, Return: func(*probe.Context) {}}
	s.register(false, c)
	s.call("recurse", 10, 4)
	s.counts(a, 10, 0, 0, 10, 0, 0)
	s.counts(b, 4, 0, 6, 4, 0, 0)
	s.counts(c, 5, 0, 0, 5, 0, 0)
	// Their entries were at the call; the returns are where the code is now.
	if n != 0 {
		t.Errorf("%d return handlers on the host", n)
	}
}

// TestReturnStageLongJump: activations that are jumped out of are found out by
// Reclaim once their stack was used again, and not before.
func TestReturnStageLongJump(t *testing.T) {
	s := newStaged(t, false)
	n := 0
	deep, over := s.registerOn("jump_deep", 4, &n), s.registerOn("jump_over", 1, &n)
	s.register(true, deep, over)
	before := s.e.Totals(-1)
	s.call("jump_over", 77, 4)
	s.counts(deep, 4, 0, 0, 0, 0, 4)
	if err := s.e.Reclaim(); err != nil {
		t.Fatal(err)
	}
	s.call("jump_over", 77, 4) // the same places again: live ones and abandoned ones
	s.call("fill_stack", 0, 0)
	if i, _ := s.e.Info(&deep.Kprobe); i.InUse != 4 || !s.e.Undecided() {
		t.Errorf("%d in use, undecided %v", i.InUse, s.e.Undecided())
	}
	if err := s.e.Reclaim(); err != nil {
		t.Fatal(err)
	}
	if s.e.Undecided() {
		t.Error("undecided behind Reclaim")
	}
	i, _ := s.e.Info(&deep.Kprobe)
	if x := i.Stats; i.InUse != 0 || x.Hits != 8 || x.Handled+x.Missed != 8 || x.Handled != x.Abandoned || x.Returns != 0 {
		t.Errorf("%d in use, %+v", i.InUse, x)
	}
	s.counts(over, 2, 0, 0, 2, 0, 0)
	s.checkQuiet(before)
}

// TestReturnStageOutstanding: a call under way returns correctly if the site moves to
// the host or back during the call, or the probe is unregistered; the limit is shared
// by both.
func TestReturnStageOutstanding(t *testing.T) {
	for _, change := range []string{"host", "unregister", "disable", "again"} {
		t.Run(change, func(t *testing.T) {
			s := newStaged(t, true)
			for i := range uint64(4) {
				s.setStack(i, 100+i)
			}
			n := 0
			r := s.registerOn("co_body", 2, &n)
			s.register(true, r)
			do := func(err error) {
				t.Helper()
				if err != nil {
					t.Fatal(err)
				}
			}
			s.begin(0)
			s.counts(r, 1, 0, 0, 0, 0, 1)
			before := s.e.Totals(-1)
			switch change {
			case "host":
				do(s.e.SetOptimization(false))
				s.begin(1)
				s.counts(r, 2, 0, 0, 0, 0, 2)
				s.begin(2)
				s.counts(r, 2, 0, 1, 0, 0, 2)
				do(s.e.SetOptimization(true))
				do(s.e.Optimize())
				s.begin(3)
				s.counts(r, 2, 0, 2, 0, 0, 2) // one begun on the host, one in the guest
				s.resume(1)
				s.counts(r, 2, 0, 2, 1, 0, 1)
				s.resume(0)
				s.counts(r, 2, 0, 2, 2, 0, 0)
				if n != 0 { // regardless of where the call began
					t.Errorf("%d return handlers on the host", n)
				}
				s.begin(0)
				s.counts(r, 3, 0, 2, 2, 0, 1)
				s.resume(0)
				s.resume(2)
				s.resume(3)
				s.counts(r, 3, 0, 2, 3, 0, 0)
				return
			case "unregister":
				do(s.e.Unregister(&r.Kprobe))
				s.resume(0)
				if x, _, _ := s.e.Stats(&r.Kprobe); x.Returns != 0 || x.Hits != 1 {
					t.Errorf("%+v", x)
				}
			case "disable":
				do(s.e.Disable(&r.Kprobe))
				s.resume(0)
				s.counts(r, 1, 0, 0, 1, 0, 0)
			case "again":
				do(s.e.Unregister(&r.Kprobe))
				q := s.registerOn("co_body", 2, &n)
				s.register(true, q)
				s.begin(1)
				s.counts(q, 1, 0, 0, 0, 0, 1)
				s.resume(0)
				s.counts(q, 1, 0, 0, 0, 0, 1)
				s.resume(1)
				s.counts(q, 1, 0, 0, 1, 0, 0)
			}
			s.checkQuiet(before)
			if n != 0 {
				t.Errorf("%d return handlers on the host", n)
			}
		})
	}
}

// TestReturnStageStack: a stack walk at a probe inside shows the real callers.
func TestReturnStageStack(t *testing.T) {
	s := newStaged(t, false)
	walk := func() (out []guest.GVA) {
		pcs := make([]guest.GVA, 16)
		k := &probe.Kprobe{Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
			out = slices.Clone(pcs[:c.Stack(pcs)])
			return 0
		}}
		if err := s.e.Register(k); err != nil {
			t.Fatal(err)
		}
		s.call("kprobe_target2", 7, 18)
		if err := s.e.Unregister(k); err != nil {
			t.Fatal(err)
		}
		return out
	}
	want := walk()
	n := 0
	s.register(true, s.registerOn("kprobe_target2", 4, &n))
	if got := walk(); len(want) < 2 || !slices.Equal(got, want) {
		t.Errorf("stack %v, want %v", got, want)
	}
}

// TestReturnStageNoCPU: where the stack has ceased to show a vCPU the return takes an
// exit, and its handler runs.
func TestReturnStageNoCPU(t *testing.T) {
	s := newStaged(t, false)
	prof, _ := s.f.Profile(false)
	k := &probe.Kprobe{Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
		at := guest.GVA(c.Regs.RSP&prof.StackMask) + guest.GVA(prof.CPUOff)
		if err := s.f.WriteMemory(0, at, []byte{99}); err != nil {
			t.Error(err)
		}
		return 0
	}}
	n := 0
	r := s.registerOn("kprobe_target2", 4, &n)
	s.register(true, r)
	if err := s.e.Register(k); err != nil {
		t.Fatal(err)
	}
	s.call("kprobe_target2", 7, 18)
	s.counts(r, 1, 0, 0, 1, 0, 0)
	if i, _ := s.e.Info(&r.Kprobe); n != 1 || i.Stats.InGuest != 1 {
		t.Errorf("%d return handlers on the host, %+v", n, i.Stats)
	}
}

// TestReturnStageReset: counts continue after a reset, and instances are freed.
func TestReturnStageReset(t *testing.T) {
	s := newStaged(t, false)
	n := 0
	r := s.registerOn("recurse", 20, &n)
	s.register(true, r)
	s.call("recurse", 10, 4)
	if err := s.f.Reset(probetest.Image()); err != nil {
		t.Fatal(err)
	}
	s.counts(r, 5, 0, 0, 5, 0, 0)
	if err := s.e.Optimize(); err != nil {
		t.Fatal(err)
	}
	before := s.e.Totals(-1)
	s.call("recurse", 10, 4)
	s.checkQuiet(before)
	s.counts(r, 10, 0, 0, 10, 0, 0)
}

// TestReturnStageKilled: where a profile tells whose a stack is, the activation of a
// task that is gone is given back, and one that is there never.
func TestReturnStageKilled(t *testing.T) {
	s := newStaged(t, true)
	n := 0
	r := s.registerOn("co_body", 2, &n)
	s.register(true, r)
	for i := range uint64(2) {
		s.setStack(i, 7+i)
		s.begin(i)
	}
	reclaim := func() {
		t.Helper()
		if err := s.e.Reclaim(); err != nil {
			t.Fatal(err)
		}
	}
	reclaim()
	s.counts(r, 2, 0, 0, 0, 0, 2)
	s.setStack(0, 9) // another task has the stack
	reclaim()
	s.counts(r, 2, 0, 0, 0, 1, 1)
	s.begin(0)
	s.counts(r, 3, 0, 0, 0, 1, 2)
	s.resume(0)
	s.resume(1)
	s.counts(r, 3, 0, 0, 2, 1, 0)
}

// TestReturnStageReaper: instances that can never return are freed when calls miss
// for want of them.
func TestReturnStageReaper(t *testing.T) {
	f, err := probetest.NewFake(probetest.FakeOptions{Probe: probe.Options{OptimizeDelay: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &staged{t, f, f.Engine()}
	n := 0
	r := s.registerOn("jump_deep", 4, &n)
	s.register(true, r)
	s.call("jump_over", 77, 4)
	s.call("fill_stack", 0, 0)
	for wait := patience.Context(t); ; {
		s.call("jump_over", 77, 4)
		s.call("fill_stack", 0, 0)
		x, _, _ := s.e.Stats(&r.Kprobe)
		if x.Handled > 4 && x.Abandoned >= 4 && x.Missed > 0 {
			break
		}
		if wait.Err() != nil {
			t.Fatalf("%+v", x)
		}
	}
}

// TestReturnStageHostile: whatever the guest writes into the memory of its
// instances, the host looks at it to an end, and the counts stay within bounds.
func TestReturnStageHostile(t *testing.T) {
	const shared = guest.GVA(0x5000_0000) // where the fake has it
	s := newStaged(t, false)
	n := 0
	r := s.registerOn("recurse", 20, &n)
	s.register(true, r)
	s.call("recurse", 10, 4)
	var b [8]byte
	if err := s.f.Read(shared+128+24, b[:]); err != nil { // a header and one vCPU's line, then the first record
		t.Fatal(err)
	}
	tramp := binary.LittleEndian.Uint64(b[:])
	if !s.e.InSlot(guest.GVA(tramp)) {
		t.Fatalf("%#x is no trampoline", tramp)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		for off := guest.GVA(0); off < 3000; off += 8 {
			v := rng.Uint64()
			switch rng.IntN(6) {
			case 0:
				v = tramp + 16*uint64(rng.IntN(64))
			case 1:
				v = 0x7000_0000 + uint64(rng.IntN(1<<16)) // a stack
			case 2:
				v = uint64(rng.IntN(4))
			}
			binary.LittleEndian.PutUint64(b[:], v)
			if err := s.f.Write(shared+off, b[:]); err != nil {
				t.Fatal(err)
			}
		}
		for i := range guest.GVA(64) {
			s.e.Home(guest.GVA(tramp) + 16*i)
		}
		if i, _ := s.e.Info(&r.Kprobe); i.InUse > 64 || i.HighWater > i.MaxActive {
			t.Errorf("%d in use, high water %d", i.InUse, i.HighWater)
		}
		s.e.List()
		if err := s.e.Reclaim(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.e.Unregister(&r.Kprobe); err != nil {
		t.Error(err)
	}
}

// TestReturnStageTwice: the later returns of a function resume at the right place,
// and its kretprobe moves to the host.
func TestReturnStageTwice(t *testing.T) {
	f, err := probetest.NewFake(probetest.FakeOptions{Probe: probe.Options{OptimizeDelay: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &staged{t, f, f.Engine()}
	n := 0
	r := s.registerOn("set_jump", 1, &n)
	s.register(true, r)
	before := s.e.Totals(-1)
	s.call("twice", 12, 12)
	after := s.e.Totals(-1)
	if after.Copies-before.Copies != 12 || after.Foreign != before.Foreign {
		t.Errorf("%+v, before %+v", after, before)
	}
	for wait := patience.Context(t); ; {
		i, _ := s.e.Info(&r.Kprobe)
		if i.NoStage == "the function returns twice" && i.Optimized && !i.InGuest {
			break
		}
		if wait.Err() != nil {
			t.Fatalf("%+v", i)
		}
	}
	exits := s.e.Totals(-1)
	s.call("twice", 100, 100)
	if now := s.e.Totals(-1); now.Detours == exits.Detours || now.Copies == exits.Copies || n != 0 {
		t.Errorf("%+v, before %+v; %d return handlers on the host", now, exits, n)
	}
	i, _ := s.e.Info(&r.Kprobe)
	if x := i.Stats; x.Hits != x.Handled+x.Missed || x.Handled != x.Returns || i.InUse != 0 {
		t.Errorf("%d in use, %+v", i.InUse, x)
	}
}
