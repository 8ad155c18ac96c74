package probetest

import (
	"bytes"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// taskStack is the size of the stacks of the suite's tasks.
const taskStack = 4096

// copyTask copies the stack of the parked task from to the stack of task to, and
// adjusts all words that point into it, like a runtime that grows stacks. With
// move, the contents of the old stack are overwritten.
func (v *env) copyTask(from, to uint64, move bool) {
	v.Helper()
	stacks, tasks := v.addr("co_stacks"), v.addr("co_task")
	old, now := stacks+guest.GVA(from*taskStack), stacks+guest.GVA(to*taskStack)
	b, sp := make([]byte, taskStack), make([]byte, 8)
	if err := v.h.Read(old, b); err != nil {
		v.Fatal(err)
	}
	if err := v.h.Read(tasks+guest.GVA(8*from), sp); err != nil {
		v.Fatal(err)
	}
	off := le.Uint64(sp) - uint64(old)
	for at := off; at < taskStack; at += 8 {
		if w := le.Uint64(b[at:]); w-uint64(old) < taskStack {
			le.PutUint64(b[at:], w-uint64(old)+uint64(now))
		}
	}
	le.PutUint64(b[off+40:], to) // RBX, which says whose stack it is: see co_begin
	le.PutUint64(sp, uint64(now)+off)
	for _, w := range []struct {
		at guest.GVA
		b  []byte
	}{{now, b}, {tasks + guest.GVA(8*to), sp}} {
		if err := v.h.Write(w.at, w.b); err != nil {
			v.Fatal(err)
		}
	}
	if move {
		if err := v.h.Write(old, bytes.Repeat([]byte{0xad}, taskStack)); err != nil {
			v.Fatal(err)
		}
	}
}

// trackReturns returns a kretprobe on co_body whose return handler checks the result, and counts.
func (v *env) trackReturns(max int) (*probe.Kretprobe, *int) {
	n := new(int)
	return &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_body"}, MaxActive: max, DataSize: 8,
		Entry: func(c *probe.Context) int {
			le.PutUint64(c.Data, c.Regs.RDI)
			return 0
		},
		Return: func(c *probe.Context) {
			*n++
			equal(v, "result of an activation", c.Regs.RAX, 100+le.Uint64(c.Data))
		},
	}, n
}

// testMovedStack: calls whose stack is moved while they are under way return on the new one,
// several times and on any vCPU, and their handlers run.
func testMovedStack(v *env) {
	r, n := v.trackReturns(3)
	park := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "co_park"}, MaxActive: 3}
	v.registerRet(r, park)
	before := v.e.Totals(-1)
	for round := range uint64(40) {
		equal(v, "co_begin", v.call("co_begin", 0, round), 1)
		v.copyTask(0, 1, true)
		if round%2 == 1 {
			v.copyTask(1, 2, true)
			v.copyTask(2, 1, true)
		}
		got, err := v.h.Call(int(round%2), v.addr("co_resume"), 1)
		if err != nil {
			v.Fatal(err)
		}
		equal(v, "co_resume", got, 100+round)
	}
	equal(v, "return handlers", *n, 40)
	for _, r := range []*probe.Kretprobe{r, park} {
		s := v.stats(&r.Kprobe)
		equal(v, "handled", s.Handled, 40)
		equal(v, "returns", s.Returns, 40)
	}
	after := v.e.Totals(-1)
	equal(v, "foreign", after.Foreign, before.Foreign)
	equal(v, "later returns", after.Copies, before.Copies)
	v.unregisterRet(r, park)
}

