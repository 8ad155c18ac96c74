package linux

import (
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// TestUnhandled: where breakpoints go to the guest's handler, what CPUs run before they have one is
// refused, and what they run when it is gone, and nothing else.
func TestUnhandled(t *testing.T) {
	for _, slide := range []uint64{0, 0x1460_0000} {
		b := boot1(t, slide, "")
		found := func(why string) (got []int) {
			for n := range 600 {
				if b.BlacklistReason(b.fn(n)+9) == why {
					got = append(got, n-kerneltest.First)
				}
			}
			return got
		}
		if got := append(found(unhandledText), found(leftText)...); got != nil {
			t.Errorf("refused where breakpoints exit: %v", got)
		}
		b.BreakpointsByVector()
		if got, want := found(unhandledText), []int{0, 1, 2, 3, 4, 9, 10, 11, 12}; !slices.Equal(got, want) {
			t.Errorf("refused: functions %v, want %v", got, want)
		}
		if got, want := found(leftText), []int{20, 22, 23}; !slices.Equal(got, want) {
			t.Errorf("refused behind the last IDT: functions %v, want %v", got, want)
		}
	}
}
