package probetest

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// optimizedCases are about sites with a jump instead of an int3 (kprobes C).
var optimizedCases = []testCase{
	{name: "optimize_life", run: testOptimizeLife},
	{name: "optimize_obstacles", run: testOptimizeObstacles},
	{name: "optimize_neighbours", run: testOptimizeNeighbours},
	{name: "optimize_changed_rip", run: testOptimizeChangedRIP},
	{name: "optimize_kretprobe", run: testOptimizeKretprobe},
	{name: "optimize_equivalence", run: testOptimizeEquivalence},
	{name: "optimize_preempted", cpus: 1, run: testOptimizePreempted},
	{name: "optimize_missed", needs: []Capability{CanNest}, run: testOptimizeMissed},
	{name: "optimize_user", needs: []Capability{CanUser}, run: testOptimizeUser},
}

// optimize runs the optimizer.
func (v *env) optimize() {
	v.Helper()
	if err := v.e.Optimize(); err != nil {
		v.Fatalf("optimize: %v", err)
	}
}

// info returns the engine's information about p.
func (v *env) info(p *probe.Kprobe) probe.Info {
	v.Helper()
	i, ok := v.e.Info(p)
	if !ok {
		v.Fatalf("probe %q is not registered", p.Name)
	}
	return i
}

// checkOptimized checks whether the site of p has its jump, and if not, why.
func (v *env) checkOptimized(what string, p *probe.Kprobe, reason string) {
	v.Helper()
	i := v.info(p)
	if i.Optimized != (reason == "") || i.Unoptimized.Reason != reason {
		v.Errorf("%s: optimized %v, reason %q (%s); want %q", what, i.Optimized, i.Unoptimized.Reason, i.Unoptimized.Detail, reason)
	}
	b := v.bytes(p.Addr, x86.JmpLen)
	orig := Image().Code(p.Addr, x86.JmpLen)
	switch {
	case i.Optimized && b[0] != x86.JmpOp, !i.Optimized && i.Armed && b[0] != x86.Int3:
		v.Errorf("%s: text is % x", what, b)
	case !i.Optimized && reason != "probe_in_region" && string(b[1:]) != string(orig[1:]):
		v.Errorf("%s: after the first byte the text is % x, want % x", what, b, orig)
	}
	if got := i.Flags() == "[OPTIMIZED]"; got != i.Optimized {
		v.Errorf("%s: flags %q", what, i.Flags())
	}
}

// testOptimizeLife: from registration to the jump, hits there, and back.
func testOptimizeLife(v *env) {
	hits := 0
	p := &probe.Kprobe{Name: "p", Symbol: "f_emulate", Pre: func(c *probe.Context) int {
		hits++
		if c.Regs.RIP != uint64(c.Addr)+1 || c.Regs.RDI != 0xff00 || c.Regs.RSI != 0x0ff0 {
			hits += 100
		}
		return 0
	}}
	v.register(p)
	v.checkOptimized("before the pass", p, "waiting")
	equal(v, "by int3", v.call("f_emulate", 0xff00, 0x0ff0), 0xf0f0)
	v.optimize()
	v.checkOptimized("after the pass", p, "")
	before := v.e.Totals(-1)
	for range 10 {
		equal(v, "by jump", v.call("f_emulate", 0xff00, 0x0ff0), 0xf0f0)
	}
	equal(v, "hits", hits, 11)
	after := v.e.Totals(-1)
	equal(v, "exits by the detour", after.Detours-before.Detours, 10)
	equal(v, "by int3", after.Breakpoints-before.Breakpoints, 0)
	equal(v, "counted hits", v.stats(p).Hits, 11)
	s := v.e.OptimizerStats()
	if s.Passes == 0 || s.Optimized != 1 || s.Now != 1 || s.Waiting != 0 || s.LongestStop <= 0 || s.LongestStop > s.Stopped {
		v.Errorf("optimizer: %+v", s)
	}
	v.unregister(p)
	v.checkArmed("after it is gone", p.Addr, false)
	s = v.e.OptimizerStats()
	equal(v, "unoptimized", s.Unoptimized, 1)
	equal(v, "optimized now", s.Now, 0)
	equal(v, "without", v.call("f_emulate", 0xff00, 0x0ff0), 0xf0f0)
}

