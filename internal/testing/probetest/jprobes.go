package probetest

import (
	"fmt"
	"runtime"
	"syscall"

	"github.com/guestprobe/guestprobe/probe"
)

// jprobeCases are about jprobes: arguments for handlers on the host, and
// mirrors in the guest.
var jprobeCases = []testCase{
	{name: "jprobe_arguments", run: testArguments},
	{name: "jprobe_refused", run: testJprobeRefused},
	{name: "jprobe_mirror", run: testMirror},
	{name: "jprobe_stack_size", run: testMirrorStack},
	{name: "jprobe_with_others", run: testMirrorWithOthers},
	{name: "jprobe_two_mirrors", run: testTwoMirrors},
	{name: "jprobe_mirror_returns", run: testMirrorReturns},
	{name: "jprobe_unregister_inside", run: func(v *env) { testMirrorInside(v, (*env).unregisterJprobe) }},
	{name: "jprobe_disarm_inside", run: func(v *env) { testMirrorInside(v, (*env).disarmAll) }},
	{name: "jprobe_close_inside", run: func(v *env) { testMirrorInside(v, (*env).closeEngine) }},
}

// callMany is the result of call_many(n).
func callMany(n uint64) uint64 {
	var sum uint64
	for i := range uint64(8) {
		sum += (i + 1) * (n + i)
	}
	return sum
}

// registerJprobe puts jprobes on or ends the test.
func (v *env) registerJprobe(js ...*probe.Jprobe) {
	v.Helper()
	if err := v.e.Register(probe.Probes(js)...); err != nil {
		v.Fatalf("register: %v", err)
	}
}

func (v *env) unregisterJprobe(j *probe.Jprobe) { v.unregister(&j.Kprobe) }

func (v *env) disarmAll(j *probe.Jprobe) {
	if err := v.e.DisarmAll(); err != nil {
		v.Errorf("disarm: %v", err)
	}
	v.unregister(&j.Kprobe)
}

func (v *env) closeEngine(*probe.Jprobe) {
	if err := v.e.Close(); err != nil {
		v.Errorf("close: %v", err)
	}
}

func testArguments(v *env) {
	n := 0
	j := &probe.Jprobe{Kprobe: probe.Kprobe{Name: "args", Symbol: "many_args"}, Entry: func(c *probe.Context, a probe.Args) {
		n++
		for i := range 8 {
			equal(v, fmt.Sprintf("argument %d", i), a.Uint64(i), uint64(0x80+i))
		}
		equal(v, "as int8", probe.Arg[int8](a, 7), -0x79)
		equal(v, "as uint16", probe.Arg[uint16](a, 0), 0x80)
		equal(v, "as an address", uint64(a.Pointer(6)), 0x86)
		for _, i := range []int{2, 7} {
			if err := a.Set(i, 0); err != nil {
				v.Errorf("set argument %d: %v", i, err)
			}
		}
	}}
	v.registerJprobe(j)
	v.equalCall("call_many", 0x80, callMany(0x80)-3*0x82-8*0x87)
	equal(v, "entry handlers", n, 1)
	i, _ := v.e.Info(&j.Kprobe)
	equal(v, "type", i.Type, byte('j'))
	equal(v, "handled", v.stats(&j.Kprobe).Handled, 1)
	equal(v, "probes listed", len(v.e.List()), 1)
	v.unregisterJprobe(j)

	// Without a stack it has no arguments, and does no harm.
	bad := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "hot"}, Entry: func(c *probe.Context, a probe.Args) {
		sp := c.Regs.RSP
		c.Regs.RSP = 1 << 63
		equal(v, "argument 6 without a stack", a.Uint64(6), 0)
		equal(v, "argument 0", a.Uint64(0), 5)
		c.Regs.RSP = sp
	}}
	v.registerJprobe(bad)
	v.equalCall("hot", 5, 6)
	equal(v, "bad accesses", v.stats(&bad.Kprobe).BadAccesses, 1)
	v.unregisterJprobe(bad)
}

