package guest

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestPlaceBoards: boards are never right after an image, do not overlap used memory,
// and are within reach of all the text.
func TestPlaceBoards(t *testing.T) {
	const mb = 1 << 20
	used := []span{{0, 64*mb - 1}, {0x8000_0000_0000, ^GVA(1<<47-1) - 1}}
	for _, c := range []struct {
		what           string
		text, image    span
		below, highest bool // the first window is below the image; one window is for a displacement whose highest byte is an int3
	}{
		{"a kernel", span{0xffff_ffff_8020_0000, 0xffff_ffff_8020_ffff}, span{0xffff_ffff_8020_0000, 0xffff_ffff_8040_0fff}, true, true},
		{"a high program", span{0x1000_0000_0000, 0x1000_0000_0fff}, span{0x1000_0000_0000, 0x1000_0010_0000}, true, true},
		{"a program behind RAM", span{0x1000_0000, 0x1000_1000}, span{0x1000_0000, 0x1000_8000}, true, false},
		{"a program with no room below", span{68 * mb, 69 * mb}, span{68 * mb, 70 * mb}, false, false},
		{"text behind much data", span{0x1000_4000_0000, 0x1000_4000_0fff}, span{0x1000_0000_0000, 0x1000_4000_0fff}, true, false},
		{"a kernel with text at the end of what a jump reaches", span{0xffff_ffff_8000_0000, 0xffff_ffff_f000_0000}, span{0xffff_ffff_8000_0000, 0xffff_ffff_f000_0000}, true, false},
	} {
		windows := placeBoards(append([]span{c.image}, used...), []span{c.text}, []span{c.image})
		want := 1
		if c.highest {
			want++
		}
		if len(windows) != want {
			t.Errorf("%s: windows %v, want %d", c.what, windows, want)
			continue
		}
		for _, w := range windows {
			s := span{w.Start, w.End - 1}
			for _, u := range append([]span{c.image}, used[1:]...) {
				if s.overlaps(u) {
					t.Errorf("%s: %v is used", c.what, w)
				}
			}
			if w.Start > c.image.last && w.Start-c.image.last < boardGap {
				t.Errorf("%s: %v is right behind the image", c.what, w)
			}
		}
		if w := windows[0]; (w.End <= c.image.first) != c.below || w.End-w.Start != boardSize || (span{w.Start, w.End - 1}).distance(c.text) > reach {
			t.Errorf("%s: the first window is %v", c.what, w)
		}
		if !c.highest {
			continue
		}
		// Targets of jumps from the text's first and last place with a displacement whose highest byte is an int3.
		w := windows[1]
		for _, at := range []GVA{c.text.first, c.text.last} {
			for _, rel := range []int32{-0x34000000, -0x33000001} {
				to := at + x86.JmpLen + GVA(int64(rel))
				if to < w.Start || to >= w.End {
					t.Errorf("%s: a jump at %v leads to %v, outside of %v", c.what, at, to, w)
				}
			}
		}
	}
}
