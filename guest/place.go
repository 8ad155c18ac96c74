package guest

import (
	"fmt"
	"math"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// reach is the largest distance of two addresses for a rel32 jump or a RIP-relative
// operand at one to reach the other: 2^31 less a page, which leaves room for the
// instruction itself (SDM Vol. 2, 2.2.1.6).
const reach = 1<<31 - PageSize

// span is a range of addresses by its first and last byte, so that it can end
// at the end of the address space.
type span struct{ first, last GVA }

func (s span) overlaps(o span) bool { return s.first <= o.last && o.first <= s.last }

// distance returns the distance of the farthest bytes of the two, the short way round
// the address space.
func (s span) distance(o span) uint64 {
	return max(distance(s.first, o.last), distance(s.last, o.first), distance(s.first, o.first), distance(s.last, o.last))
}

// distance returns the distance of two addresses modulo 2^64.
func distance(a, b GVA) uint64 { return min(uint64(a-b), uint64(b-a)) }

// placement is a candidate place.
type placement struct {
	va   GVA
	all  bool   // reaches all of must and want
	half bool   // in the half of the address space of all that it must reach
	dist uint64 // to the farthest of that
}

func (p placement) better(q placement) bool {
	switch {
	case p.all != q.all:
		return p.all
	case p.half != q.half:
		return p.half
	case p.dist != q.dist:
		return p.dist < q.dist
	}
	return p.va > q.va
}

// place returns a 2 MiB-aligned address for size bytes that do not overlap used, the
// first or last 2 MiB of the address space, or the non-canonical addresses. A rel32
// must reach from every byte to every byte of must. Of all such places it takes one
// that also reaches all of want; then one in the same half of the address space,
// where code of the same privilege is; then the nearest, because a guest is most
// likely to map holes far from everything else later; then the higher.
func place(size uint64, used, must, want []span) (GVA, error) {
	used = append([]span{
		{0, page2M - 1},
		{1 << 47, ^GVA(1<<47-1) - 1}, // non-canonical (SDM Vol. 1, 3.3.7.1)
		{^GVA(page2M - 1), math.MaxUint64},
	}, used...)
	var best placement
	try := func(va GVA) {
		s := span{va, va + GVA(size-1)}
		if s.last < s.first {
			return
		}
		for _, u := range used {
			if s.overlaps(u) {
				return
			}
		}
		dist := uint64(0)
		for _, m := range must {
			dist = max(dist, s.distance(m))
		}
		if dist > reach {
			return
		}
		p := placement{va: va, all: true, half: true, dist: dist}
		for _, w := range want {
			p.all = p.all && s.distance(w) <= reach
		}
		for _, m := range must {
			p.half = p.half && int64(m.first^va) >= 0
		}
		if best.va == 0 || p.better(best) {
			best = p
		}
	}
	// A best place is adjacent to something in use, or there would be a nearer one.
	for _, u := range used {
		try(GVA(alignDown(uint64(u.first)-size, page2M)))
		try(GVA(alignUp(uint64(u.last)+1, page2M)))
	}
	if best.va == 0 {
		return 0, fmt.Errorf("no free %d MiB of addresses within 2 GiB of all of it: link its text closer together, or away from the RAM's identity map", size>>20)
	}
	return best.va, nil
}

// boardWindows is the most ranges of addresses for the boards of one privilege.
const boardWindows = 2

const (
	boardSize = 64 << 20 // of the first window
	boardGap  = 1 << 30  // between the image and a window above it, for the guest's heap
	topInt3   = 0x34000000
	topSize   = 1 << 24 // displacements with an int3 as their highest byte begin topInt3 below 0
)

// placeBoards returns the addresses for boards, which guests are unlikely to use: a
// window below the whole image, where heaps do not grow, or, if there is no room, far
// above it; and the targets of jumps in text whose displacement has an int3 as its
// highest byte.
func placeBoards(used, text, segments []span) (windows []Range) {
	first, last := segments[0].first, segments[0].last
	for _, s := range segments {
		first, last = min(first, s.first), max(last, s.last)
	}
	free := func(s span) bool {
		return s.first < s.last && s.first.Canonical() && s.last.Canonical() && s.first >= page2M && s.last < ^GVA(page2M-1) &&
			!slices.ContainsFunc(used, s.overlaps)
	}
	fits := func(at GVA) bool {
		s := span{at, at + boardSize - 1}
		if !free(s) {
			return false
		}
		for _, x := range text {
			if s.distance(x) > reach {
				return false
			}
		}
		return true
	}
	below, above := GVA(alignDown(uint64(first), page2M)), GVA(alignUp(uint64(last)+boardGap, page2M))
	var places []GVA
	for n := GVA(1); n <= 16; n++ {
		places = append(places, below-n*boardSize)
	}
	for n := GVA(0); n < 8; n++ {
		places = append(places, above+n*boardSize)
	}
	for _, at := range places {
		if fits(at) {
			windows = append(windows, Range{at, at + boardSize})
			break
		}
	}
	lo, hi := text[0].first, text[0].last
	for _, s := range text {
		lo, hi = min(lo, s.first), max(hi, s.last)
	}
	jump := GVA(x86.JmpLen)
	from, to := lo+jump-topInt3, hi+jump-topInt3+topSize
	if from < lo && free(span{from, to - 1}) {
		windows = append(windows, Range{from, to})
	}
	return windows
}
