package program

import (
	"errors"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// TestGuestClock: a stage gets a reading that is at most a second old, with the rate measured since the boot.
func TestGuestClock(t *testing.T) {
	const told = 1 << 31 // the host reports 2 counts per nanosecond
	var at bpf.Clock
	reads := 0
	c := guestClock{
		read: func() (bpf.Clock, error) { reads++; return at, nil },
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
		at = bpf.Clock{TSC: want.tsc, Mult: told, Time: want.time}
		got, err := c.get()
		if err != nil || reads != want.reads || got.Time != want.base || max(got.Mult, want.mult)-min(got.Mult, want.mult) > 2 {
			t.Errorf("%s: %+v after %d readings, %v; want rate %d and %d readings", want.name, got, reads, err, want.mult, want.reads)
		}
	}
	c.reset()
	at = bpf.Clock{TSC: 7, Mult: told, Time: 3800e9}
	if got, err := c.get(); err != nil || got != at {
		t.Errorf("after a boot: %+v, %v", got, err)
	}
	if _, err := (&guestClock{}).get(); !errors.Is(err, errNoClock) {
		t.Error(err)
	}
}
