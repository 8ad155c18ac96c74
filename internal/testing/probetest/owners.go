package probetest

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// testDeadTask: a guest profile identifies the owner of a stack. The activations
// of a task that is gone are freed even if its stack is not reused. The
// activations of a live task are never freed.
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
	// The listing is not read in between: the task is found when there is no free
	// instance.
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

// testUnwound: a guest profile shows the bounds of a stack. Activations that a
// task has jumped out of are freed as soon as the task is seen above them, with
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
		inUse("after a jump out of six calls", 6)
		equal(v, "jump_over", v.call("co_call", 5, over, 1), 77)
		inUse("after a jump out of the outermost", 1)
	}
	equal(v, "missed", v.stats(&r.Kprobe).Missed, 0)
	v.call("co_disown", 5)
	inUse("without the task", 0)
	s := v.stats(&r.Kprobe)
	equal(v, "handled", s.Handled, 21)
	equal(v, "abandoned", s.Abandoned, 21)
	v.unregisterRet(r)
}

// testReturnsTwiceLater: the second return of a function comes when its
// kretprobe is long gone, and others have come and gone, with and without
// activations. It finds where to continue, also when it was known that the
// function returns twice.
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
		equal(v, "second return, after others", v.call("co_resume", task), 88)

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

// testUndecided: a value that could be the SS of an interrupt frame, from
// between a return and the trampoline's int3, leaves an activation in use until
// a stopped world shows that there is no such frame. If there is one, the task
// returns.
func testUndecided(v *env) {
	var slot guest.GVA
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, Entry: func(c *probe.Context) int {
		slot = guest.GVA(c.Regs.RSP)
		return 0
	}}
	v.registerRet(r)
	put := func(off int, x uint64) {
		v.Helper()
		if err := v.h.Write(slot+guest.GVA(off), le.AppendUint64(nil, x)); err != nil {
			v.Fatal(err)
		}
	}
	for i, c := range []struct {
		what              string
		word              uint64
		frame             bool // of an interrupt at the trampoline
		after             uint64
		undecided, atLast bool // in use while the guest runs, and after Reclaim
	}{
		{what: "a null selector", word: 0, undecided: true},
		{what: "a selector", word: 0x10, undecided: true},
		{what: "the largest selector", word: 0xfffc, undecided: true},
		{what: "more than a selector", word: 0x10000},
		{what: "a selector of another privilege", word: 0x282},
		{what: "a frame at the trampoline", word: 0x10, frame: true, undecided: true, atLast: true},
		{what: "a frame after its int3", word: 0, frame: true, after: 1, undecided: true, atLast: true},
		{what: "a frame elsewhere", word: 0, frame: true, after: 2, undecided: true},
	} {
		equal(v, "co_begin", v.call("co_begin", 0, uint64(i)), 1)
		tramp := le.Uint64(v.bytes(slot, 8))
		saved := v.bytes(slot-32, 32)
		if c.frame {
			for off, x := range []uint64{tramp + c.after, 0x08, 0x2, uint64(slot) + 8} {
				put(-32+8*off, x)
			}
		}
		put(0, c.word)
		before := v.stats(&r.Kprobe).Abandoned
		for _, last := range []bool{false, true} {
			if last {
				if err := v.e.Reclaim(); err != nil {
					v.Fatal(err)
				}
			}
			want := 0
			if !last && c.undecided || last && c.atLast {
				want = 1
			}
			in, _ := v.e.Info(&r.Kprobe)
			equal(v, fmt.Sprintf("%s: in use, world stopped %v", c.what, last), in.InUse, want)
			equal(v, fmt.Sprintf("%s: undecided, world stopped %v", c.what, last), v.e.Undecided(), want == 1)
		}
		if !c.atLast {
			equal(v, c.what+": abandoned", v.stats(&r.Kprobe).Abandoned, before+1)
			continue
		}
		// The interrupt is over. For the guest, the memory that it has overwritten is dead.
		// It is restored here because the task is really elsewhere.
		if err := v.h.Write(slot-32, saved); err != nil {
			v.Fatal(err)
		}
		put(0, tramp)
		equal(v, c.what+": co_resume", v.call("co_resume", 0), 100+uint64(i))
	}
	s := v.stats(&r.Kprobe)
	equal(v, "returns", s.Returns, 2)
	equal(v, "handled", s.Handled, 8)
	v.unregisterRet(r)
}
