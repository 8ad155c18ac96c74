package probetest

import (
	"errors"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// handlerCases are about the data and the operations of handlers.
var handlerCases = []testCase{
	{name: "registers_seen", run: testRegistersSeen},
	{name: "registers_changed", run: testRegistersChanged},
	{name: "handler_panic", run: testPanic},
	{name: "handler_bad_address", run: testBadAddress},
	{name: "engine_from_handler", run: testEngineFromHandler},
	{name: "interrupt_flag", run: testInterruptFlag},
	{name: "in_place", needs: []Capability{CanInPlace}, run: testInPlace},
}

// testRegistersSeen: pre sees RIP one after the probe, post the address of the
// next instruction, however the instruction is run. With emulation, post sees a
// branch's target.
func testRegistersSeen(v *env) {
	for _, s := range []struct {
		f      string
		off    int // index of the instruction
		next   int // index of the one after it
		reason string
	}{
		{"hot", 0, 1, "emulated"},
		{"hot_load", 0, 1, "stepped"},
		{"kprobe_target2", 2, -1, "call"},
		{"e_jmpreg", 1, 3, "jump"},
	} {
		offs := v.offsets(s.f)
		at := v.addr(s.f) + guest.GVA(offs[s.off])
		next := v.addr("kprobe_target")
		if s.next >= 0 {
			next = v.addr(s.f) + guest.GVA(offs[s.next])
		}
		var pre, post, addr guest.GVA
		var cpl uint8
		p := &probe.Kprobe{Symbol: s.f, Offset: offs[s.off],
			Pre: func(c *probe.Context) int {
				pre, addr, cpl = guest.GVA(c.Regs.RIP), c.Addr, c.CPL
				return 0
			},
			Post: func(c *probe.Context) { post = guest.GVA(c.Regs.RIP) },
		}
		v.register(p)
		v.call(s.f, 9)
		equal(v, s.reason+": RIP in pre", pre, at+1)
		equal(v, s.reason+": RIP in post", post, next)
		equal(v, s.reason+": Addr", addr, at)
		equal(v, s.reason+": CPL", cpl, 0)
		v.unregister(p)
	}
}

func testRegistersChanged(v *env) {
	p := &probe.Kprobe{Symbol: "hot", Pre: func(c *probe.Context) int {
		c.Regs.RDI = 1000
		c.Regs.RIP = 0xbad // of no effect: the result is zero
		return 0
	}}
	v.register(p)
	equal(v, "hot with another argument", v.call("hot", 1), 1001)
	v.unregister(p)

	for _, f := range []string{"hot", "hot_load"} {
		q := &probe.Kprobe{Symbol: f, Post: func(c *probe.Context) { c.Regs.RAX = 500 }}
		v.register(q)
		want := uint64(500)
		if f == "hot_load" {
			want = 501 // rdi is added afterwards
		}
		equal(v, f+" with another result", v.call(f, 1), want)
		v.unregister(q)
	}

	// Memory, too.
	w := &probe.Kprobe{Symbol: "f_boost", Pre: func(c *probe.Context) int {
		if err := c.Write(guest.GVA(c.Regs.RDI), []byte{100, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			v.Errorf("write: %v", err)
		}
		return 0
	}}
	v.register(w)
	equal(v, "f_boost after a handler's write", v.call("f_boost", uint64(v.addr("scratch2"))), 105)
	v.unregister(w)
}

func testPanic(v *env) {
	boom := func() { panic("boom") }
	for _, f := range []string{"hot", "hot_load"} {
		p := &probe.Kprobe{Name: "panics", Symbol: f,
			Pre:  func(*probe.Context) int { boom(); return 1 },
			Post: func(*probe.Context) { boom() },
		}
		q := &probe.Kprobe{Name: "filter panics", Symbol: f, Filter: func(*probe.Context) bool { boom(); return true }}
		n := 0
		r := &probe.Kprobe{Name: "fine", Symbol: f, Pre: func(*probe.Context) int { n++; return 0 }}
		v.register(p, q, r)
		want := map[string]uint64{"hot": 2, "hot_load": 8}[f]
		equal(v, f, v.call(f, 1), want)
		equal(v, f, v.call(f, 1), want)
		equal(v, "panics", v.stats(p).Panics, 4)
		equal(v, "handled", v.stats(p).Handled, 2)
		equal(v, "panics of the filter", v.stats(q).Panics, 2)
		equal(v, "filtered", v.stats(q).Filtered, 2)
		equal(v, "panics of a good handler", v.stats(r).Panics, 0)
		equal(v, "hits of a good handler", n, 2)
		v.unregister(p, q, r)
	}
}

func testBadAddress(v *env) {
	var errs [3]error
	p := &probe.Kprobe{Symbol: "hot", Pre: func(c *probe.Context) int {
		var b [8]byte
		errs[0] = c.Read(0xdead_0000, b[:])
		errs[1] = c.Write(1<<62, b[:])
		errs[2] = c.Read(guest.GVA(c.Regs.RSP), b[:])
		return 0
	}}
	v.register(p)
	equal(v, "hot", v.call("hot", 1), 2)
	equal(v, "bad read fails", errs[0] != nil, true)
	equal(v, "bad write fails", errs[1] != nil, true)
	equal(v, "good read", errs[2], nil)
	equal(v, "bad accesses", v.stats(p).BadAccesses, 2)
	v.unregister(p)
}

// testEngineFromHandler: methods that wait for handlers fail when they are
// called from one, and listing works there.
func testEngineFromHandler(v *env) {
	other := &probe.Kprobe{Symbol: "hot_load"}
	var errs [6]error
	listed := 0
	p := &probe.Kprobe{Symbol: "hot"}
	p.Pre = func(c *probe.Context) int {
		errs = [...]error{v.e.Register(other), v.e.Unregister(p), v.e.Enable(p), v.e.Disable(p), v.e.DisarmAll(), v.e.Close()}
		listed = len(v.e.List())
		return 0
	}
	v.register(p)
	equal(v, "hot", v.call("hot", 1), 2)
	for i, err := range errs {
		if !errors.Is(err, probe.ErrInHandler) || !errors.Is(err, syscall.EDEADLK) {
			v.Errorf("call %d from a handler: got %v, want ErrInHandler", i, err)
		}
	}
	equal(v, "probes listed from a handler", listed, 1)
	v.checkArmed("hot", p.Addr, true)
	v.unregister(p)
}

// testInterruptFlag: IF is the same as without probes, before, in and after
// every instruction, however it is run.
func testInterruptFlag(v *env) {
	for _, f := range []struct {
		name string
		want uint64
	}{{"f_sti", 0b1010}, {"f_if_load", 3}} {
		equal(v, f.name+" without probes", v.call(f.name), f.want)
		var ps []*probe.Kprobe
		for _, off := range v.offsets(f.name) {
			p := &probe.Kprobe{Symbol: f.name, Offset: off, Pre: nop, Post: func(*probe.Context) {}}
			v.register(p)
			equal(v, f.name+" with one probe", v.call(f.name), f.want)
			ps = append(ps, p)
		}
		equal(v, f.name+" with all probes", v.call(f.name), f.want)
		v.unregister(ps...)
	}
}

func testInPlace(v *env) {
	offs := v.offsets("r_far")
	var post guest.GVA
	p := &probe.Kprobe{Symbol: "r_far", Offset: offs[3], Pre: nop}
	q := &probe.Kprobe{Symbol: "r_far", Offset: offs[3], Post: func(c *probe.Context) { post = guest.GVA(c.Regs.RIP) }}
	v.register(p)
	equal(v, "far return", v.call("r_far"), 9)
	v.register(q)
	equal(v, "far return with post", v.call("r_far"), 9)
	equal(v, "RIP in post", post, v.addr("r_far")+guest.GVA(offs[4]))
	equal(v, "counts", v.stats(p), probe.Stats{Hits: 2, Handled: 2, SecondExits: 2})
	equal(v, "in place", v.e.Totals(-1).InPlace, 2)
	v.checkArmed("afterwards", p.Addr, true)
	i, _ := v.e.Info(p)
	equal(v, "plan", i.Plan, "in_place")
	v.unregister(p, q)
}
