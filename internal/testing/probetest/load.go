package probetest

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe"
)

// loadCases run several vCPUs at once.
var loadCases = []testCase{
	{name: "concurrent_hits_1", cpus: 1, run: testConcurrentHits},
	{name: "concurrent_hits_4", cpus: 4, run: testConcurrentHits},
	{name: "concurrent_hits_8", cpus: 8, run: testConcurrentHits},
	{name: "unregister_under_load", cpus: 4, run: func(v *env) { testUnderLoad(v, false) }},
	{name: "disarm_under_load", cpus: 4, run: func(v *env) { testUnderLoad(v, true) }},
	{name: "no_handler_after_unregister", cpus: 2, run: testNoHandlerAfter},
	{name: "handlers_run_concurrently", cpus: 2, run: testHandlersConcurrently},
}

// rounds of work per vCPU: enough to overlap, few enough for a host that
// emulates guest kernel code.
const rounds = 300

// runOnAll runs f on all vCPUs at once and waits.
func (v *env) runOnAll(cpus int, f func(cpu int) error) {
	v.Helper()
	var wg sync.WaitGroup
	for i := range cpus {
		wg.Go(func() {
			if err := f(i); err != nil {
				v.Errorf("vCPU %d: %v", i, err)
			}
		})
	}
	wg.Wait()
}

// work calls work on a vCPU and checks its result.
func (v *env) work(cpu int, n uint64) error {
	s, err := v.h.Symbol("work")
	if err != nil {
		return err
	}
	r, err := v.h.Call(cpu, s.Addr, n)
	if err == nil && r != 8*n {
		err = fmt.Errorf("work(%d) = %d, want %d", n, r, 8*n)
	}
	return err
}

// cpus returns how many vCPUs the guest has.
func (v *env) cpus() int {
	p := &probe.Kprobe{Symbol: "kprobe_target"}
	v.register(p)
	_, by, _ := v.e.Stats(p)
	v.unregister(p)
	return len(by)
}

// testConcurrentHits: with hits on all vCPUs at once, each way of running the
// instruction gives right results, and the counts on each vCPU are exact.
func testConcurrentHits(v *env) {
	n := v.cpus()
	var posts atomic.Uint64
	odd := func(c *probe.Context) bool { return c.Regs.RDI&1 == 1 }
	emulated := &probe.Kprobe{Name: "emulated", Symbol: "hot", Pre: nop}
	filtered := &probe.Kprobe{Name: "filtered", Symbol: "hot", Filter: odd}
	boosted := &probe.Kprobe{Name: "boosted", Symbol: "hot_load", Pre: nop, Disabled: true}
	stepped := &probe.Kprobe{Name: "stepped", Symbol: "hot_load", Offset: v.offsets("hot_load")[0],
		Post: func(*probe.Context) { posts.Add(1) }}
	v.register(emulated, filtered, boosted, stepped)
	v.runOnAll(n, func(cpu int) error { return v.work(cpu, rounds) })
	for _, p := range []*probe.Kprobe{emulated, filtered, stepped} {
		v.stats(p)
		_, by, _ := v.e.Stats(p)
		for cpu, s := range by {
			equal(v, fmt.Sprintf("%s: hits on vCPU %d", p.Name, cpu), s.Hits, rounds)
		}
	}
	equal(v, "filtered", v.stats(filtered).Filtered, uint64(n)*rounds) // rdi is a multiple of 8
	equal(v, "posts", posts.Load(), uint64(n)*rounds)
	equal(v, "hits of a disabled probe", v.stats(boosted).Hits, 0)
	v.unregister(stepped)
	if err := v.e.Enable(boosted); err != nil {
		v.Errorf("enable: %v", err)
	}
	v.runOnAll(n, func(cpu int) error { return v.work(cpu, rounds) })
	equal(v, "boosted", v.stats(boosted).Hits, uint64(n)*rounds)
	v.unregister(emulated, filtered, boosted)
	t := v.e.Totals(-1)
	equal(v, "strays, abandoned, foreign", t.Strays+t.Abandoned+t.Foreign, 0)
	equal(v, "breakpoints", t.Breakpoints, 4*uint64(n)*rounds)
}

