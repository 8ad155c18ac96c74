package machine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// stagedReturns is a kretprobe whose handlers run in the guest: at the entry the
// place of the return address is kept, and at the return it must be that of this very
// call. Returns are added up, and those that found another's place, in one line for
// each vCPU. The host's handlers do the same.
type stagedReturns struct {
	probe.Kretprobe
	m       *Machine
	host    []byte
	returns atomic.Uint64 // on the host
	wrong   atomic.Uint64 // of these: with the place of another call
}

func newStagedReturns(t testing.TB, m *Machine, name string, user bool, maxActive int) *stagedReturns {
	t.Helper()
	n := m.NumCPU()
	block, host, err := m.AllocShared(64*n, user)
	if err != nil {
		t.Fatal(err)
	}
	const rax, rdx, rsi, rdi, sp = x86.RAX, x86.RDX, x86.RSI, x86.RDI, 1 << (x86.PtSP / 8)
	var entry, ret x86.Asm
	entry.Mov(8, rax, x86.At(rdi, x86.PtSP))
	entry.Mov(8, x86.At(rdx, 0), rax)
	entry.Xor(4, rax, rax)
	entry.Ret()
	right := ret.NewLabel()
	ret.Mov(8, rax, x86.At(rdi, x86.PtSP))
	ret.Sub(8, rax, x86.Imm(8))
	ret.Sub(8, rax, x86.At(rdx, 0))
	ret.Jcc(x86.CondE, right)
	ret.Inc(8, x86.At(rsi, 8))
	ret.Place(right)
	ret.Inc(8, x86.At(rsi, 0))
	ret.Ret()
	s := &stagedReturns{m: m, host: host}
	none := func(int) (handled, filtered, missed uint64) { return 0, 0, 0 }
	s.Kretprobe = probe.Kretprobe{
		Kprobe:      probe.Kprobe{Name: name, Symbol: name, Stage: &probe.Stage{Code: entry.Code(), Stack: 8, NoStrings: true, Reads: sp, Block: block, Stride: 64, Counts: none}},
		ReturnStage: &probe.Stage{Code: ret.Code(), Stack: 8, NoStrings: true, Reads: sp, Block: block, Stride: 64, Counts: none},
		Entry: func(c *probe.Context) int {
			binary.LittleEndian.PutUint64(c.Data, c.Regs.RSP)
			return 0
		},
		Return: func(c *probe.Context) {
			s.returns.Add(1)
			// What a function takes off the stack comes to it.
			if binary.LittleEndian.Uint64(c.Data) > c.Regs.RSP-8 {
				s.wrong.Add(1)
			}
		},
		MaxActive: maxActive, DataSize: 8,
	}
	return s
}

// free gives the memory of s back, when nobody in the guest can come to it any more.
func (s *stagedReturns) free() error {
	return s.m.Engine().NotifyUnused(func() { s.m.FreeShared(s.Stage.Block) }, s.Stage, s.ReturnStage)
}

// countMixed returns how many returns have found the data of another call.
func (s *stagedReturns) countMixed() uint64 {
	n := s.wrong.Load()
	for i := 0; i+64 <= len(s.host); i += 64 {
		n += binary.LittleEndian.Uint64(s.host[i+8:])
	}
	return n
}

// calls returns how often the return stage has run.
func (s *stagedReturns) calls() (n uint64) {
	for i := 0; i+64 <= len(s.host); i += 64 {
		n += binary.LittleEndian.Uint64(s.host[i:])
	}
	return n
}

// check tells whether the counts close, but for what is under way.
func (s *stagedReturns) check(i probe.Info, underWay int) error {
	x := i.Stats
	off := int64(x.Handled) - int64(x.Returns+x.Abandoned) - int64(i.InUse)
	if x.Hits != x.Handled+x.Filtered+x.Missed || max(off, -off) > int64(underWay) || i.HighWater > i.MaxActive {
		return fmt.Errorf("kretprobe %s: counts do not close: %d in use, high water %d of %d, %+v", s.Name, i.InUse, i.HighWater, i.MaxActive, x)
	}
	return nil
}

