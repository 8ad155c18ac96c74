package machine

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe"
)

// optimizableSites returns the sites of the built-in guest that get a jump when they
// are alone, with the number of bytes that it displaces.
func optimizableSites(t *testing.T) (sites map[guest.GVA]int, user int) {
	t.Helper()
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 1, Cmdline: "bench", Probe: probe.Options{OptimizeDelay: -1}})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	waitMapping(t, m)
	sites = map[guest.GVA]int{}
	reasons := map[string]int{}
	tried := 0
	for _, s := range m.Image().Symbols() {
		if s.Kind != guest.SymFunc || !m.Image().IsText(s.Addr) {
			continue
		}
		starts, _ := functionStarts(m.Image().(*guest.Image), s)
		for off := range starts {
			if testing.Short() && (uint64(s.Addr)+off)%16 > 1 { // emulated hosts
				continue
			}
			p := &probe.Kprobe{Addr: s.Addr + guest.GVA(off), Pre: func(*probe.Context) int { return 0 }}
			if m.Engine().Register(p) != nil {
				continue
			}
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			tried++
			i, _ := m.Engine().Info(p)
			if i.Optimized {
				if sites[i.Addr] == 0 && i.User {
					user++
				}
				sites[i.Addr] = i.Region
			} else {
				reasons[i.Unoptimized.Reason]++
			}
			if err := m.Engine().Unregister(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	s := m.Engine().OptimizerStats()
	t.Logf("%d of %d sites are optimizable, %d of them user code; the others: %v; one site at a time: longest stop %v, mean %v",
		len(sites), tried, user, reasons, s.LongestStop, s.Stopped/time.Duration(s.Passes))
	checkText(t, m)
	return sites, user
}

// waitMapping waits until the guest has said that its user text is mapped once.
func waitMapping(t *testing.T, m *Machine) {
	t.Helper()
	for wait := patience.Context(t); m.OneMapping(true) != ""; {
		if s := m.State(); s.Phase != PhaseRunning || wait.Err() != nil {
			t.Fatalf("%s; the guest is %s: %v", m.OneMapping(true), s.Phase, s.Crash)
		}
		breathe()
	}
}

// TestOptimizeEverySite: every site of the built-in guest that can have a jump
// has one while the workload runs, as many at a time as there is room for, and
// the guest computes what it computes unprobed.
func TestOptimizeEverySite(t *testing.T) {
	kvmtest.Require(t)
	sites, _ := optimizableSites(t)
	if len(sites) < 1000 && !testing.Short() {
		t.Errorf("only %d sites", len(sites))
	}
	left := make([]guest.GVA, 0, len(sites))
	for a := range sites {
		left = append(left, a)
	}
	slices.SortFunc(left, cmp.Compare[guest.GVA])
	config := Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=2", Tick: slowTick, Probe: probe.Options{OptimizeDelay: 50 * time.Microsecond}}
	want := results(t, newMachine(t, config))
	for pass := 0; len(left) > 0; pass++ {
		if testing.Short() && pass == 1 {
			break
		}
		var ps []*probe.Kprobe
		var handled atomic.Uint64
		free := guest.GVA(0)
		left = slices.DeleteFunc(left, func(a guest.GVA) bool {
			if a < free {
				return false
			}
			free = a + guest.GVA(sites[a])
			ps = append(ps, &probe.Kprobe{Addr: a, Pre: func(*probe.Context) int { handled.Add(1); return 0 }})
			return true
		})
		m := newMachine(t, config)
		// Handlers of user code run in the guest: their code keeps every register
		// and flag at all those places, too.
		stage := counterStage(t, m, true)
		for _, p := range ps {
			if m.Image().IsUserText(p.Addr) {
				p.Stage = stage
			}
		}
		if err := m.Engine().Register(probe.Probes(ps)...); err != nil {
			t.Fatal(err)
		}
		if err := m.Engine().Optimize(); err != nil {
			t.Fatal(err)
		}
		// The workload begins with all jumps in place. Until then its vCPUs come to
		// its first instruction again and again.
		hold := &probe.Kprobe{Symbol: "workload_start"}
		hold.Pre = func(c *probe.Context) int {
			handled.Add(1)
			c.Regs.RIP = uint64(hold.Addr)
			return 1
		}
		if err := m.Engine().Register(hold); err != nil {
			t.Fatal(err)
		}
		if err := m.Resume(); err != nil {
			t.Fatal(err)
		}
		waitMapping(t, m)
		if err := errors.Join(m.Engine().Optimize(), m.Engine().Unregister(hold), m.Engine().Optimize()); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(want, results(t, m)); diff != "" {
			t.Errorf("results (-unprobed +%d sites optimized):\n%s", len(ps), diff)
		}
		e := m.Engine().Totals(-1)
		if n := handled.Load(); n != e.Detours+e.Breakpoints || e.Strays != 0 {
			t.Errorf("%d handlers ran: %+v", n, e)
		}
		inGuest := uint64(0)
		for i := range m.NumCPU() {
			handled, _, missed := stage.Counts(i)
			if inGuest += handled; missed != 0 {
				t.Errorf("%d hits of user code were on no known vCPU", missed)
			}
		}
		jumps, crowded := 0, 0
		for _, p := range ps {
			switch i, _ := m.Engine().Info(p); {
			case i.Optimized:
				jumps++
			case i.Unoptimized.Reason == "no_place": // others have taken the few addresses that there are
				crowded++
			default:
				t.Errorf("%v: no jump: %+v", p.Addr, i.Unoptimized)
			}
		}
		if crowded*100 > jumps {
			t.Errorf("%d of %d sites found no place for their detour", crowded, len(ps))
		}
		s := m.Engine().OptimizerStats()
		t.Logf("pass %d: %d jumps, %d hits in the guest, %d by exits of detours, %d by int3, %d contexts moved; %d stops of %v in all, longest %v",
			pass, jumps, inGuest, e.Detours, e.Breakpoints, e.Punned, s.Passes, s.Stopped, s.LongestStop)
		if err := m.Engine().Unregister(ps...); err != nil {
			t.Error(err)
		}
		checkText(t, m)
	}
}

// TestOptimizeStorm changes probes on hot functions as fast as it can while the
// guest's self-checking workload runs: registered, with and without a post handler,
// a neighbour inside the region, disabled, everything disarmed, the knob, passes
// in between. The guest finds no wrong result, every sum closes, and at the end the text
// is the image's.
func TestOptimizeStorm(t *testing.T) {
	kvmtest.Require(t)
	span := kvmtest.ChooseSize[time.Duration](600, 1500) * time.Millisecond
	if s := os.Getenv("GUESTPROBE_STORM"); s != "" {
		d, err := time.ParseDuration(s)
		if err != nil {
			t.Fatal(err)
		}
		span = d
	}
	sizes := []int{2, 4, 8}
	if testing.Short() {
		sizes = []int{2}
	}
	for _, n := range sizes {
		t.Run(fmt.Sprintf("%d vcpus", n), func(t *testing.T) { optimizeStorm(t, n, span) })
	}
}

func optimizeStorm(t *testing.T, vcpus int, span time.Duration) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: vcpus, Cmdline: "rounds=0", Probe: probe.Options{OptimizeDelay: time.Millisecond}})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	e := m.Engine()
	hot := []string{"vfs_read", "do_fork", "user_hot", "user_checksum", "schedule", "sys_sleep", "user_syscall", "memcpy", "preempt", "user_red_zone"}
	end := time.Now().Add(span)
	var ops, sums atomic.Uint64
	var wg sync.WaitGroup
	for w := range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for time.Now().Before(end) || e.OptimizerStats().Optimized == 0 {
				ops.Add(1)
				if err := stormOp(e, rng, hot[rng.IntN(len(hot))]); err != nil {
					t.Errorf("storm: %v", err)
					return
				}
				sums.Add(1)
			}
		}()
	}
	wg.Wait()
	if err := errors.Join(e.ArmAll(), e.SetOptimization(true)); err != nil {
		t.Error(err)
	}
	if s := m.State(); s.Phase != PhaseRunning || s.Checks.Count != 0 {
		t.Errorf("phase %s, %d failed checks (last %+v), crash %v", s.Phase, s.Checks.Count, s.Checks.Last, s.Crash)
	}
	s, x := e.OptimizerStats(), e.Totals(-1)
	t.Logf("%d operations in %v (%.0f a minute); %d times optimized, %d unoptimized, %d stops, longest %v; %d hits by jumps, %d by int3, %d contexts moved",
		ops.Load(), span, float64(ops.Load())/span.Minutes(), s.Optimized, s.Unoptimized, s.Passes, s.LongestStop, x.Detours, x.Breakpoints, x.Punned)
	if s.Optimized == 0 || s.Optimized != s.Unoptimized+uint64(s.Now) {
		t.Errorf("optimizer: %+v", s)
	}
	if list := e.List(); len(list) != 0 {
		t.Errorf("%d probes are left", len(list))
	}
	checkText(t, m)
	checkCollected(t, m)
}

