package probetest

import (
	"encoding/binary"
	"syscall"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

var le = binary.LittleEndian

// returnCases are about kretprobes. The first are the kernel's own, by name.
var returnCases = []testCase{
	{name: "test_kretprobe", needs: []Capability{CanNest}, run: testKretprobe},
	{name: "test_kretprobes", needs: []Capability{CanNest}, run: testKretprobes},
	{name: "kretprobe_refused", run: testKretprobeRefused},
	{name: "kretprobe_handlers", run: testKretprobeHandlers},
	{name: "kretprobe_order", run: testKretprobeOrder},
	{name: "kretprobe_with_kprobe", run: testKretprobeWithKprobe},
	{name: "kretprobe_missed_in_handler", needs: []Capability{CanNest}, run: testKretprobeInHandler},
	{name: "kretprobe_taken", run: testKretprobeTaken},
}

// registerRet puts kretprobes on or ends the test.
func (v *env) registerRet(rs ...*probe.Kretprobe) {
	v.Helper()
	if err := v.e.Register(probe.Probes(rs)...); err != nil {
		v.Fatalf("register: %v", err)
	}
}

// unregisterRet removes kretprobes, and checks that nothing of theirs is left.
func (v *env) unregisterRet(rs ...*probe.Kretprobe) {
	v.Helper()
	for _, r := range rs {
		v.checkSettled(r)
		v.unregister(&r.Kprobe)
	}
}

// checkSettled checks that no activation of r is under way, and that its counts
// close.
func (v *env) checkSettled(r *probe.Kretprobe) {
	v.Helper()
	i, ok := v.e.Info(&r.Kprobe)
	if !ok {
		v.Fatalf("kretprobe %q is not registered", r.Name)
	}
	s := v.stats(&r.Kprobe)
	if i.InUse != 0 || s.Handled != s.Returns+s.Abandoned {
		v.Errorf("kretprobe %q: %d instances in use; %+v", r.Name, i.InUse, s)
	}
}

func testKretprobe(v *env) {
	rand1 := randomValue(v)
	var k uint64
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "rp", Symbol: "kprobe_target"},
		Entry: func(c *probe.Context) int {
			k = computeRecursed(v, c, rand1)
			return 0
		},
		Return: func(c *probe.Context) {
			equal(v, "retval", c.Regs.RAX, rand1/3)
			equal(v, "what the entry handler left", k, rand1/3)
			k = rand1
		},
	}
	v.registerRet(r)
	equal(v, "kprobe_target", v.call("kprobe_target", rand1), rand1/3)
	v.unregisterRet(r)
	equal(v, "krph_val", k, rand1)
}

func testKretprobes(v *env) {
	rand1 := randomValue(v)
	var k uint64
	entry := func(c *probe.Context) int {
		k = computeRecursed(v, c, rand1)
		return 0
	}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "rp", Symbol: "kprobe_target"}, Entry: entry,
		Return: func(c *probe.Context) {
			equal(v, "retval", c.Regs.RAX, rand1/3)
			k = rand1
		},
	}
	r2 := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "rp2", Symbol: "kprobe_target2"}, Entry: entry,
		Return: func(c *probe.Context) {
			equal(v, "retval of the second", c.Regs.RAX, rand1/3+1)
			equal(v, "what the inner return handler left", k, rand1)
			k = rand1
		},
	}
	v.registerRet(r, r2)
	for _, c := range []struct {
		f    string
		want uint64
	}{{"kprobe_target", rand1 / 3}, {"kprobe_target2", rand1/3 + 1}} {
		k = 0
		equal(v, c.f, v.call(c.f, rand1), c.want)
		equal(v, "krph_val after "+c.f, k, rand1)
	}
	equal(v, "returns", v.stats(&r.Kprobe).Returns, 2)
	equal(v, "returns of the second", v.stats(&r2.Kprobe).Returns, 1)
	v.unregisterRet(r, r2)
}

