package session

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"syscall"

	"github.com/guestprobe/guestprobe/probe"
)

// injector makes a probed function return without running, in some of the calls. Its
// handler takes no lock: each hit has a number, which together with the seed
// determines whether it is chosen.
type injector struct {
	spec     Override // with all defaults filled in
	below    uint64   // a hit is chosen if its random number, of 53 bits, is below
	seen     atomic.Uint64
	left     atomic.Int64 // negative: no limit
	injected atomic.Uint64
}

// newInjector makes the injector of an override.
func newInjector(o Override) *injector {
	all, none := 100.0, int64(-1)
	if o.Probability == nil {
		o.Probability = &all
	}
	if o.Times == nil {
		o.Times = &none
	}
	if o.Interval == 0 {
		o.Interval = 1
	}
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) // exact in every reader of JSON, and easy to repeat
	}
	in := &injector{spec: o, below: uint64(math.Round(*o.Probability / 100 * (1 << 53)))}
	in.left.Store(*o.Times)
	return in
}

// override makes a's function return, at the hits that its injector chooses; k is its
// kprobe.
func (at *attacher) override(a *Probe, k *probe.Kprobe) error {
	if a.spec.Override == nil {
		return nil
	}
	if _, _, entry, err := at.engine.Resolve(k); err == nil && !entry {
		return &Error{
			Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "a function can return early only at its entry",
			Detail: "probe the function itself: p FUNCTION", Column: new(int), Command: defText(*a.spec),
		}
	}
	if a.injector == nil {
		a.injector = newInjector(*a.spec.Override)
	}
	k.Pre = a.injector.hit
	return nil
}

// hit is the pre handler. A call whose return address cannot be read runs, and does not
// count for the limit.
func (in *injector) hit(c *probe.Context) int {
	if !in.choose(in.seen.Add(1)) {
		return 0
	}
	back, err := c.Caller()
	if err != nil || !in.take() {
		return 0
	}
	c.ReturnTo(back, uint64(in.spec.Value))
	in.injected.Add(1)
	return 1
}

// choose reports whether hit n, from 1, is chosen, regardless of the limit. The order
// is the same as in lib/fault-inject.c.
func (in *injector) choose(n uint64) bool {
	if n <= in.spec.After || (n-in.spec.After)%in.spec.Interval != 0 {
		return false
	}
	return mix(in.spec.Seed+n*0x9e3779b97f4a7c15)>>11 < in.below
}

// take takes one hit from the limit.
func (in *injector) take() bool {
	for {
		n := in.left.Load()
		if n <= 0 {
			return n < 0
		}
		if in.left.CompareAndSwap(n, n-1) {
			return true
		}
	}
}

// mix is SplitMix64's finalizer (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
// Generators, 2014), of a state that grows by the golden ratio.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// state returns the override, with the chosen values, and the number of calls that
// returned because of it.
func (in *injector) state() (*Override, uint64) {
	if in == nil {
		return nil, 0
	}
	o := in.spec
	return &o, in.injected.Load()
}
