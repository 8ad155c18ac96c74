package probetest

import "github.com/guestprobe/guestprobe/probe"

// testDeadTask: where a guest profile tells whose a stack is, the activations of a
// task that is gone are given back although nobody uses its stack again, and
// never those of one that is there.
func testDeadTask(v *env) {
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: 2}
	v.registerRet(r)
	inUse := func(what string, want int) {
		v.Helper()
		for range 3 {
			i, _ := v.e.Info(&r.Kprobe)
			equal(v, "in use "+what, i.InUse, want)
		}
	}
	begin := func(i, pid uint64) {
		v.Helper()
		v.call("co_own", i, pid)
		equal(v, "co_begin", v.call("co_begin", i, 10*i), 1)
	}
	begin(0, 7)
	begin(1, 8)
	inUse("while both are parked", 2)
	v.call("co_disown", 0)
	inUse("without the first", 1)
	begin(2, 9)
	inUse("with a third", 2)
	v.call("co_own", 2, 10) // another task has its stack
	inUse("without the third", 1)
	begin(3, 11)
	v.call("co_disown", 3)
	// No look at the listing in between: found when there is no free instance.
	begin(4, 12)
	inUse("with a fifth", 2)
	equal(v, "co_resume", v.call("co_resume", 1), 110)
	equal(v, "co_resume", v.call("co_resume", 4), 140)
	inUse("at the end", 0)
	s := v.stats(&r.Kprobe)
	equal(v, "handled", s.Handled, 5)
	equal(v, "returns", s.Returns, 2)
	equal(v, "abandoned", s.Abandoned, 3)
	equal(v, "missed", s.Missed, 0)
	for i := range uint64(5) {
		v.call("co_disown", i)
	}
	v.unregisterRet(r)
}

// testUnwound: where a guest profile tells the bounds of a stack, activations that
// a task has jumped out of are given back as soon as it is seen above them, with
// their trampolines still in place.
func testUnwound(v *env) {
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "jump_deep"}, MaxActive: 6}
	v.registerRet(r)
	v.call("co_own", 5, 20)
	over := uint64(v.addr("jump_over"))
	inUse := func(what string, want int) {
		v.Helper()
		i, _ := v.e.Info(&r.Kprobe)
		equal(v, "in use "+what, i.InUse, want)
	}
	for range 3 {
		equal(v, "jump_over", v.call("co_call", 5, over, 6), 77)
		inUse("behind a jump out of six calls", 6)
		equal(v, "jump_over", v.call("co_call", 5, over, 1), 77)
		inUse("behind a jump out of the outermost", 1)
	}
	equal(v, "missed", v.stats(&r.Kprobe).Missed, 0)
	v.call("co_disown", 5)
	inUse("without the task", 0)
	s := v.stats(&r.Kprobe)
	equal(v, "handled", s.Handled, 21)
	equal(v, "abandoned", s.Abandoned, 21)
	v.unregisterRet(r)
}

// testReturnsTwiceLater: the second return of a function comes when its kretprobe
// is long gone, and others have come and gone, with and without activations: it
// finds where to go on, and again when it was known that the function returns
// twice.
func testReturnsTwiceLater(v *env) {
	const task = 6
	others := func() {
		v.Helper()
		for range 12 {
			a := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot"}}
			b := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "recurse"}, MaxActive: 8}
			v.registerRet(a, b)
			v.equalCall("hot", 5, 6)
			v.equalCall("recurse", 9, sum(9))
			v.unregisterRet(a, b)
		}
	}
	for _, max := range []int{1, 10} {
		r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "set_jump"}, MaxActive: max}
		v.call("co_own", task, 30)
		before := v.e.Totals(-1)
		v.registerRet(r)
		equal(v, "co_twice", v.call("co_twice", task), 1)
		v.unregisterRet(r)
		others()
		equal(v, "second return, behind others", v.call("co_resume", task), 88)

		r.Addr = 0
		v.registerRet(r)
		equal(v, "co_twice", v.call("co_twice", task), 1)
		equal(v, "second return", v.call("co_resume", task), 88)
		equal(v, "co_twice", v.call("co_twice", task), 1)
		v.unregisterRet(r)
		others()
		others()
		equal(v, "second return of a function that is known for it", v.call("co_resume", task), 88)
		after := v.e.Totals(-1)
		equal(v, "later returns", after.Copies-before.Copies, 3)
		equal(v, "foreign", after.Foreign, before.Foreign)
		v.call("co_disown", task)
	}
}