// testOptimizeObstacles: changes that remove the jump at once, and its return
// afterwards.
func testOptimizeObstacles(v *env) {
	p := &probe.Kprobe{Name: "p", Symbol: "f_emulate", Pre: nop}
	v.register(p)
	do := func(what string, err error) {
		v.Helper()
		if err != nil {
			v.Fatalf("%s: %v", what, err)
		}
	}
	again := func(what string) {
		v.Helper()
		v.checkOptimized(what+", undone", p, "waiting")
		v.optimize()
		v.checkOptimized(what+", undone, after the pass", p, "")
		equal(v, what, v.call("f_emulate", 1, 3), 2)
	}
	v.optimize()
	v.checkOptimized("at first", p, "")

	post := 0
	q := &probe.Kprobe{Name: "q", Symbol: "f_emulate", Post: func(*probe.Context) { post++ }}
	v.register(q)
	v.checkOptimized("post handler", p, "post_handler")
	v.optimize()
	v.checkOptimized("post handler, after a pass", p, "post_handler")
	equal(v, "with a post handler", v.call("f_emulate", 1, 3), 2)
	equal(v, "its calls", post, 1)
	v.unregister(q)
	again("post handler")

	q = &probe.Kprobe{Name: "q", Symbol: "f_emulate", Pre: nop}
	v.register(q)
	v.checkOptimized("second probe", p, "")
	v.unregister(q)
	v.checkOptimized("second probe, gone", p, "")

	do("disable", v.e.Disable(p))
	v.checkOptimized("disabled", p, "not_armed")
	v.checkArmed("disabled", p.Addr, false)
	do("enable", v.e.Enable(p))
	again("disable")

	do("disarm", v.e.DisarmAll())
	v.checkOptimized("disarmed", p, "not_armed")
	v.checkArmed("disarmed", p.Addr, false)
	do("arm", v.e.ArmAll())
	again("disarm")

	do("off", v.e.SetOptimization(false))
	equal(v, "knob", v.e.Optimization(), false)
	v.checkOptimized("off", p, "optimization_off")
	v.optimize()
	v.checkOptimized("off, after a pass", p, "optimization_off")
	equal(v, "off", v.call("f_emulate", 1, 3), 2)
	do("on", v.e.SetOptimization(true))
	equal(v, "knob", v.e.Optimization(), true)
	again("knob")
	v.unregister(p)
}

// testOptimizeNeighbours: a probe in the region of another, and after it.
func testOptimizeNeighbours(v *env) {
	p := &probe.Kprobe{Name: "p", Symbol: "f_emulate", Pre: nop}
	v.register(p)
	v.optimize()
	v.checkOptimized("alone", p, "")
	region := uint64(v.info(p).Region)
	for _, off := range v.offsets("f_emulate")[1:] {
		q := &probe.Kprobe{Name: "q", Symbol: "f_emulate", Offset: off, Pre: nop}
		v.register(q)
		want := ""
		if off < region {
			want = "probe_in_region"
		}
		what := fmt.Sprintf("with a probe at +%d of %d", off, region)
		v.checkOptimized(what, p, want)
		v.optimize()
		v.checkOptimized(what+", after a pass", p, want)
		equal(v, what, v.call("f_emulate", 1, 3), 2)
		if want != "" {
			// A disabled one is not in the way.
			if err := v.e.Disable(q); err != nil {
				v.Fatal(err)
			}
			v.optimize()
			v.checkOptimized(what+", disabled", p, "")
			if err := v.e.Enable(q); err != nil {
				v.Fatal(err)
			}
			v.checkOptimized(what+", enabled", p, want)
		}
		equal(v, what+", hits", v.call("f_emulate", 1, 3), 2)
		v.unregister(q)
		v.optimize()
		v.checkOptimized(what+", gone", p, "")
	}
	v.unregister(p)
}