func testKretprobeRefused(v *env) {
	on := func(p probe.Kprobe) *probe.Kretprobe { return &probe.Kretprobe{Kprobe: p} }
	for _, c := range []struct {
		what  string
		r     *probe.Kretprobe
		code  probe.Code
		errno syscall.Errno
	}{
		{"nil", nil, probe.CodeBothOrNeither, syscall.EINVAL},
		{"neither", on(probe.Kprobe{}), probe.CodeBothOrNeither, syscall.EINVAL},
		{"both", on(probe.Kprobe{Symbol: "hot", Addr: v.addr("hot")}), probe.CodeBothOrNeither, syscall.EINVAL},
		{"no symbol", on(probe.Kprobe{Symbol: "no_such_function"}), probe.CodeSymbolNotFound, syscall.ENOENT},
		{"inside", on(probe.Kprobe{Symbol: "hot", Offset: v.offsets("hot")[1]}), probe.CodeNotEntry, syscall.EINVAL},
		{"inside, by address", on(probe.Kprobe{Addr: v.addr("hot") + guest.GVA(v.offsets("hot")[1])}), probe.CodeNotEntry, syscall.EINVAL},
		{"mid-instruction", on(probe.Kprobe{Symbol: "hot", Offset: 1}), probe.CodeNotEntry, syscall.EINVAL},
		{"4097 bytes of data", &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot"}, DataSize: 4097}, probe.CodeDataSize, syscall.E2BIG},
		{"-1 byte of data", &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot"}, DataSize: -1}, probe.CodeDataSize, syscall.E2BIG},
		{"too many instances", &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "hot"}, MaxActive: 1<<16 + 1}, probe.CodeNoInstances, syscall.ENOMEM},
		{"a pre handler", on(probe.Kprobe{Symbol: "hot", Pre: nop}), probe.CodeHandlers, syscall.EINVAL},
		{"blacklisted", on(probe.Kprobe{Symbol: "on_blacklist"}), probe.CodeBlacklisted, syscall.EINVAL},
		{"a trap", on(probe.Kprobe{Symbol: "r_ud2"}), probe.CodeTrapInsn, syscall.EILSEQ},
	} {
		v.checkRefused(c.what, v.e.Register(c.r), c.code, c.errno)
		good := on(probe.Kprobe{Symbol: "f_boost"})
		err := v.e.Register(good, c.r)
		v.checkRefused(c.what+", in a batch", err, c.code, c.errno)
		v.index(c.what, err, 1)
	}
	v.checkRefused("none", v.e.Register(), probe.CodeEmptyBatch, syscall.EINVAL)

	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "f_endbr", Offset: 4}, DataSize: 4096}
	v.registerRet(r)
	v.checkRefused("twice", v.e.Register(r), probe.CodeRegistered, syscall.EINVAL)
	equal(v, "maxactive by default", r.MaxActive, 10)
	equal(v, "f_endbr", v.call("f_endbr", 1), 2)
	i, _ := v.e.Info(&r.Kprobe)
	equal(v, "type", i.Type, byte('r'))
	equal(v, "maxactive", i.MaxActive, 10)
	equal(v, "high water", i.HighWater, 1)
	equal(v, "returns", i.Stats.Returns, 1)
	v.unregisterRet(r)
}

// testKretprobeHandlers: the data and the permitted operations of the handlers.
func testKretprobeHandlers(v *env) {
	var caller guest.GVA
	var entrySP uint64
	skip := false
	var returns int
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Name: "rp", Symbol: "kprobe_target"}, DataSize: 4096,
		Entry: func(c *probe.Context) int {
			if skip {
				return 1
			}
			equal(v, "data", len(c.Data), 4096)
			c.Data[4095] = byte(c.Regs.RDI)
			caller, entrySP = c.Ret, c.Regs.RSP
			var b [8]byte
			if err := c.Read(guest.GVA(c.Regs.RSP), b[:]); err != nil {
				v.Errorf("read the stack: %v", err)
			}
			return 0
		},
		Return: func(c *probe.Context) {
			returns++
			equal(v, "data from entry", c.Data[4095], 33)
			equal(v, "RIP", guest.GVA(c.Regs.RIP), caller)
			equal(v, "Ret", c.Ret, caller)
			equal(v, "RSP", c.Regs.RSP, entrySP+8)
			equal(v, "Addr", c.Addr, v.addr("kprobe_target"))
			c.Regs.RAX = 100
			c.Regs.RIP = 0xbad // of no effect
		},
	}
	v.registerRet(r)
	offs := v.offsets("kprobe_target2")
	equal(v, "kprobe_target2 with another result inside", v.call("kprobe_target2", 33), 101)
	equal(v, "caller", caller, v.addr("kprobe_target2")+guest.GVA(offs[3]))
	skip = true
	equal(v, "kprobe_target2, skipped", v.call("kprobe_target2", 33), 12)
	equal(v, "returns", returns, 1)
	s := v.stats(&r.Kprobe)
	equal(v, "filtered", s.Filtered, 1)
	equal(v, "missed", s.Missed, 0)

	// Disabling it stops entries; without a return handler the entry still runs.
	if err := v.e.Disable(&r.Kprobe); err != nil {
		v.Fatal(err)
	}
	equal(v, "kprobe_target2, disabled", v.call("kprobe_target2", 33), 12)
	equal(v, "hits while disabled", v.stats(&r.Kprobe).Hits, 2)
	v.unregisterRet(r)
	entries := 0
	q := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"}, Entry: func(*probe.Context) int { entries++; return 0 }}
	v.registerRet(q)
	v.call("kprobe_target2", 33)
	equal(v, "entries", entries, 1)
	v.unregisterRet(q)

	// Panics are contained in both.
	boom := func() { panic("boom") }
	b := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"},
		Entry: func(*probe.Context) int { boom(); return 1 }, Return: func(*probe.Context) { boom() }}
	v.registerRet(b)
	equal(v, "kprobe_target2 with panics", v.call("kprobe_target2", 33), 12)
	equal(v, "panics", v.stats(&b.Kprobe).Panics, 2)
	v.unregisterRet(b)
}

