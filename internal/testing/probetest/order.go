package probetest

import (
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// orderCases are about several probes on one site (kprobes part E, H.4 item 3).
var orderCases = []testCase{
	{name: "order_and_stop", run: func(v *env) { testOrder(v, "hot") }},
	{name: "order_and_stop_slot", run: func(v *env) { testOrder(v, "hot_load") }},
	{name: "missed_by_all_children", needs: []Capability{CanNest}, run: testMissedChildren},
	{name: "filter", run: testFilter},
	{name: "post_comes_and_goes", run: testPostComesAndGoes},
}

// trace records the order of handlers.
type trace struct{ events []string }

func (t *trace) pre(n int, result func() int) func(*probe.Context) int {
	return func(*probe.Context) int {
		t.events = append(t.events, fmt.Sprintf("pre%d", n))
		if result == nil {
			return 0
		}
		return result()
	}
}

func (t *trace) post(n int) func(*probe.Context) {
	return func(*probe.Context) { t.events = append(t.events, fmt.Sprintf("post%d", n)) }
}

// take returns the recorded events, and forgets them.
func (t *trace) take() []string {
	e := t.events
	t.events = nil
	return e
}

// want compares the recorded events.
func (t *trace) want(v *env, what string, want ...string) {
	v.Helper()
	if got := t.take(); !slices.Equal(got, want) {
		v.Errorf("%s: ran %v, want %v", what, got, want)
	}
}

func testOrder(v *env, f string) {
	var tr trace
	want := v.call(f, 5)
	stop := 0
	ps := make([]*probe.Kprobe, 4)
	for i := range 3 {
		ps[i] = &probe.Kprobe{Name: fmt.Sprint(i), Symbol: f, Pre: tr.pre(i, nil)}
	}
	ps[2].Pre = tr.pre(2, func() int { return stop })
	v.register(ps[:3]...)
	equal(v, f, v.call(f, 5), want)
	tr.want(v, "three children", "pre2", "pre1", "pre0")

	ps[3] = &probe.Kprobe{Name: "3", Symbol: f, Pre: tr.pre(3, nil), Post: tr.post(3)}
	v.register(ps[3])
	equal(v, f, v.call(f, 5), want)
	tr.want(v, "a fourth with post", "pre3", "pre2", "pre1", "pre0", "post3")

	if err := v.e.Disable(ps[1]); err != nil {
		v.Fatalf("disable: %v", err)
	}
	equal(v, f, v.call(f, 5), want)
	tr.want(v, "one disabled", "pre3", "pre2", "pre0", "post3")
	if err := v.e.Enable(ps[1]); err != nil {
		v.Fatalf("enable: %v", err)
	}

	// Nonzero from 2: it redirects to the caller, as if the function had
	// returned 77. The older ones are not asked, no post handler runs.
	stop = 1
	ps2 := ps[2].Pre
	redirect := &probe.Kprobe{Name: "r", Symbol: f, Pre: func(c *probe.Context) int {
		r := ps2(c)
		ret(v, c, 77)
		return r
	}}
	v.unregister(ps[2], ps[3])
	ps[3].Addr = 0
	v.register(redirect)
	v.register(ps[3])
	equal(v, f+" redirected", v.call(f, 5), 77)
	tr.want(v, "stopped", "pre3", "pre2")
	equal(v, "skipped", v.stats(ps[0]).Skipped, 1)
	equal(v, "hits of a skipped probe", v.stats(ps[0]).Hits, 3)
	v.unregister(ps[0], ps[1], ps[3], redirect)
}

// ret makes the probed function return x at once. The probe is at its entry.
func ret(v *env, c *probe.Context, x uint64) {
	var b [8]byte
	if err := c.Read(guest.GVA(c.Regs.RSP), b[:]); err != nil {
		v.Errorf("read the return address: %v", err)
	}
	c.Regs.RIP = 0
	for i := 7; i >= 0; i-- {
		c.Regs.RIP = c.Regs.RIP<<8 | uint64(b[i])
	}
	c.Regs.RSP += 8
	c.Regs.RAX = x
}

// testMissedChildren: a hit from inside a handler counts as missed for every
// probe of the site, disabled or not, and its instruction is executed.
func testMissedChildren(v *env) {
	inner := v.addr("hot_load")
	var got uint64
	outer := &probe.Kprobe{Name: "outer", Symbol: "hot", Pre: func(c *probe.Context) int {
		r, err := c.Call(inner, 100)
		if err != nil {
			v.Errorf("call: %v", err)
		}
		got = r
		return 0
	}}
	a := &probe.Kprobe{Name: "a", Symbol: "hot_load", Post: func(*probe.Context) {}}
	b := &probe.Kprobe{Name: "b", Symbol: "hot_load", Disabled: true}
	v.register(outer, a, b)
	equal(v, "hot", v.call("hot", 1), 2)
	equal(v, "hot_load called by the handler", got, 107)
	equal(v, "outer", v.stats(outer), probe.Stats{Hits: 1, Handled: 1})
	equal(v, "enabled child", v.stats(a), probe.Stats{Hits: 1, Missed: 1, SecondExits: v.stats(a).SecondExits})
	equal(v, "disabled child", v.stats(b), probe.Stats{Hits: 1, Missed: 1, SecondExits: v.stats(b).SecondExits})
	equal(v, "hot_load itself", v.call("hot_load", 1), 8)
	equal(v, "enabled child afterwards", v.stats(a).Handled, 1)
	v.unregister(outer, a, b)
}

func testFilter(v *env) {
	var tr trace
	even := func(c *probe.Context) bool { return c.Regs.RDI%2 == 0 }
	a := &probe.Kprobe{Name: "a", Symbol: "hot_load", Filter: even, Pre: tr.pre(0, nil), Post: tr.post(0)}
	b := &probe.Kprobe{Name: "b", Symbol: "hot_load", Pre: tr.pre(1, nil), Post: tr.post(1)}
	v.register(a, b)
	equal(v, "hot_load", v.call("hot_load", 3), 10)
	tr.want(v, "filtered", "pre1", "post1")
	equal(v, "hot_load", v.call("hot_load", 4), 11)
	tr.want(v, "not filtered", "pre1", "pre0", "post1", "post0")
	s := v.stats(a)
	equal(v, "hits", s.Hits, 2)
	equal(v, "handled", s.Handled, 1)
	equal(v, "filtered", s.Filtered, 1)
	v.unregister(b)
	before := v.e.Totals(-1)
	v.call("hot_load", 3)
	tr.want(v, "filtered, alone")
	equal(v, "second exits for a filtered hit", v.e.Totals(-1).Stepped-before.Stepped, 0)
	v.unregister(a)
}

// testPostComesAndGoes: the slot with a trailing int3 is used only while some
// probe wants to see the end of the instruction.
func testPostComesAndGoes(v *env) {
	pre := &probe.Kprobe{Symbol: "hot_load", Pre: nop}
	post := &probe.Kprobe{Symbol: "hot_load", Post: func(*probe.Context) {}}
	exits := func(what string, boosted, stepped uint64) {
		v.Helper()
		before := v.e.Totals(-1)
		equal(v, what, v.call("hot_load", 1), 8)
		after := v.e.Totals(-1)
		equal(v, what+": boosted", after.Boosted-before.Boosted, boosted)
		equal(v, what+": stepped", after.Stepped-before.Stepped, stepped)
	}
	v.register(pre)
	exits("pre only", 1, 0)
	v.register(post)
	exits("with post", 0, 1)
	if err := v.e.Disable(post); err != nil {
		v.Errorf("disable: %v", err)
	}
	exits("post disabled", 1, 0)
	if err := v.e.Enable(post); err != nil {
		v.Errorf("enable: %v", err)
	}
	exits("post enabled", 0, 1)
	v.unregister(post)
	exits("post gone", 1, 0)
	v.unregister(pre)
}
