package probetest

import (
	"slices"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// activationCases are about which activation a return belongs to, and about
// activations that never return.
var activationCases = []testCase{
	{name: "kretprobe_recursion", run: testRecursion},
	{name: "kretprobe_switch_to", run: testSwitchTo},
	{name: "kretprobe_tail_call", run: testTailCall},
	{name: "kretprobe_long_jump", run: testLongJump},
	{name: "kretprobe_returns_twice", run: testReturnsTwice},
	{name: "kretprobe_returns_twice_later", run: testReturnsTwiceLater},
	{name: "kretprobe_tasks", cpus: 2, run: testTasks},
	{name: "kretprobe_killed_task", run: testKilledTask},
	{name: "kretprobe_dead_task", run: testDeadTask},
	{name: "kretprobe_unwound", run: testUnwound},
	{name: "kretprobe_undecided", run: testUndecided},
	{name: "kretprobe_moved_stack", cpus: 2, run: testMovedStack},
	{name: "kretprobe_moved_unseen", run: testMovedUnseen},
	{name: "kretprobe_copied_stack", cpus: 2, run: testCopiedStack},
	{name: "kretprobe_copy_kept", run: testCopyKept},
	{name: "kretprobe_moved_tail_call", run: testMovedTail},
	{name: "kretprobe_unregister_outstanding", cpus: 2, run: testOutstanding},
	{name: "kretprobe_closed_outstanding", run: testClosedOutstanding},
	{name: "kretprobe_user", needs: []Capability{CanUser}, run: testKretprobeUser},
	{name: "test_stacktrace_on_kretprobe", run: testStack},
	{name: "test_stacktrace_on_nested_kretprobe", run: testNestedStack},
	{name: "stack_everywhere", run: testStackEverywhere},
}

// sum is the result of recurse(n).
func sum(n uint64) uint64 { return n * (n + 1) / 2 }

// testRecursion: depth 10 with 3 instances gives 3 handled and 7 missed.
func testRecursion(v *env) {
	for _, c := range []struct{ max, depth, handled int }{
		{3, 10, 3}, {1, 10, 1}, {9, 10, 9}, {10, 10, 10}, {11, 10, 10}, {0, 10, 10}, {0, 11, 10},
	} {
		var got []uint64
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "recurse"}, MaxActive: c.max, DataSize: 8,
			Entry: func(c *probe.Context) int {
				le.PutUint64(c.Data, c.Regs.RDI)
				return 0
			},
			Return: func(c *probe.Context) {
				n := le.Uint64(c.Data)
				equal(v, "result of an activation", c.Regs.RAX, sum(n))
				got = append(got, n)
			},
		}
		v.registerRet(r)
		for range 3 {
			got = got[:0]
			v.equalCall("recurse", uint64(c.depth-1), sum(uint64(c.depth-1)))
			equal(v, "returns", len(got), c.handled)
			if !slices.IsSorted(got) {
				v.Errorf("return handlers ran for %v, want inner ones first", got)
			}
		}
		s := v.stats(&r.Kprobe)
		equal(v, "handled", s.Handled, uint64(3*c.handled))
		equal(v, "missed", s.Missed, uint64(3*(c.depth-c.handled)))
		i, _ := v.e.Info(&r.Kprobe)
		equal(v, "high water", i.HighWater, c.handled)
		v.unregisterRet(r)
	}
}

// equalCall calls a function on vCPU 0 and checks its result.
func (v *env) equalCall(f string, arg, want uint64) {
	v.Helper()
	equal(v, f, v.call(f, arg), want)
}

func testSwitchTo(v *env) {
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "__switch_to"}}
	v.checkRefused("__switch_to", v.e.Register(r), probe.CodeBlacklisted, syscall.EINVAL)
	p := &probe.Kprobe{Symbol: "__switch_to", Pre: nop}
	v.register(p) // only its return is special
	v.unregister(p)
}