// checkCollected checks that executable memory was used again, and that hardly any is in
// use behind the last probe: some words of the guest may still look as if somebody were
// there.
func checkCollected(t *testing.T, m *Machine) {
	t.Helper()
	if err := m.Engine().Collect(); err != nil {
		t.Fatal(err)
	}
	s := m.Engine().CollectorStats()
	t.Logf("collector: %+v", s)
	if s.Freed == 0 || s.Used > 512<<10 {
		t.Errorf("%+v: executable memory does not come back", s)
	}
}

// stormOp puts a probe on a hot function, does something to it, and takes it off.
func stormOp(e *probe.Engine, rng *rand.Rand, name string) error {
	var calls atomic.Uint64
	p := &probe.Kprobe{Name: name, Symbol: name, Pre: func(*probe.Context) int { calls.Add(1); return 0 }}
	if err := e.Register(p); err != nil {
		return fmt.Errorf("register %s: %w", name, err)
	}
	var q *probe.Kprobe
	var err error
	for range 1 + rng.IntN(4) {
		switch rng.IntN(9) {
		case 8:
			err = e.Collect()
		case 0:
			err = e.Disable(p)
		case 1:
			err = e.Enable(p)
		case 2:
			if q == nil {
				q = &probe.Kprobe{Name: name, Symbol: name, Post: func(*probe.Context) {}}
				if err = e.Register(q); err != nil {
					q = nil
				}
			}
		case 3: // a neighbour: where an instruction begins within the next bytes
			for off := guest.GVA(1); off < 8 && q == nil; off++ {
				x := &probe.Kprobe{Name: name, Addr: p.Addr + off, Pre: func(*probe.Context) int { return 0 }}
				if e.Register(x) == nil {
					q = x
				}
			}
		case 4:
			err = e.SetOptimization(rng.IntN(2) == 0)
		case 5:
			err = errors.Join(e.DisarmAll(), e.ArmAll())
		default:
			err = e.Optimize()
		}
		if err != nil {
			return err
		}
	}
	if q != nil {
		err = e.Unregister(q)
	}
	err = errors.Join(err, e.Unregister(p))
	s, _, _ := e.Stats(p)
	if s.Hits != s.Handled+s.Filtered+s.Missed || s.Handled != calls.Load() {
		err = errors.Join(err, fmt.Errorf("%s: %+v, and %d calls of its handler", name, s, calls.Load()))
	}
	return err
}