// testOptimizeChangedRIP: the guest goes where a pre handler says, also from a
// detour. The kernel ignores that.
func testOptimizeChangedRIP(v *env) {
	to := v.addr("kprobe_target2")
	p := &probe.Kprobe{Name: "p", Symbol: "f_emulate", Pre: func(c *probe.Context) int {
		c.Regs.RIP = uint64(to)
		return 1
	}}
	v.register(p)
	v.optimize()
	v.checkOptimized("redirecting probe", p, "")
	equal(v, "redirected", v.call("f_emulate", 33, 0), 12)
	v.unregister(p)
}

// testOptimizeKretprobe: the entry of a kretprobe is a site like any other; the
// return does not trap a second time.
func testOptimizeKretprobe(v *env) {
	var got []uint64
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "r", Symbol: "f_emulate"}, DataSize: 8,
		Entry:  func(c *probe.Context) int { le.PutUint64(c.Data, c.Regs.RDI); return 0 },
		Return: func(c *probe.Context) { got = append(got, le.Uint64(c.Data), c.Regs.RAX); c.Regs.RAX++ },
	}
	if err := v.e.Register(r); err != nil {
		v.Fatal(err)
	}
	v.optimize()
	v.checkOptimized("kretprobe", &r.Kprobe, "")
	before := v.e.Totals(-1)
	equal(v, "changed result", v.call("f_emulate", 1, 3), 3)
	after := v.e.Totals(-1)
	equal(v, "handlers saw", fmt.Sprint(got), "[1 2]")
	equal(v, "exits at the entry", after.Detours-before.Detours, 1)
	equal(v, "exits at the return", after.Returns-before.Returns, 1)
	equal(v, "others", after.Breakpoints+after.Stepped-before.Breakpoints-before.Stepped, 0)
	v.unregister(&r.Kprobe)
}

// testOptimizeEquivalence: functions whose result shows any difference, with each
// instruction in turn optimized, and then with as many as there is room for.
func testOptimizeEquivalence(v *env) {
	reasons := map[string]int{}
	done, tried := 0, 0
	for _, q := range equivalences {
		name := fmt.Sprintf("%s%v", q.f, q.args)
		want := v.call(q.f, q.args...)
		var all []*probe.Kprobe
		free := guest.GVA(0) // where the next region may begin
		for _, off := range v.offsets(q.f) {
			p := &probe.Kprobe{Name: q.f, Symbol: q.f, Offset: off, Pre: nop}
			err := v.e.Register(p)
			if e := (*probe.Error)(nil); errors.As(err, &e) && e.Code == probe.CodeTrapInsn {
				continue
			}
			if err != nil {
				v.Errorf("%s+%#x: %v", q.f, off, err)
				continue
			}
			v.optimize()
			i := v.info(p)
			tried++
			if i.Optimized {
				done++
				equal(v, fmt.Sprintf("%s with a jump at +%#x", name, off), v.call(q.f, q.args...), want)
				if p.Addr >= free {
					all = append(all, &probe.Kprobe{Name: q.f, Symbol: q.f, Offset: off, Pre: nop})
					free = p.Addr + guest.GVA(i.Region)
				}
			} else {
				reasons[i.Unoptimized.Reason]++
			}
			v.unregister(p)
		}
		if len(all) == 0 {
			continue
		}
		v.register(all...)
		v.optimize()
		for _, p := range all {
			v.checkOptimized(fmt.Sprintf("%s+%#x", q.f, p.Offset), p, "")
		}
		equal(v, name+" with jumps all over", v.call(q.f, q.args...), want)
		v.unregister(all...)
	}
	v.Logf("%d of %d sites are optimizable; others: %v", done, tried, reasons)
	if done < tried/4 {
		v.Errorf("only %d of %d sites are optimizable", done, tried)
	}
}

// testOptimizePreempted: a vCPU is inside a region, after each of its
// instructions in turn, while the region becomes a jump. It must continue with
// the next whole instruction.
func testOptimizePreempted(v *env) {
	inside := 0
	for _, q := range equivalences {
		want := v.call(q.f, q.args...)
		for _, off := range v.offsets(q.f) {
			site := &probe.Kprobe{Name: "site", Symbol: q.f, Offset: off, Pre: nop}
			if v.e.Register(site) != nil {
				continue
			}
			v.optimize()
			i := v.info(site)
			v.unregister(site)
			if !i.Optimized {
				continue
			}
			for at := range regionOf(site.Addr, i.Region) {
				inside += v.preempt(q.f, q.args, site.Addr, at, want)
			}
		}
	}
	v.Logf("%d contexts were moved from inside a jump to the detour", inside)
	if inside == 0 {
		v.Error("no context was ever inside a region")
	}
}

