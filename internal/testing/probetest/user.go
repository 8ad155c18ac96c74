package probetest

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// userCases probe code at CPL3, which the image's enter_user calls.
var userCases = []testCase{
	{name: "user_equivalence", needs: []Capability{CanUser}, run: testUserEquivalence},
	{name: "user_context", needs: []Capability{CanUser}, run: testUserContext},
	{name: "user_fault", needs: []Capability{CanUser, CanFault}, run: testUserFault},
	{name: "user_concurrent", cpus: 4, needs: []Capability{CanUser}, run: testUserConcurrent},
}

// user calls f(a, b) at CPL3 on vCPU cpu.
func (v *env) user(cpu int, f string, a, b uint64) (uint64, error) {
	s, err := v.h.Symbol(f)
	if err != nil {
		return 0, err
	}
	enter, err := v.h.Symbol("enter_user")
	if err != nil {
		return 0, err
	}
	return v.h.Call(cpu, enter.Addr, uint64(s.Addr), a, b, uint64(cpu))
}

// callUser is user on vCPU 0, or the end of the test.
func (v *env) callUser(f string, a, b uint64) uint64 {
	v.Helper()
	r, err := v.user(0, f, a, b)
	if err != nil {
		v.Fatalf("call %s(%#x, %#x) at CPL3: %v", f, a, b, err)
	}
	return r
}

// testUserEquivalence: each instruction probed in turn, without and with a
// post handler, and all at once.
func testUserEquivalence(v *env) {
	for _, q := range []struct {
		f    string
		a, b uint64
		want uint64
	}{
		{"u_hot", 41, 0, 42},
		{"u_load", uint64(v.addr("user_seven")), 5, 12},
		{"u_frame", 10, 100, 112},
		{"u_work", 5, 0, 40},
		{"u_push", uint64(v.addr("user_seven")) + 16, 0, 0},
	} {
		equal(v, q.f+" unprobed", v.callUser(q.f, q.a, q.b), q.want)
		var all []*probe.Kprobe
		for _, off := range v.offsets(q.f) {
			for _, post := range []func(*probe.Context){nil, func(*probe.Context) {}} {
				p := &probe.Kprobe{Name: q.f, Symbol: q.f, Offset: off, Pre: nop, Post: post}
				v.register(p)
				equal(v, fmt.Sprintf("%s probed at +%#x, post %v", q.f, off, post != nil), v.callUser(q.f, q.a, q.b), q.want)
				v.unregister(p)
				p.Addr = 0
				all = append(all, p)
			}
		}
		v.register(all...)
		equal(v, q.f+" with all probes", v.callUser(q.f, q.a, q.b), q.want)
		v.unregister(all...)
	}
}

// testUserContext: handlers see that they interrupt user code, and its memory.
func testUserContext(v *env) {
	var cpl uint8
	var seven [1]byte
	p := &probe.Kprobe{Symbol: "u_load", Pre: func(c *probe.Context) int {
		cpl = c.CPL
		if err := c.Read(guest.GVA(c.Regs.RDI), seven[:]); err != nil {
			v.Errorf("read user memory: %v", err)
		}
		c.Regs.RSI = 1
		return 0
	}}
	v.register(p)
	i, _ := v.e.Info(p)
	equal(v, "listed as user code", i.User, true)
	equal(v, "u_load with another argument", v.callUser("u_load", uint64(v.addr("user_seven")), 100), 8)
	equal(v, "CPL", cpl, 3)
	equal(v, "memory", seven[0], 7)
	v.unregister(p)
}

// testUserFault: faults of user code are the same as without a probe, also when
// the engine emulates the access: user code reaches no more memory through it.
func testUserFault(v *env) {
	kernel := uint64(v.addr("scratch"))
	for _, q := range []struct {
		f string
		a uint64
	}{
		{"u_fault", unmapped}, {"u_fault", kernel}, {"u_fault", nonCanonical},
		{"u_push", unmapped}, {"u_push", kernel + 8}, {"u_push", uint64(v.addr("u_hot")) + 8}, {"u_cli", 0},
	} {
		want := v.userFault(q.f, q.a)
		equal(v, q.f+" unprobed", want.result, minus14)
		before := v.load("scratch")
		for _, post := range []func(*probe.Context){nil, func(*probe.Context) {}} {
			for _, off := range v.offsets(q.f) {
				p := &probe.Kprobe{Symbol: q.f, Offset: off, Pre: nop, Post: post}
				v.register(p)
				v.checkSameFault(fmt.Sprintf("%s(%#x) probed at +%#x, post %v", q.f, q.a, off, post != nil), v.userFault(q.f, q.a), want)
				v.unregister(p)
			}
		}
		equal(v, "kernel memory after "+q.f, v.load("scratch"), before)
	}
}

// userFault calls f at CPL3 and returns its result and the exception that the
// guest's handler saw.
func (v *env) userFault(f string, a uint64) seen {
	v.Helper()
	v.clearFault()
	return v.seenFault(v.callUser(f, a, 0))
}

func testUserConcurrent(v *env) {
	n := v.cpus()
	a := &probe.Kprobe{Name: "emulated", Symbol: "u_hot", Pre: nop}
	b := &probe.Kprobe{Name: "stepped", Symbol: "u_load", Post: func(*probe.Context) {}}
	c := &probe.Kprobe{Name: "boosted", Symbol: "u_load", Pre: nop}
	v.register(a, b)
	for _, ps := range [][]*probe.Kprobe{{a, b}, {a, c}} {
		v.runOnAll(n, func(cpu int) error {
			r, err := v.user(cpu, "u_work", rounds, 0)
			if err == nil && r != 8*rounds {
				err = fmt.Errorf("u_work(%d) = %d, want %d", rounds, r, 8*rounds)
			}
			return err
		})
		for _, p := range ps {
			hits := uint64(n) * rounds
			if p == a && ps[1] == c {
				hits *= 2
			}
			equal(v, p.Name, v.stats(p).Hits, hits)
		}
		if ps[1] == b {
			v.unregister(b)
			v.register(c)
		}
	}
	v.unregister(a, c)
}
