package linux

import (
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/internal/kerneltest"
)

// TestUnhandled: where breakpoints go to the guest's handler, what CPUs run before they have one is
// refused, and nothing else.
func TestUnhandled(t *testing.T) {
	for _, slide := range []uint64{0, 0x1460_0000} {
		b := boot1(t, slide, "")
		found := func() (got []int) {
			for n := range 600 {
				if b.Blacklisted(b.fn(n)+9) == unhandledText {
					got = append(got, n-kerneltest.First)
				}
			}
			return got
		}
		if got := found(); got != nil {
			t.Errorf("refused where breakpoints exit: %v", got)
		}
		b.BreakpointsByVector()
		if got, want := found(), []int{0, 1, 2, 3, 4, 9, 10, 11, 12}; !slices.Equal(got, want) {
			t.Errorf("refused: functions %v, want %v", got, want)
		}
	}
}