// testTailCall: a function that ends with a jump to another one returns when
// that does, and so do all activations that a jump to the entry makes.
func testTailCall(v *env) {
	var got []string
	on := func(f string) *probe.Kretprobe {
		return &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: f}, Return: func(c *probe.Context) {
			got = append(got, f)
			equal(v, "result of "+f, c.Regs.RAX, 12)
		}}
	}
	a, b := on("tail_call"), on("tail_end")
	v.registerRet(a, b)
	v.equalCall("tail_call", 10, 12)
	if !slices.Equal(got, []string{"tail_end", "tail_call"}) {
		v.Errorf("return handlers of %v, want tail_end, tail_call", got)
	}
	v.unregisterRet(b)
	v.equalCall("tail_call", 10, 12)
	v.unregisterRet(a)

	n := 0
	l := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "tail_loop"}, MaxActive: 5, Return: func(*probe.Context) { n++ }}
	v.registerRet(l)
	v.equalCall("tail_loop", 7, 0)
	equal(v, "activations of tail_loop", n, 5)
	equal(v, "missed", v.stats(&l.Kprobe).Missed, 2)
	v.unregisterRet(l)
}

// testLongJump: activations that are jumped out of are found out when their
// stack is used again, however small the pool.
func testLongJump(v *env) {
	n := 0
	deep := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "jump_deep"}, MaxActive: 4, Return: func(*probe.Context) { n++ }}
	over := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "jump_over"}, MaxActive: 1, Return: func(*probe.Context) { n++ }}
	v.registerRet(deep, over)
	for range 20 {
		v.equalCall("jump_over", 4, 77)
		v.equalCall("fill_stack", 0, 0)
	}
	equal(v, "returns", n, 20)
	s := v.stats(&deep.Kprobe)
	equal(v, "handled", s.Handled, 80)
	equal(v, "missed", s.Missed, 0)
	v.checkSettled(deep)
	equal(v, "abandoned", v.stats(&deep.Kprobe).Abandoned, 80)

	// The same slots again without anything in between: the new trampolines are
	// different from the old ones.
	for range 20 {
		v.equalCall("jump_over", 3, 77)
	}
	equal(v, "missed", v.stats(&deep.Kprobe).Missed, 0)
	v.equalCall("fill_stack", 0, 0)
	v.unregisterRet(deep, over)
}

// testReturnsTwice: the later returns of a function find where to continue,
// without a handler, whatever other activations there were in between.
func testReturnsTwice(v *env) {
	returns := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "set_jump"}, MaxActive: 1, Return: func(*probe.Context) { returns++ }}
	v.registerRet(r)
	before := v.e.Totals(-1)
	v.equalCall("twice", 12, 12)
	after := v.e.Totals(-1)
	equal(v, "return handlers", returns, 13)
	equal(v, "later returns", after.Copies-before.Copies, 12)
	equal(v, "foreign", after.Foreign, before.Foreign)
	v.equalCall("twice", 100, 100) // more activations than instances: some are missed
	equal(v, "foreign", v.e.Totals(-1).Foreign, before.Foreign)
	v.unregisterRet(r)
	v.equalCall("twice", 3, 3)
}