// TestReturnStage: calls of user code, and of kernel code where it is allowed, are
// followed to their return in the guest without an exit.
func TestReturnStage(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=0", EmulatedStages: true,
		Probe: probe.Options{OptimizeDelay: -1}})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	waitMapping(t, m)
	for _, tc := range []struct {
		name  string
		user  bool
		calls uint64
	}{{"user_hot", true, 20000}, {"user_checksum", true, 50}, {"vfs_read", false, 6}} {
		t.Run(tc.name, func(t *testing.T) {
			s := newStagedReturns(t, m, tc.name, tc.user, 0)
			if err := m.Engine().Register(&s.Kretprobe); err != nil {
				t.Fatal(err)
			}
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			i, _ := m.Engine().Info(&s.Kprobe)
			if !i.Optimized || !i.InGuest {
				t.Fatalf("not in the guest: %+v", i.Unoptimized)
			}
			start := s.calls()
			before := m.Engine().Totals(-1)
			wait := patience.Context(t)
			for s.calls()-start < tc.calls && wait.Err() == nil {
				if m.State().Phase != PhaseRunning {
					t.Fatalf("phase %s, crash %v", m.State().Phase, m.State().Crash)
				}
				breathe()
			}
			after := m.Engine().Totals(-1)
			if err := m.Stop(doNothing); err != nil {
				t.Fatal(err)
			}
			i, _ = m.Engine().Info(&s.Kprobe)
			t.Logf("%d calls in the guest, %d on the host; at most %d at a time, %d in use; %+v", s.calls(), s.returns.Load(), i.HighWater, i.InUse, i.Stats)
			if wait.Err() != nil {
				t.Fatal("not enough calls")
			}
			if d := exits(after) - exits(before); d > 2 { // of calls from before the jump
				t.Errorf("%d exits", d)
			}
			if err := m.Engine().Unregister(&s.Kprobe); err != nil {
				t.Fatal(err)
			}
			if x, _, _ := m.Engine().Stats(&s.Kprobe); x.Missed != 0 || x.Hits != x.Handled || x.Returns > s.calls()+s.returns.Load()+uint64(m.NumCPU()) { // each may stand between the two counts
				t.Errorf("%+v, %d returns in the guest", x, s.calls())
			}
		})
	}
	if s := m.State(); s.Phase != PhaseRunning || s.Checks.Count != 0 {
		t.Errorf("phase %s, %d failed checks, crash %v", s.Phase, s.Checks.Count, s.Crash)
	}
	checkText(t, m)
}

// exits are those that probes have caused.
func exits(s probe.EngineStats) uint64 {
	return s.Breakpoints + s.Detours + s.Stepped + s.InPlace + s.Returns
}

// TestReturnStageStorm puts kretprobes on hot functions as fast as it can, and takes
// them off with calls under way, moves them from the guest to the host and back,
// while the guest's self-checking workload runs. The counts of each close at its end, and
// change no more. GUESTPROBE_STORM=60s makes it longer; GUESTPROBE_DETACHES=10000 asks for
// at least so many in all.
func TestReturnStageStorm(t *testing.T) {
	kvmtest.Require(t)
	span := kvmtest.ChooseSize[time.Duration](600, 1500) * time.Millisecond
	if s := os.Getenv("GUESTPROBE_STORM"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		span = d
	}
	sizes := []int{2, 8}
	if testing.Short() {
		sizes = []int{2}
	}
	count := 0
	if s := os.Getenv("GUESTPROBE_DETACHES"); s != "" {
		var err error
		if count, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range sizes {
		for _, user := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d vcpus, user %v", n, user), func(t *testing.T) {
				returnStageStorm(t, n, user, span, uint64(count/(2*len(sizes))))
			})
		}
	}
}

func returnStageStorm(t *testing.T, vcpus int, user bool, span time.Duration, count uint64) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=0", EmulatedStages: true, Probe: probe.Options{OptimizeDelay: time.Millisecond}})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	e := m.Engine()
	hot := []string{"user_hot", "user_checksum", "user_red_zone", "user_memory", "user_hot_loop", "user_syscall"}
	if !user {
		hot = []string{"vfs_read", "do_fork", "schedule", "sys_sleep", "memcpy", "preempt", "do_wait", "long_jump", "set_jump"}
	}
	end := time.Now().Add(span)
	var ops, guestReturns, hostReturns, underWay atomic.Uint64
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(11, uint64(w)))
			var old *probe.Kprobe
			var final probe.Stats
			for ops.Load() < count || time.Now().Before(end) || guestReturns.Load() == 0 && m.State().Phase == PhaseRunning {
				name := hot[rng.IntN(len(hot))]
				s := newStagedReturns(t, m, name, user, 1+rng.IntN(8))
				if err := returnStormOp(e, rng, s); err != nil {
					t.Errorf("storm: %v", err)
					return
				}
				if x, _, _ := e.Stats(old); x != final {
					t.Errorf("%s: %+v, and %+v when it was detached", old.Name, x, final)
				}
				old = &s.Kprobe
				final, _, _ = e.Stats(old)
				underWay.Add(final.UnderWay)
				ops.Add(1)
				guestReturns.Add(s.calls())
				hostReturns.Add(s.returns.Load())
				if err := s.free(); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	if s := m.State(); s.Phase != PhaseRunning || s.Checks.Count != 0 {
		t.Errorf("phase %s, %d failed checks (last %+v), crash %v", s.Phase, s.Checks.Count, s.Checks.Last, s.Crash)
	}
	x := e.Totals(-1)
	t.Logf("%d registrations; %d returns in the guest, %d on the host, %d calls under way at the end of their probe; %+v", ops.Load(), guestReturns.Load(), hostReturns.Load(), underWay.Load(), x)
	if guestReturns.Load() == 0 {
		t.Error("nothing ran in the guest")
	}
	checkText(t, m)
	checkCollected(t, m)
}

