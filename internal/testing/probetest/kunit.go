package probetest

import (
	"math/rand/v2"

	"github.com/guestprobe/guestprobe/probe"
)

// kunitCases are the kernel's own tests of kprobes (suite kprobes_test of
// lib/test_kprobes.c), each by its name: the same steps and the same
// expectations, in code of ours.
var kunitCases = []testCase{
	{name: "test_kprobe", run: testKprobe},
	{name: "test_kprobes", run: testKprobes},
	{name: "test_kprobe_missed", needs: []Capability{CanNest}, run: testKprobeMissed},
}

// randomValue returns the value the cases work with: a 32-bit number above 3.
func randomValue(v *env) uint64 {
	r := uint64(rand.Uint32())
	if r <= 3 {
		r += 4
	}
	v.Logf("rand1 = %d", r)
	return r
}

// computeRecursed does the handlers' computation: in the guest if the target can
// call the function from a handler, else here.
func computeRecursed(v *env, c *probe.Context, n uint64) uint64 {
	if !v.h.Can(CanNest) {
		return n / 3
	}
	r, err := c.Call(v.addr("kprobe_recursed_target"), n)
	if err != nil {
		v.Errorf("call from a handler: %v", err)
	}
	return r
}

func testKprobe(v *env) {
	rand1 := randomValue(v)
	var preh, posth uint64
	p := &probe.Kprobe{Name: "kp", Symbol: "kprobe_target",
		Pre: func(c *probe.Context) int {
			preh = computeRecursed(v, c, rand1)
			return 0
		},
		Post: func(c *probe.Context) {
			equal(v, "preh in the post handler", preh, computeRecursed(v, c, rand1))
			posth = preh + 3
		},
	}
	v.register(p)
	equal(v, "kprobe_target", v.call("kprobe_target", rand1), rand1/3)
	v.unregister(p)
	equal(v, "preh", preh, rand1/3)
	equal(v, "posth", posth, rand1/3+3)
	s := v.stats(p)
	equal(v, "hits", s.Hits, 1)
	equal(v, "handled", s.Handled, 1)
}

func testKprobes(v *env) {
	rand1 := randomValue(v)
	var preh, posth uint64
	kp := &probe.Kprobe{Name: "kp", Symbol: "kprobe_target",
		Pre: func(c *probe.Context) int {
			preh = computeRecursed(v, c, rand1)
			return 0
		},
		Post: func(c *probe.Context) {
			equal(v, "preh in the post handler", preh, computeRecursed(v, c, rand1))
			posth = preh + 3
		},
	}
	kp2 := &probe.Kprobe{Name: "kp2", Symbol: "kprobe_target2",
		Pre: func(c *probe.Context) int {
			preh = computeRecursed(v, c, rand1) + 1
			return 0
		},
		Post: func(c *probe.Context) {
			equal(v, "preh in the second post handler", preh, computeRecursed(v, c, rand1)+1)
			posth = preh + 3
		},
	}
	v.register(kp, kp2)
	preh, posth = 0, 0
	equal(v, "kprobe_target", v.call("kprobe_target", rand1), rand1/3)
	equal(v, "preh", preh, rand1/3)
	equal(v, "posth", posth, rand1/3+3)

	// kprobe_target2 calls kprobe_target: the last to run is the inner probe.
	preh, posth = 0, 0
	equal(v, "kprobe_target2", v.call("kprobe_target2", rand1), rand1/3+1)
	equal(v, "preh", preh, rand1/3)
	equal(v, "posth", posth, rand1/3+3)
	v.unregister(kp, kp2)
	equal(v, "hits of kp", v.stats(kp).Hits, 2)
	equal(v, "hits of kp2", v.stats(kp2).Hits, 1)
}

func testKprobeMissed(v *env) {
	rand1 := randomValue(v)
	var preh, posth uint64
	p := &probe.Kprobe{Name: "missed", Symbol: "kprobe_recursed_target",
		Pre: func(c *probe.Context) int {
			preh = computeRecursed(v, c, rand1)
			return 0
		},
		Post: func(c *probe.Context) { posth = computeRecursed(v, c, rand1) },
	}
	v.register(p)
	equal(v, "kprobe_recursed_target", v.call("kprobe_recursed_target", rand1), rand1/3)
	v.unregister(p)
	s := v.stats(p)
	equal(v, "nmissed", s.Missed, 2)
	equal(v, "hits", s.Hits, 3)
	equal(v, "handled", s.Handled, 1)
	equal(v, "preh", preh, rand1/3)
	equal(v, "posth", posth, rand1/3)
}