// testTasks: tasks are switched out inside the function, and resume in another
// order, on another vCPU.
func testTasks(v *env) {
	const tasks = 6
	results := map[uint64]uint64{}
	cpus := map[int]int{}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: tasks, DataSize: 8,
		Entry: func(c *probe.Context) int {
			le.PutUint64(c.Data, c.Regs.RDI)
			return 0
		},
		Return: func(c *probe.Context) {
			results[le.Uint64(c.Data)] = c.Regs.RAX
			cpus[c.CPU]++
		},
	}
	park := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_park"}, MaxActive: tasks}
	v.registerRet(r, park)
	for i := range uint64(tasks) {
		equal(v, "co_begin", v.call("co_begin", i, 1000+i), 1)
	}
	info, _ := v.e.Info(&r.Kprobe)
	equal(v, "in use while all are parked", info.InUse, tasks)
	for _, i := range []uint64{3, 0, 5, 1, 4, 2} {
		got, err := v.h.Call(int(i%2), v.addr("co_resume"), i)
		if err != nil {
			v.Fatal(err)
		}
		equal(v, "co_resume", got, 1100+i)
		equal(v, "result of the activation", results[1000+i], 1100+i)
	}
	equal(v, "returns on vCPU 0", cpus[0], 3)
	equal(v, "returns on vCPU 1", cpus[1], 3)
	equal(v, "missed", v.stats(&r.Kprobe).Missed, 0)
	equal(v, "missed in co_park", v.stats(&park.Kprobe).Missed, 0)
	v.unregisterRet(r, park)
}

// testKilledTask: a task that never resumes keeps its instance until another
// task reuses its stack.
func testKilledTask(v *env) {
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: 1}
	v.registerRet(r)
	for i := range uint64(5) {
		equal(v, "co_begin", v.call("co_begin", 0, i), 1)
	}
	s := v.stats(&r.Kprobe)
	equal(v, "handled", s.Handled, 5)
	equal(v, "missed", s.Missed, 0)
	// Another task, while that one is parked and may resume: no instance.
	equal(v, "co_begin", v.call("co_begin", 1, 50), 1)
	equal(v, "missed", v.stats(&r.Kprobe).Missed, 1)
	equal(v, "co_resume", v.call("co_resume", 0), 104)
	equal(v, "co_resume", v.call("co_resume", 1), 150)
	s = v.stats(&r.Kprobe)
	equal(v, "returns", s.Returns, 1)
	v.unregisterRet(r)
}

// testOutstanding: activations outlive their kretprobe, and return as if it had
// never been; their instances are used again by later probes.
func testOutstanding(v *env) {
	returns := 0
	for round := range 50 {
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: 3, Return: func(*probe.Context) { returns++ }}
		v.registerRet(r)
		for i := range uint64(3) {
			equal(v, "co_begin", v.call("co_begin", i, i), 1)
		}
		v.unregister(&r.Kprobe)
		var again *probe.Kretprobe
		if round%2 == 1 {
			again = &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: 3}
			v.registerRet(again)
		}
		for i := range uint64(3) {
			got, err := v.h.Call(int(i)%2, v.addr("co_resume"), i)
			if err != nil {
				v.Fatal(err)
			}
			equal(v, "co_resume", got, 100+i)
		}
		if again != nil {
			equal(v, "returns of the new probe", v.stats(&again.Kprobe).Returns, 0)
			v.unregisterRet(again)
		}
	}
	equal(v, "return handlers", returns, 0)
}

// testClosedOutstanding: even a closed engine lets activations return.
func testClosedOutstanding(v *env) {
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, Return: func(*probe.Context) { v.Error("the return handler ran") }}
	v.registerRet(r)
	equal(v, "co_begin", v.call("co_begin", 0, 7), 1)
	if err := v.e.Close(); err != nil {
		v.Fatal(err)
	}
	equal(v, "co_resume", v.call("co_resume", 0), 107)
}

func testKretprobeUser(v *env) {
	var got []uint64
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "u_hot"}, Return: func(c *probe.Context) {
		got = append(got, c.Regs.RAX)
		equal(v, "CPL", c.CPL, 3)
		equal(v, "RIP", guest.GVA(c.Regs.RIP), c.Ret)
		pcs := make([]guest.GVA, 8)
		if n := c.Stack(pcs); n < 2 || pcs[0] != c.Ret || pcs[1] != v.addr("user_exit") {
			v.Errorf("stack of user code: %v", pcs[:n])
		}
	}}
	v.registerRet(r)
	equal(v, "u_frame", v.call("enter_user", uint64(v.addr("u_frame")), 5, 100, 0), 107)
	if !slices.Equal(got, []uint64{6, 7}) {
		v.Errorf("results at CPL3: %v, want 6 and 7", got)
	}
	v.unregisterRet(r)
}