// regionOf yields the addresses of the instructions of a region but the last.
func regionOf(addr guest.GVA, n int) func(func(guest.GVA) bool) {
	return func(yield func(guest.GVA) bool) {
		for off := 0; ; {
			in, err := x86.Decode(Image().Code(addr+guest.GVA(off), x86.MaxLen))
			if err != nil || off+int(in.Len) >= n || !yield(addr+guest.GVA(off)) {
				return
			}
			off += int(in.Len)
		}
	}
}

// preempt calls f, and while the vCPU is at the instruction at has the region of
// site optimized; it returns the number of times that a context was moved.
func (v *env) preempt(f string, args []uint64, site, at guest.GVA, want uint64) int {
	v.Helper()
	outer := &probe.Kprobe{Name: "outer", Addr: site, Pre: nop}
	done := make(chan error, 1)
	var inner *probe.Kprobe
	fired := false
	fire := func(*probe.Context) int {
		if fired {
			return 0
		}
		fired = true
		begun := make(chan bool)
		go func() {
			close(begun)
			var err error
			if inner != outer {
				err = v.e.Unregister(inner)
			}
			done <- errors.Join(err, v.e.Optimize())
		}()
		<-begun
		// Long enough for the request to arrive before this handler ends. If it does not,
		// the vCPU is stopped elsewhere, and the case shows less.
		for end := time.Now().Add(50 * time.Microsecond); time.Now().Before(end); {
			runtime.Gosched()
		}
		return 0
	}
	if at == site {
		inner, outer.Pre = outer, fire
	} else {
		inner = &probe.Kprobe{Name: "inner", Addr: at, Pre: fire}
		if v.e.Register(inner) != nil {
			return 0 // padding
		}
	}
	v.register(outer)
	before := v.e.Totals(-1).Punned
	equal(v, fmt.Sprintf("%s%v, optimized at %v with a context after %v", f, args, site, at), v.call(f, args...), want)
	if fired {
		if err := <-done; err != nil {
			v.Errorf("optimize under %s: %v", f, err)
		}
		v.checkOptimized(f, outer, "")
		equal(v, fmt.Sprintf("%s%v with the jump", f, args), v.call(f, args...), want)
	} else if inner != outer {
		v.unregister(inner)
	}
	v.unregister(outer)
	return int(v.e.Totals(-1).Punned - before)
}

// testOptimizeMissed: an optimized site that is hit inside a handler misses the
// hit, and its instructions are executed.
func testOptimizeMissed(v *env) {
	in := &probe.Kprobe{Name: "in", Symbol: "f_emulate", Pre: nop}
	var got uint64
	out := &probe.Kprobe{Name: "out", Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
		got, _ = c.Call(v.addr("f_emulate"), 1, 3)
		return 0
	}}
	v.register(in, out)
	v.optimize()
	v.checkOptimized("inner", in, "")
	equal(v, "outer", v.call("kprobe_target", 33), 11)
	equal(v, "inner call", got, 2)
	s := v.stats(in)
	equal(v, "missed", s.Missed, 1)
	equal(v, "handled", s.Handled, 0)
	v.unregister(in, out)
}

// testOptimizeUser: code of CPL3.
func testOptimizeUser(v *env) {
	for _, f := range []string{"u_frame", "u_work"} {
		want := v.callUser(f, 5, 0)
		for _, off := range v.offsets(f) {
			hits := 0
			p := &probe.Kprobe{Name: f, Symbol: f, Offset: off, Pre: func(*probe.Context) int { hits++; return 0 }}
			if err := v.e.Register(p); err != nil {
				continue
			}
			v.optimize()
			if v.info(p).Optimized {
				equal(v, fmt.Sprintf("%s with a jump at +%#x", f, off), v.callUser(f, 5, 0), want)
				if off == 0 && hits == 0 {
					v.Errorf("%s: no hit", f)
				}
			}
			v.unregister(p)
		}
	}
}
