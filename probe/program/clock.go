package program

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// maxClockAge is for how many nanoseconds a reading of the guest's counter is used for new stages. The host's clock is
// adjusted by up to 500 ppm (adjtimex(2)), which makes 0.5 ms in that time. The counter is not adjusted.
const maxClockAge = 1e9

// guestClock converts the guest's counter to the host's time. Any goroutine may use it.
type guestClock struct {
	read func() (bpf.Clock, error) // reads both, with the vCPUs stopped
	now  func() int64              // reads the host's clock; nil: unknown

	mu            sync.Mutex
	first, latest bpf.Clock // readings since the boot; zero: no reading yet
}

var errNoClock = errors.New("the time in the guest is not known")

// reset discards the readings, because the guest's counter starts again.
func (c *guestClock) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first, c.latest = bpf.Clock{}, bpf.Clock{}
}

// get returns the conversion from counter to time for a new stage.
func (c *guestClock) get() (bpf.Clock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read == nil {
		return bpf.Clock{}, errNoClock
	}
	if c.latest != (bpf.Clock{}) && (c.now == nil || uint64(c.now())-c.latest.Time < maxClockAge) {
		return c.latest, nil
	}
	r, err := c.read()
	if err != nil {
		return bpf.Clock{}, fmt.Errorf("%w: %w", errNoClock, err)
	}
	if c.first == (bpf.Clock{}) {
		c.first = r
	}
	r.Mult = measuredRate(c.first, r)
	c.latest = r
	return r, nil
}

// measuredRate returns nanoseconds per count, in units of 2^-32, measured from two readings. It returns the rate that the host reports instead if the readings
// are too close, or if the guest may have set its counter between them.
func measuredRate(first, last bpf.Clock) uint64 {
	ns, counts := last.Time-first.Time, last.TSC-first.TSC
	if int64(ns) < maxClockAge || int64(counts) <= 0 || ns>>32 >= counts {
		return last.Mult
	}
	rate, _ := bits.Div64(ns>>32, ns<<32, counts)
	if off := int64(rate - last.Mult); max(off, -off) > int64(last.Mult/64) {
		return last.Mult
	}
	return rate
}
