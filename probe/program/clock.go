package program

import (
	"errors"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// maxClockAge is for how many nanoseconds a reading of the guest's counter is used for new stages. The host's clock is
// adjusted by up to 500 ppm (adjtimex(2)), which makes 0.5 ms in that time. The counter is not adjusted.
const maxClockAge = 1e9

// Clock is a reading of the guest's counter.
type Clock struct {
	bpf.Clock

	// Counter returns the counter's present value, and may be called by any
	// goroutine; nil: it is not known.
	Counter func() uint64
}

// guestClock converts the guest's counter to the host's time. Any goroutine may use it.
//
// Events of definitions follow the host's clock: each new stage has a conversion that is
// at most maxClockAge old. A program of an object can have one part in the guest and
// another one on the host, and subtract their times. So all of them have one conversion,
// which stays until the guest boots again or sets its counter, and on the host the
// counter is read as well.
type guestClock struct {
	read func() (Clock, error) // reads both, with the vCPUs stopped
	now  func() int64          // reads the host's clock; nil: unknown

	mu            sync.Mutex
	first, latest Clock // readings since the boot; Mult 0: no reading yet

	fixed atomic.Pointer[Clock] // of objects' programs; nil: none has needed it
}

var errNoClock = errors.New("the time in the guest is not known")

// reset discards the readings, because the guest's counter starts again.
func (c *guestClock) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.first, c.latest = Clock{}, Clock{}
}

// getFor returns get's result, or getFixed's for a program of an object.
func (c *guestClock) getFor(object bool) (bpf.Clock, error) {
	if object {
		return c.getFixed()
	}
	return c.get()
}

// get returns the conversion from counter to time for a new stage of a definition.
func (c *guestClock) get() (bpf.Clock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := c.refresh()
	return c.latest.Clock, err
}

// refresh reads the counter if the latest reading is too old. Precondition: mu held.
func (c *guestClock) refresh() error {
	if c.read == nil {
		return errNoClock
	}
	if c.latest.Mult != 0 && (c.now == nil || uint64(c.now())-c.latest.Time < maxClockAge) {
		return nil
	}
	r, err := c.read()
	if err != nil {
		return fmt.Errorf("%w: %w", errNoClock, err)
	}
	if c.first.Mult == 0 {
		c.first = r
		c.fixed.Store(nil)
	}
	c.latest = r
	c.latest.Mult = measuredRate(c.first.Clock, r.Clock)
	return nil
}

// getFixed returns the conversion for programs of objects.
func (c *guestClock) getFixed() (bpf.Clock, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.refresh(); err != nil {
		return bpf.Clock{}, err
	}
	f := c.fixed.Load()
	if f != nil && f.Counter != nil && c.latest.Counter != nil {
		if off := int64(f.Counter() - c.latest.Counter()); countsToTime(uint64(max(off, -off)), f.Mult) > maxCounterError {
			f = nil // the guest has set its counter
		}
	}
	if f == nil {
		f = new(Clock)
		*f = c.first
		f.TSC, f.Time, f.Counter = c.latest.TSC, c.latest.Time, c.latest.Counter
		c.fixed.Store(f)
	}
	return f.Clock, nil
}

// maxCounterError is by how many nanoseconds two readings may differ of a counter that
// the guest has not set. A reading's error is half its duration.
const maxCounterError = 2e6

// time returns the time for an object's program on the host. It allocates nothing and
// takes no lock.
func (c *guestClock) time() uint64 {
	f := c.fixed.Load()
	if f == nil || f.Counter == nil {
		return uint64(c.now())
	}
	counts := f.Counter() - f.TSC
	if int64(counts) < 0 { // of another vCPU's moment just before the reading
		return f.Time
	}
	return f.Time + countsToTime(counts, f.Mult)
}

// countsToTime converts counts to nanoseconds, as programs in the guest do.
func countsToTime(counts, mult uint64) uint64 {
	hi, lo := bits.Mul64(counts, mult)
	return hi<<32 | lo>>32
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