func testJprobeRefused(v *env) {
	entry := func(*probe.Context, probe.Args) {}
	on := probe.Kprobe{Symbol: "many_args"}
	for _, c := range []struct {
		what  string
		j     *probe.Jprobe
		code  probe.Code
		errno syscall.Errno
	}{
		{"nil", nil, probe.CodeBothOrNeither, syscall.EINVAL},
		{"nothing to run", &probe.Jprobe{Kprobe: on}, probe.CodeHandlers, syscall.EINVAL},
		{"a pre handler", &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args", Pre: nop}, Entry: entry}, probe.CodeHandlers, syscall.EINVAL},
		{"inside", &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "hot", Offset: v.offsets("hot")[1]}, Entry: entry}, probe.CodeNotEntry, syscall.EINVAL},
		{"stack size", &probe.Jprobe{Kprobe: on, Mirror: "mirror_many", StackSize: 4097}, probe.CodeDataSize, syscall.E2BIG},
		{"no mirror", &probe.Jprobe{Kprobe: on, Mirror: "no_such_function"}, probe.CodeSymbolNotFound, syscall.ENOENT},
		{"mirror without an end", &probe.Jprobe{Kprobe: on, Mirror: "hot"}, probe.CodeMirror, syscall.EINVAL},
		{"mirror that is the end", &probe.Jprobe{Kprobe: on, Mirror: "jprobe_return"}, probe.CodeMirror, syscall.EINVAL},
		{"mirror of another end", &probe.Jprobe{Kprobe: on, Mirror: "mirror_many", End: "recurse"}, probe.CodeMirror, syscall.EINVAL},
		{"mirror is data", &probe.Jprobe{Kprobe: on, Mirror: "mirror_seen"}, probe.CodeNotText, syscall.EINVAL},
		{"mirror of user code", &probe.Jprobe{Kprobe: on, Mirror: "u_hot"}, probe.CodeNotText, syscall.EINVAL},
		{"ambiguous mirror", &probe.Jprobe{Kprobe: on, Mirror: "name_show"}, probe.CodeAmbiguous, syscall.EADDRNOTAVAIL},
		{"no end", &probe.Jprobe{Kprobe: on, Mirror: "mirror_many", End: "no_such_function"}, probe.CodeSymbolNotFound, syscall.ENOENT},
		{"end that cannot be probed", &probe.Jprobe{Kprobe: on, Mirror: "mirror_many", End: "on_blacklist"}, probe.CodeBlacklisted, syscall.EINVAL},
	} {
		v.checkRefused(c.what, v.e.Register(c.j), c.code, c.errno)
		good := &probe.Kprobe{Symbol: "hot"}
		err := v.e.Register(good, c.j)
		v.checkRefused(c.what+", in a batch", err, c.code, c.errno)
		v.index(c.what, err, 1)
	}
}

// readMirrored returns the arguments that mirror_many has seen.
func (v *env) readMirrored() (seen [8]uint64) {
	v.Helper()
	b := v.bytes(v.addr("mirror_seen"), 64)
	for i := range seen {
		seen[i] = le.Uint64(b[8*i:])
	}
	return seen
}