func returnStormOp(e *probe.Engine, rng *rand.Rand, s *stagedReturns) error {
	err := e.Register(&s.Kretprobe)
	if err != nil {
		return fmt.Errorf("register %s: %w", s.Name, err)
	}
	for range 1 + rng.IntN(4) {
		switch rng.IntN(9) {
		case 8:
			err = e.Collect()
		case 6, 7: // until there was a call, but not for long
			for end := time.Now().Add(3 * time.Millisecond); s.calls() == 0 && time.Now().Before(end); {
				breathe()
			}
		case 0:
			err = errors.Join(e.Disable(&s.Kprobe), e.Enable(&s.Kprobe))
		case 1:
			err = e.SetOptimization(rng.IntN(2) == 0)
		case 2:
			q := &probe.Kprobe{Name: s.Name, Symbol: s.Name, Pre: func(*probe.Context) int { return 0 }}
			err = errors.Join(e.Register(q), e.Optimize(), e.Unregister(q))
		case 3:
			err = e.Reclaim()
		default:
			err = e.Optimize()
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(e.SetOptimization(true), e.Unregister(&s.Kprobe)); err != nil {
		return err
	}
	if rng.IntN(2) == 0 {
		if err := e.Collect(); err != nil {
			return err
		}
	}
	if x, _, _ := e.Stats(&s.Kprobe); x.Hits != x.Handled+x.Filtered+x.Missed || x.Handled != x.Returns+x.Abandoned+x.UnderWay || x.UnderWay > uint64(s.MaxActive) ||
		s.calls()+s.returns.Load() > x.Returns || s.countMixed() != 0 {
		return fmt.Errorf("%s: %+v, %d returns with another call's data", s.Name, x, s.countMixed())
	}
	return nil
}

// TestReturnStageWorkload: with small and large pools, on all functions of the user,
// or of the kernel, that can have one, the guest computes what it computes
// unprobed, and the counts close.
func TestReturnStageWorkload(t *testing.T) {
	config := Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=2", Tick: slowTick, EmulatedStages: true, Probe: probe.Options{OptimizeDelay: time.Millisecond}}
	want := results(t, newMachine(t, config))
	for _, tc := range []struct {
		user      bool
		maxActive int
	}{{true, 1}, {true, 0}, {false, 2}, {false, 0}} {
		t.Run(fmt.Sprintf("user %v, max %d", tc.user, tc.maxActive), func(t *testing.T) {
			m := newMachine(t, config)
			var all []*stagedReturns
			for _, sym := range m.Image().Symbols() {
				if sym.Kind != guest.SymFunc || sym.User != tc.user {
					continue
				}
				s := newStagedReturns(t, m, sym.Name, tc.user, tc.maxActive)
				if e := m.Engine().Register(&s.Kretprobe); e == nil {
					all = append(all, s)
				}
			}
			if diff := gocmp.Diff(want, results(t, m)); diff != "" {
				t.Errorf("results (-unprobed +probed):\n%s", diff)
			}
			if err := m.Engine().Reclaim(); err != nil {
				t.Fatal(err)
			}
			// The vCPU that did not end the guest can have been in the middle of a hit.
			underWay := 0
			for _, c := range m.State().VCPUs {
				if m.Engine().InSlot(c.RIP) {
					underWay++
				}
			}
			var sum probe.Stats
			for _, s := range all {
				i, _ := m.Engine().Info(&s.Kprobe)
				if err := s.check(i, underWay); err != nil {
					t.Error(err)
				}
				if n := s.countMixed(); n != 0 {
					t.Errorf("%s: %d returns with another call's data", s.Name, n)
				}
				if got := s.calls() + s.returns.Load(); got > i.Stats.Returns || got+uint64(underWay) < i.Stats.Returns {
					t.Errorf("%s: %d return stages and handlers, want %d", s.Name, got, i.Stats.Returns)
				}
				sum.Hits += i.Stats.Hits
				sum.InGuest += i.Stats.InGuest
				sum.Missed += i.Stats.Missed
				sum.Returns += i.Stats.Returns
				sum.Abandoned += i.Stats.Abandoned
			}
			t.Logf("%d kretprobes: %+v", len(all), sum)
			for _, s := range all {
				if err := m.Engine().Unregister(&s.Kprobe); err != nil {
					t.Error(err)
				}
			}
			checkText(t, m)
		})
	}
}