// testMovedUnseen: a call that was taken for one that never returns, because its
// place on the stack holds something else, still returns, and counts as
// returned.
func testMovedUnseen(v *env) {
	r, n := v.trackReturns(1)
	v.registerRet(r)
	for round := range uint64(3) {
		equal(v, "co_begin", v.call("co_begin", 0, round), 1)
		v.copyTask(0, 1, true)
		for range 2 {
			i, _ := v.e.Info(&r.Kprobe)
			want := 0
			if round > 0 { // this guest is known to move stacks: only a look at all memory tells
				want = 1
			}
			equal(v, "in use", i.InUse, want)
		}
		if err := v.e.Reclaim(); err != nil {
			v.Fatal(err)
		}
		equal(v, "co_resume", v.call("co_resume", 1), 100+round)
	}
	equal(v, "return handlers", *n, 3)
	s := v.stats(&r.Kprobe)
	equal(v, "returns", s.Returns, 3)
	equal(v, "abandoned", s.Abandoned, 0)

	// A task that is gone for good is still found.
	equal(v, "co_begin", v.call("co_begin", 0, 9), 1)
	v.copyTask(0, 1, true)
	if err := v.h.Write(v.addr("co_stacks"), make([]byte, 2*taskStack)); err != nil {
		v.Fatal(err)
	}
	if err := v.e.Reclaim(); err != nil {
		v.Fatal(err)
	}
	s = v.stats(&r.Kprobe)
	equal(v, "abandoned", s.Abandoned, 1)
	v.unregisterRet(r)
}

// testCopiedStack: of several copies of a stack each returns where it should, the first with
// the handler.
func testCopiedStack(v *env) {
	r, n := v.trackReturns(2)
	v.registerRet(r)
	before := v.e.Totals(-1)
	for round := range uint64(10) {
		equal(v, "co_begin", v.call("co_begin", 0, round), 1)
		for i := range uint64(3) {
			v.copyTask(0, 1+i, false)
		}
		for _, i := range []uint64{2, 0, 3, 1} {
			got, err := v.h.Call(int(i%2), v.addr("co_resume"), i)
			if err != nil {
				v.Fatal(err)
			}
			equal(v, "co_resume", got, 100+round)
		}
		equal(v, "return handlers", *n, int(round)+1)
	}
	after := v.e.Totals(-1)
	equal(v, "later returns", after.Copies-before.Copies, 30)
	equal(v, "foreign", after.Foreign, before.Foreign)
	v.unregisterRet(r)
}

// testCopyKept: a return address that the guest keeps in a jump buffer stays
// valid as long as the guest keeps it, regardless of how many calls there were
// from other places, and after the probe is gone. Records for return addresses
// that the guest no longer holds are reused by other calls.
func testCopyKept(v *env) {
	returns := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "set_jump"}, MaxActive: 1, Return: func(*probe.Context) { returns++ }}
	v.registerRet(r)
	v.call("co_twice", 0)
	v.call("co_twice", 1)
	for range 3 {
		v.call("many_sites")
		v.call("fill_stack", 0)
		if err := v.e.Reclaim(); err != nil {
			v.Fatal(err)
		}
	}
	s := v.stats(&r.Kprobe)
	equal(v, "calls", s.Hits, 302)
	equal(v, "return handlers", uint64(returns), s.Handled)
	if s.Handled < 120 {
		v.Errorf("%d calls were followed, and %d missed", s.Handled, s.Missed)
	}
	equal(v, "co_resume", v.call("co_resume", 0), 88)
	v.unregister(&r.Kprobe)
	if err := v.e.Collect(); err != nil {
		v.Fatal(err)
	}
	equal(v, "co_resume", v.call("co_resume", 1), 88)
}

// testMovedTail: a function that is entered by a jump from one whose stack was moved is
// followed as well, and both return.
func testMovedTail(v *env) {
	var got []string
	on := func(f string) *probe.Kretprobe {
		return &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: f}, Return: func(c *probe.Context) {
			got = append(got, f)
			equal(v, "result of "+f, c.Regs.RAX, 31)
		}}
	}
	a, b := on("co_tail"), on("tail_end")
	v.registerRet(a, b)
	for range 5 {
		got = nil
		equal(v, "co_start", v.call("co_start", 0, uint64(v.addr("co_tail")), 30), 1)
		v.copyTask(0, 1, true)
		equal(v, "co_resume", v.call("co_resume", 1), 31)
		if !slices.Equal(got, []string{"tail_end", "co_tail"}) {
			v.Errorf("return handlers of %v, want tail_end, co_tail", got)
		}
	}
	v.unregisterRet(a, b)
}