// testMirror: the mirror sees the arguments, its changes of registers, flags and
// stack have no effect, and it costs two exits.
func testMirror(v *env) {
	var plain, with probe.Regs
	into := &plain
	second := &probe.Kprobe{Symbol: "many_args", Offset: v.offsets("many_args")[1], Pre: func(c *probe.Context) int {
		*into = *c.Regs
		return 0
	}}
	v.register(second)
	v.equalCall("call_many", 20, callMany(20))
	into = &with
	inner := &probe.Kprobe{Symbol: "hot", Pre: func(*probe.Context) int {
		v.Error("a handler ran inside a mirror")
		return 0
	}}
	v.register(inner)
	j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_many"}
	v.registerJprobe(j)
	before := v.e.Totals(-1)
	v.equalCall("call_many", 20, callMany(20))
	after := v.e.Totals(-1)
	for i, x := range v.readMirrored() {
		equal(v, fmt.Sprintf("argument %d in the mirror", i), x, uint64(20+i))
	}
	equal(v, "mirror_calls", v.load("mirror_calls"), 1)
	equal(v, "registers after the first instruction", with, plain)
	equal(v, "breakpoints: entry, inside, end, second", after.Breakpoints-before.Breakpoints, 4)
	equal(v, "missed inside the mirror", v.stats(inner).Missed, 1)
	s := v.stats(&j.Kprobe)
	equal(v, "handled", s.Handled, 1)
	equal(v, "second exits", s.SecondExits, 1)

	// A filter, a disabled jprobe and all disarmed: no mirror.
	if err := v.e.Disable(&j.Kprobe); err != nil {
		v.Fatal(err)
	}
	v.equalCall("call_many", 20, callMany(20))
	equal(v, "mirror_calls", v.load("mirror_calls"), 1)
	v.unregisterJprobe(j)
	v.equalCall("call_many", 20, callMany(20))
	j.Addr, j.Disabled = 0, false
	j.Filter = func(c *probe.Context) bool { return c.Args().Uint64(0) == 30 }
	v.registerJprobe(j)
	v.equalCall("call_many", 20, callMany(20))
	v.equalCall("call_many", 30, callMany(30))
	equal(v, "mirror_calls", v.load("mirror_calls"), 2)
	equal(v, "filtered", v.stats(&j.Kprobe).Filtered, 1)
	v.unregisterJprobe(j)
	v.unregister(second, inner)
}

// testMirrorStack: only as much of the stack is restored as was asked for.
func testMirrorStack(v *env) {
	for _, c := range []struct {
		size int
		want uint64
	}{
		{0, callMany(20)},
		{24, callMany(20)},
		{17, callMany(20)},                      // rounded up
		{16, callMany(20) - 8*27 - 8},           // the last argument is lost
		{8, callMany(20) - 8*27 - 7*26 - 8 - 7}, // both
		{4096, callMany(20)},
	} {
		j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_many", StackSize: c.size}
		v.registerJprobe(j)
		equal(v, fmt.Sprintf("call_many with %d bytes of stack", c.size), v.call("call_many", 20), c.want)
		v.unregisterJprobe(j)
	}
}

// testMirrorWithOthers: jprobe, kretprobe and kprobe on one function, in any
// order.
func testMirrorWithOthers(v *env) {
	var pres, posts, returns int
	k := &probe.Kprobe{Symbol: "many_args", Pre: func(*probe.Context) int { pres++; return 0 }, Post: func(*probe.Context) { posts++ }}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Return: func(c *probe.Context) {
		returns++
		equal(v, "retval", c.Regs.RAX, callMany(20))
	}}
	j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_many"}
	for i, order := range [][]probe.Probe{{k, r, j}, {j, r, k}, {r, j, k}} {
		if err := v.e.Register(order...); err != nil {
			v.Fatal(err)
		}
		v.equalCall("call_many", 20, callMany(20))
		equal(v, "pre handlers", pres, i+1)
		equal(v, "post handlers", posts, i+1)
		equal(v, "return handlers", returns, i+1)
		equal(v, "mirror_calls", v.load("mirror_calls"), uint64(i+1))
		v.checkSettled(r)
		v.unregister(k, &r.Kprobe, &j.Kprobe)
		k.Addr, r.Addr, j.Addr = 0, 0, 0
	}
	if err := v.e.Register(r, j); err != nil {
		v.Fatal(err)
	}
	before := v.e.Totals(-1)
	v.equalCall("call_many", 20, callMany(20))
	after := v.e.Totals(-1)
	equal(v, "exits of jprobe and kretprobe", after.Breakpoints+after.Returns-before.Breakpoints-before.Returns, 3)
	equal(v, "steps", after.Stepped+after.InPlace, before.Stepped+before.InPlace)
	v.unregister(&r.Kprobe, &j.Kprobe)
}