// testKretprobeOrder: entry handlers run newest first, return handlers oldest
// first, and all see the real return address.
func testKretprobeOrder(v *env) {
	var got []int
	var rs []*probe.Kretprobe
	ret := v.addr("kprobe_target2") + guest.GVA(v.offsets("kprobe_target2")[3])
	for i := range 3 {
		rs = append(rs, &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"},
			Entry: func(c *probe.Context) int {
				got = append(got, i)
				equal(v, "Ret at entry", c.Ret, ret)
				return 0
			},
			Return: func(c *probe.Context) {
				got = append(got, 10+i)
				equal(v, "Ret", c.Ret, ret)
				equal(v, "RIP", guest.GVA(c.Regs.RIP), ret)
				c.Regs.RAX += 1000
			},
		})
	}
	v.registerRet(rs...)
	before := v.e.Totals(-1)
	equal(v, "kprobe_target2", v.call("kprobe_target2", 30), 3011)
	after := v.e.Totals(-1)
	want := []int{2, 1, 0, 10, 11, 12}
	if len(got) != len(want) {
		v.Fatalf("order: got %v, want %v", got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			v.Fatalf("order: got %v, want %v", got, want)
		}
	}
	equal(v, "exits", after.Breakpoints+after.Returns+after.Stepped+after.InPlace-before.Breakpoints-before.Returns-before.Stepped-before.InPlace, 2)

	// One that goes leaves the others.
	v.unregisterRet(rs[1])
	equal(v, "kprobe_target2 with two", v.call("kprobe_target2", 30), 2011)
	v.unregisterRet(rs[0], rs[2])
}

// testKretprobeWithKprobe: on one function they cost no more exits than the
// kretprobe alone, and the kprobe sees the true stack, in either order.
func testKretprobeWithKprobe(v *env) {
	ret := v.addr("kprobe_target2") + guest.GVA(v.offsets("kprobe_target2")[3])
	pres := 0
	p := &probe.Kprobe{Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
		pres++
		var b [8]byte
		if err := c.Read(guest.GVA(c.Regs.RSP), b[:]); err != nil {
			v.Errorf("read the stack: %v", err)
		}
		equal(v, "return address on the stack", guest.GVA(le.Uint64(b[:])), ret)
		return 0
	}}
	returns := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"}, Return: func(*probe.Context) { returns++ }}
	exits := func() uint64 {
		t := v.e.Totals(-1)
		return t.Breakpoints + t.Returns + t.Stepped + t.InPlace
	}
	for _, first := range []bool{true, false} {
		if first {
			v.register(p)
			v.registerRet(r)
		} else {
			v.registerRet(r)
			v.register(p)
		}
		pres, returns = 0, 0
		before := exits()
		equal(v, "kprobe_target2", v.call("kprobe_target2", 30), 11)
		equal(v, "exits", exits()-before, 2)
		equal(v, "pre handlers", pres, 1)
		equal(v, "return handlers", returns, 1)
		v.unregisterRet(r)
		v.unregister(p)
		p.Addr, r.Addr = 0, 0
	}
}

// testKretprobeInHandler: a call from a handler is missed, and its return
// belongs to no activation.
func testKretprobeInHandler(v *env) {
	returns := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"}, Return: func(c *probe.Context) {
		returns++
		if returns > 1 {
			return
		}
		x, err := c.Call(v.addr("kprobe_target"), 12)
		if err != nil || x != 4 {
			v.Errorf("call from the return handler: %d, %v", x, err)
		}
	}}
	v.registerRet(r)
	equal(v, "kprobe_target2", v.call("kprobe_target2", 30), 11)
	s := v.stats(&r.Kprobe)
	equal(v, "hits", s.Hits, 2)
	equal(v, "missed", s.Missed, 1)
	equal(v, "returns", s.Returns, 1)
	v.unregisterRet(r)
}

// testKretprobeTaken: a kprobe's pre handler that returns from the function by
// itself, and one that sends the guest to a ret, on the same function.
func testKretprobeTaken(v *env) {
	returns := 0
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "kprobe_target"}, Return: func(*probe.Context) { returns++ }}
	ret := v.addr("kprobe_target") + guest.GVA(v.offsets("kprobe_target")[4])
	jump := false
	p := &probe.Kprobe{Symbol: "kprobe_target", Pre: func(c *probe.Context) int {
		c.Regs.RAX = 500
		if jump {
			c.Regs.RIP = uint64(ret)
			return 1
		}
		var b [8]byte
		if err := c.Read(guest.GVA(c.Regs.RSP), b[:]); err != nil {
			v.Errorf("read the stack: %v", err)
		}
		c.Regs.RIP = le.Uint64(b[:])
		c.Regs.RSP += 8
		return 1
	}}
	v.register(p)
	v.registerRet(r) // newer, so asked first
	equal(v, "kprobe_target2, returned by the handler", v.call("kprobe_target2", 30), 501)
	equal(v, "return handlers", returns, 0)
	equal(v, "abandoned", v.stats(&r.Kprobe).Abandoned, 1)
	jump = true
	equal(v, "kprobe_target2, sent to a ret", v.call("kprobe_target2", 30), 501)
	equal(v, "return handlers", returns, 1)
	v.unregisterRet(r)
	v.unregister(p)
}