// counterStage is a handler stage for code of that privilege that counts hits by
// vCPU, in the block.
func counterStage(t *testing.T, m *Machine, user bool) *probe.Stage {
	t.Helper()
	n := m.NumCPU()
	block, host, err := m.AllocShared(64*(n+1), user)
	if err != nil {
		t.Fatal(err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(host[64*i:]) }
	return &probe.Stage{
		Code:  []byte{0xf0, 0x48, 0xff, 0x06, 0xc3}, // lock incq (%rsi); ret
		Block: block, Stride: 64, Lost: block + guest.GVA(64*n), NoStrings: true,
		Counts: func(cpu int) (handled, filtered, missed uint64) {
			if cpu == 0 {
				missed = word(n)
			}
			return word(cpu), 0, missed
		},
	}
}

// TestStage: a handler stage in the guest counts every call of user code without
// an exit, and of kernel code where it is allowed to run there.
func TestStage(t *testing.T) {
	m := newMachine(t, Config{Image: builtinImage(t), VCPUs: 2, Cmdline: "rounds=0", EmulatedStages: true,
		Probe: probe.Options{OptimizeDelay: -1}})
	if err := m.Resume(); err != nil {
		t.Fatal(err)
	}
	waitMapping(t, m)
	for _, name := range []string{"user_hot", "vfs_read"} {
		t.Run(name, func(t *testing.T) {
			pres := atomic.Uint64{}
			p := &probe.Kprobe{Name: name, Symbol: name, Stage: counterStage(t, m, name == "user_hot"), Pre: func(*probe.Context) int { pres.Add(1); return 0 }}
			if err := m.Engine().Register(p); err != nil {
				t.Fatal(err)
			}
			if err := m.Engine().Optimize(); err != nil {
				t.Fatal(err)
			}
			i, _ := m.Engine().Info(p)
			if !i.Optimized || !i.InGuest {
				t.Fatalf("not in the guest: %+v", i.Unoptimized)
			}
			// An int3 may be on its way through the guest's vector 3 when the jump is placed:
			// it is through where its vCPU has come to the jump.
			for wait := patience.Context(t); ; breathe() {
				through := 0
				for cpu := range m.NumCPU() {
					if n, _, _ := p.Stage.Counts(cpu); n > 0 {
						through++
					}
				}
				if through == m.NumCPU() {
					break
				}
				if wait.Err() != nil {
					t.Fatalf("%d vCPUs have come to the jump", through)
				}
			}
			before := m.Engine().Totals(-1)
			start, _, _ := m.Engine().Stats(p)
			for wait := patience.Context(t); ; {
				s, _, _ := m.Engine().Stats(p)
				if s.InGuest-start.InGuest > 5000 || name == "vfs_read" && s.InGuest-start.InGuest > 5 {
					break
				}
				if wait.Err() != nil {
					t.Fatalf("%+v", s)
				}
				breathe()
			}
			after := m.Engine().Totals(-1)
			if err := m.Engine().Unregister(p); err != nil {
				t.Fatal(err)
			}
			s, _, _ := m.Engine().Stats(p)
			t.Logf("%d hits in the guest, %d on the host, %d on no known vCPU", s.InGuest, pres.Load(), s.Missed)
			if d := after.Detours + after.Breakpoints - before.Detours - before.Breakpoints; d != 0 {
				t.Errorf("%d exits", d)
			}
			if s.Hits != s.Handled+s.Filtered+s.Missed || s.Missed != 0 || s.Handled != s.InGuest+pres.Load() {
				t.Errorf("counts %+v, and %d calls of the handler", s, pres.Load())
			}
		})
	}
	if s := m.State(); s.Phase != PhaseRunning || s.Checks.Count != 0 {
		t.Errorf("phase %s, %d failed checks, crash %v", s.Phase, s.Checks.Count, s.Crash)
	}
	checkText(t, m)
}