// testUnderLoad: probes are attached and detached on hot code in every way while
// all vCPUs run it. Results stay right, a probe that stays counts every hit
// (unless all are disarmed from time to time), and the text is restored.
func testUnderLoad(v *env, disarm bool) {
	const changes = 24
	stays := &probe.Kprobe{Name: "stays", Symbol: "work", Pre: nop}
	v.register(stays)
	calls := v.keepWorking(rounds)
	post := func(*probe.Context) {}
	for round := range changes {
		// Some vCPU must arrive before the probes are removed, or nothing is tested.
		hit, arrived := signal()
		var ps []*probe.Kprobe
		for i, off := range v.offsets("hot_load") {
			p := &probe.Kprobe{Symbol: "hot_load", Offset: off, Pre: arrived}
			if (round+i)%2 == 0 {
				p.Post = post
			}
			ps = append(ps, p, &probe.Kprobe{Symbol: "hot", Pre: arrived, Disabled: round%3 == 0})
		}
		v.register(ps...)
		<-hit
		if disarm {
			if err := v.e.DisarmAll(); err != nil {
				v.Errorf("disarm: %v", err)
			}
			if err := v.e.ArmAll(); err != nil {
				v.Errorf("arm: %v", err)
			}
		}
		if err := v.e.Disable(ps[0]); err != nil {
			v.Errorf("disable: %v", err)
		}
		v.unregister(ps...)
		for _, p := range ps {
			v.stats(p)
		}
	}
	n := calls()
	t := v.e.Totals(-1)
	v.Logf("%d calls; %+v", n, t)
	equal(v, "strays and foreign", t.Strays+t.Foreign, 0)
	if t.Boosted == 0 || t.Stepped == 0 || t.Emulated == 0 {
		v.Errorf("boosted %d, stepped %d, emulated %d: not every way was taken", t.Boosted, t.Stepped, t.Emulated)
	}
	if s := v.stats(stays); s.Hits > n || !disarm && s.Hits != n {
		v.Errorf("hits of the probe that stays: %d in %d calls", s.Hits, n)
	}
	v.unregister(stays)
}

// keepWorking has all vCPUs call work(n) over and over, and checks the results.
// end stops that and returns the number of calls.
func (v *env) keepWorking(n uint64) (end func() uint64) {
	var running sync.WaitGroup
	var calls atomic.Uint64
	stop := make(chan struct{})
	for cpu := range v.cpus() {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := v.work(cpu, n); err != nil {
					v.Errorf("vCPU %d: %v", cpu, err)
					return
				}
				calls.Add(1)
				// Two goroutines that hand each other work, one on a thread of its own,
				// can keep a processor from a third for seconds.
				runtime.Gosched()
			}
		})
	}
	return func() uint64 {
		close(stop)
		running.Wait()
		return calls.Load()
	}
}

// signal returns a channel and a pre handler that closes it when it first runs.
func signal() (<-chan struct{}, func(*probe.Context) int) {
	var once sync.Once
	c := make(chan struct{})
	return c, func(*probe.Context) int {
		once.Do(func() { close(c) })
		return 0
	}
}

// testNoHandlerAfter: when Unregister has returned, no handler runs any more,
// not even the post handler of an instruction that was in progress.
func testNoHandlerAfter(v *env) {
	end := v.keepWorking(50)
	for range 40 {
		var gone atomic.Bool
		late := func() {
			if gone.Load() {
				v.Errorf("a handler ran after Unregister had returned")
			}
		}
		hit, arrived := signal()
		p := &probe.Kprobe{Symbol: "hot_load",
			Pre:  func(c *probe.Context) int { late(); return arrived(c) },
			Post: func(*probe.Context) { late() },
		}
		v.register(p)
		<-hit
		v.unregister(p)
		gone.Store(true)
	}
	end()
}

// testHandlersConcurrently: a handler on one vCPU does not block one on another:
// each of the two waits until the other has started.
func testHandlersConcurrently(v *env) {
	var met sync.WaitGroup
	met.Add(2)
	p := &probe.Kprobe{Symbol: "hot", Pre: func(*probe.Context) int {
		met.Done()
		met.Wait()
		return 0
	}}
	v.register(p)
	v.runOnAll(2, func(cpu int) error { return v.work(cpu, 1) })
	equal(v, "hits", v.stats(p).Hits, 2)
	v.unregister(p)
}
