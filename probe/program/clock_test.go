package program

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// TestGuestClock: a stage gets a reading that is at most a second old, with the rate measured since the boot.
func TestGuestClock(t *testing.T) {
	const told = 1 << 31 // the host reports 2 counts per nanosecond
	var at Clock
	reads := 0
	c := guestClock{
		read: func() (Clock, error) { reads++; return at, nil },
		now:  func() int64 { return int64(at.Time) },
	}
	for _, want := range []struct {
		name       string
		tsc, time  uint64
		mult, base uint64
		reads      int
	}{
		{"the first", 1000, 5e9, told, 5e9, 1},
		{"close to it", 1e9 + 1000, 5e9 + 999999999, told, 5e9, 1},
		{"a second later", 2e9 + 1000 + 2e5, 6e9, 1e9 << 32 / 2000200000, 6e9, 2}, // 100 ppm faster
		{"an hour later", 7200e9 + 1000 + 7200e5, 3605e9, 1e4 << 32 / 20002, 3605e9, 3},
		{"the guest has set its counter", 5, 3700e9, told, 3700e9, 4},
		{"it has set it far ahead", 1 << 62, 3800e9, told, 3800e9, 5},
	} {
		at = Clock{Clock: bpf.Clock{TSC: want.tsc, Mult: told, Time: want.time}}
		got, err := c.get()
		if err != nil || reads != want.reads || got.Time != want.base || max(got.Mult, want.mult)-min(got.Mult, want.mult) > 2 {
			t.Errorf("%s: %+v after %d readings, %v; want rate %d and %d readings", want.name, got, reads, err, want.mult, want.reads)
		}
	}
	c.reset()
	at = Clock{Clock: bpf.Clock{TSC: 7, Mult: told, Time: 3800e9}}
	if got, err := c.get(); err != nil || got != at.Clock {
		t.Errorf("after a boot: %+v, %v", got, err)
	}
	if _, err := (&guestClock{}).get(); !errors.Is(err, errNoClock) {
		t.Error(err)
	}
}

// TestFixedClock: programs of objects have one conversion, in the guest and on the host, whatever the host's clock does, until the
// guest sets its counter or boots again.
func TestFixedClock(t *testing.T) {
	const told = 1 << 31 // 2 counts per nanosecond
	counter, offset, now := uint64(1000), uint64(0), uint64(5e9)
	c := guestClock{
		read: func() (Clock, error) {
			o := offset
			return Clock{Clock: bpf.Clock{TSC: counter + o, Mult: told, Time: now}, Counter: func() uint64 { return counter + o }}, nil
		},
		now: func() int64 { return int64(now) },
	}
	if got := c.time(); got != now {
		t.Errorf("before the first program: %d, want the host's time %d", got, now)
	}
	inGuest := func() uint64 {
		t.Helper()
		f, err := c.getFixed()
		if err != nil {
			t.Fatal(err)
		}
		return f.Time + countsToTime(counter+offset-f.TSC, f.Mult)
	}
	check := func(when string, want uint64) {
		t.Helper()
		if g, h := inGuest(), c.time(); g != want || h != want {
			t.Errorf("%s: %d in the guest, %d on the host; want %d", when, g, h, want)
		}
	}
	check("the first", 5e9)
	counter, now = counter+2e9, now+1.5e9 // the host's clock is corrected, or the counter's frequency is not what KVM says
	check("a second later", 6e9)
	counter, now = counter+20e9, now+8e9
	check("11 seconds later", 16e9)
	offset, now = 1<<40, now+2e9
	check("the guest has set its counter", now)
	counter, now = counter+2e9, now+1e9
	check("a second after that", now)
	c.reset()
	counter, offset, now = 0, 0, now+5e9
	check("after a boot", now)
	// A counter that another goroutine read just before the conversion was made.
	counter--
	if got := c.time(); got != now {
		t.Errorf("a count before: %d, want %d", got, now)
	}
}