func testTwoMirrors(v *env) {
	a := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_many", StackSize: 8}
	b := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_many", StackSize: 24}
	v.registerJprobe(a, b)
	for i := range uint64(3) {
		v.equalCall("call_many", 20, callMany(20))
		equal(v, "mirror_calls", v.load("mirror_calls"), 2*(i+1))
		equal(v, "last argument in the second mirror", v.readMirrored()[7], 27)
	}
	v.unregisterJprobe(a)
	v.equalCall("call_many", 20, callMany(20))
	equal(v, "mirror_calls", v.load("mirror_calls"), 7)
	v.unregisterJprobe(b)
}

// testMirrorReturns: a mirror that returns, against the rules, ends there. The
// probed function runs with its own registers and stack, and later code is not
// affected.
func testMirrorReturns(v *env) {
	a := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_returns"}
	b := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_many"}
	r := &probe.Kretprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, MaxActive: 1, Return: func(c *probe.Context) {}}
	inside := &probe.Kprobe{Symbol: "mirror_returns", Offset: v.offsets("mirror_returns")[1]}
	for i, ps := range [][]probe.Probe{{a}, {a, r}, {r, a, inside}, {a, b}, {b, r, a}} {
		if err := v.e.Register(ps...); err != nil {
			v.Fatal(err)
		}
		calls := v.load("mirror_calls")
		for n := range uint64(6) {
			v.equalCall("call_many", 20+n, callMany(20+n))
		}
		mirrors := uint64(6)
		if i >= 3 {
			mirrors = 12
		}
		equal(v, "mirror_calls", v.load("mirror_calls")-calls, mirrors)
		for _, p := range ps {
			switch p := p.(type) {
			case *probe.Kretprobe:
				v.checkSettled(p)
				s := v.stats(&p.Kprobe)
				equal(v, "returned", s.Returns, s.Handled)
				equal(v, "handled", s.Handled, 6)
				v.unregister(&p.Kprobe)
				p.Addr = 0
			case *probe.Jprobe:
				equal(v, "handled by the jprobe", v.stats(&p.Kprobe).Handled, 6)
				v.unregister(&p.Kprobe)
				p.Addr = 0
			case *probe.Kprobe:
				equal(v, "missed in the mirror", v.stats(p).Missed, 6)
				v.unregister(p)
				p.Addr = 0
			}
		}
	}
	t := v.e.Totals(-1)
	equal(v, "strays, copies, foreign", t.Strays+t.Copies+t.Foreign, 0)
}

// testMirrorInside: the jprobe is removed while its mirror runs. The probed
// function still runs, with its own arguments.
func testMirrorInside(v *env, end func(*env, *probe.Jprobe)) {
	j := &probe.Jprobe{Kprobe: probe.Kprobe{Symbol: "many_args"}, Mirror: "mirror_wait"}
	inside := &probe.Kprobe{Symbol: "mirror_wait", Offset: v.offsets("mirror_wait")[1]}
	if err := v.e.Register(j, inside); err != nil {
		v.Fatal(err)
	}
	result := make(chan uint64)
	go func() {
		r, err := v.h.Call(0, v.addr("call_many"), 20)
		if err != nil {
			v.Errorf("call: %v", err)
		}
		result <- r
	}()
	for {
		if s, _, _ := v.e.Stats(inside); s.Missed != 0 { // the guest keeps hitting it
			break
		}
		runtime.Gosched()
	}
	end(v, j)
	equal(v, "call_many", <-result, callMany(20))
	if _, ok := v.e.Info(inside); ok {
		v.unregister(inside)
	}
	// The engine finds that the mirror is over, and cleans up after it; so does a later change.
	if p := (&probe.Kprobe{Symbol: "hot"}); v.e.Register(p) == nil {
		v.unregister(p)
	}
}
