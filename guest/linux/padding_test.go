package linux

import (
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

// TestPadding: every second int3 after the returns of the kernel's functions, except
// those in a place that it patches; none in text that is freed.
func TestPadding(t *testing.T) {
	for _, slide := range []uint64{0, 0x1460_0000} {
		b := boot1(t, slide, "")
		b.core.sites.add(uint64(b.fn(20)-b.slide)+10, 3, Alternative)
		b.core.sites.sort()
		var want []guest.GVA
		for n := range 599 { // the last one is relocated
			offsets := []guest.GVA{10, 12, 14}
			switch n {
			case 20:
				offsets = []guest.GVA{13, 15}
			case kerneltest.First, kerneltest.First + 3, kerneltest.First + 10, kerneltest.First + 11: // longer
				offsets = []guest.GVA{11, 13, 15}
			case kerneltest.First + 20:
				offsets = []guest.GVA{14}
			}
			for _, off := range offsets {
				want = append(want, b.fn(n)+off)
			}
		}
		got := slices.DeleteFunc(slices.Clone(b.Padding()), func(a guest.GVA) bool { return a >= b.fn(599) && a < b.fn(600) })
		if !slices.Equal(got, want) {
			t.Errorf("%d addresses from %v to %v, want %d", len(got), got[0], got[len(got)-1], len(want))
		}
	}
}
