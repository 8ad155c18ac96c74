package http

import (
	"math"
	"math/rand/v2"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// injector makes a probed function return without running, in some of the calls. Its
// handler takes no lock: each hit has a number, and by that and the seed alone it is chosen
// or not.
type injector struct {
	spec     api.Override // with all that was left out
	below    uint64       // a hit is chosen when its random number, of 53 bits, is below
	seen     atomic.Uint64
	left     atomic.Int64 // negative: no limit
	injected atomic.Uint64
}

// overrideValues refuses an override that is out of bounds or was not allowed.
func overrideValues(spec api.ProbeSpec, refuse func(message, detail string) error) error {
	o := spec.Override
	switch {
	case o == nil && spec.Unsafe:
		return badValue("unsafe allows an override: override is missing")
	case o == nil:
		return nil
	case o.Probability != nil && !(*o.Probability >= 0 && *o.Probability <= 100):
		return badValue("probability is %v: 0 to 100 percent", *o.Probability)
	case o.Times != nil && *o.Times < -1:
		return badValue("times is %d: -1 for no limit, or how many", *o.Times)
	case !spec.Unsafe:
		return refuse("an override changes what the guest does", "allow it with --unsafe")
	}
	return nil
}

// newInjector makes what does what o asks for.
func newInjector(o api.Override) *injector {
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

// override makes a's function return, at the hits that its injector chooses.
func (st *store) override(a *attached) error {
	if a.spec.Override == nil {
		return nil
	}
	if _, _, entry, err := st.engine.Resolve(a.kprobe); err == nil && !entry {
		return &api.Error{
			Code: api.CodeUnavailable, Errno: "EOPNOTSUPP", Message: "a function can return early only at its entry",
			Detail: "probe the function itself: p FUNCTION", Column: new(int), Command: defText(a.spec),
		}
	}
	if a.injector == nil {
		a.injector = newInjector(*a.spec.Override)
	}
	a.kprobe.Pre = a.injector.hit
	return nil
}

// hit is the pre handler. A call whose return address cannot be read runs, and is none of
// those that the limit is about.
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

// choose reports whether hit n, from 1, is one, but for the limit. The order is that of
// lib/fault-inject.c.
func (in *injector) choose(n uint64) bool {
	if n <= in.spec.After || (n-in.spec.After)%in.spec.Interval != 0 {
		return false
	}
	return mix(in.spec.Seed+n*0x9e3779b97f4a7c15)>>11 < in.below
}

// take takes one of those that the limit leaves.
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

// wire is what a listing says.
func (in *injector) wire() *api.ProbeOverride {
	if in == nil {
		return nil
	}
	return &api.ProbeOverride{Override: in.spec, Injected: in.injected.Load()}
}