// stackAt returns the stack that a handler sees.
func stackAt(c *probe.Context) []guest.GVA {
	pcs := make([]guest.GVA, 16)
	return pcs[:c.Stack(pcs)]
}

func testStack(v *env) {
	r1, r0 := v.addr("stack_r1"), v.addr("stack_r0")
	var plain, traced []guest.GVA
	p := &probe.Kprobe{Symbol: "stack_internal", Pre: func(c *probe.Context) int {
		plain = stackAt(c)
		return 0
	}}
	v.register(p)
	v.equalCall("stack_driver", 1, 4)
	if len(plain) < 3 || plain[0] != v.addr("stack_internal") || plain[1] != r0 || plain[2] != r1 {
		v.Fatalf("unprobed stack: %v, want stack_internal, %v, %v", plain, r0, r1)
	}
	seen := false
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "stack_target"}, Return: func(c *probe.Context) {
		seen = true
		traced = stackAt(c)
		equal(v, "where it returns to", c.Ret, r1)
		equal(v, "retval", c.Regs.RAX, 3)
	}}
	v.registerRet(r)
	inside := plain
	v.equalCall("stack_driver", 1, 4)
	if !slices.Equal(plain, inside) {
		v.Errorf("stack inside a probed function: %v, want %v", plain, inside)
	}
	if !seen || len(traced) == 0 || traced[0] != r1 {
		v.Errorf("stack in the return handler: %v, want %v first", traced, r1)
	}
	v.unregisterRet(r)
	v.unregister(p)
}

func testNestedStack(v *env) {
	r1, r0 := v.addr("stack_r1"), v.addr("stack_r0")
	n := 0
	outer := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "stack_target"}, Return: func(c *probe.Context) {
		n++
		equal(v, "where stack_target returns to", c.Ret, r1)
		if s := stackAt(c); len(s) == 0 || s[0] != r1 {
			v.Errorf("stack: %v, want %v first", s, r1)
		}
	}}
	inner := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "stack_internal"}, Return: func(c *probe.Context) {
		n++
		equal(v, "where stack_internal returns to", c.Ret, r0)
		if s := stackAt(c); len(s) < 2 || s[0] != r0 || s[1] != r1 {
			v.Errorf("stack: %v, want %v, %v first", s, r0, r1)
		}
	}}
	v.registerRet(outer, inner)
	v.equalCall("stack_driver", 1, 4)
	equal(v, "return handlers", n, 2)
	v.unregisterRet(outer, inner)
}

// testStackEverywhere: at every instruction of a function, with a kretprobe on
// it and on its caller, the stack is the true one. The caller is missing only
// between the function's last pop and its ret, for which the image has no
// information.
func testStackEverywhere(v *env) {
	r1, r0 := v.addr("stack_r1"), v.addr("stack_r0")
	outer := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "stack_target"}}
	inner := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "stack_internal"}}
	v.registerRet(outer, inner)
	offs := v.offsets("stack_internal")
	for i, off := range offs {
		want := []guest.GVA{v.addr("stack_internal") + guest.GVA(off), r0, r1}
		if i == len(offs)-1 {
			want = slices.Delete(want, 1, 2)
		}
		n := 0
		p := &probe.Kprobe{Symbol: "stack_internal", Offset: off, Pre: func(c *probe.Context) int {
			n++
			if s := stackAt(c); len(s) < len(want) || !slices.Equal(s[:len(want)], want) {
				v.Errorf("stack at stack_internal+%#x: %v, want %v first", off, s, want)
			}
			return 0
		}}
		v.register(p)
		v.equalCall("stack_driver", 1, 4)
		equal(v, "hits", n, 1)
		v.unregister(p)
	}
	v.unregisterRet(outer, inner)
}
