package guest

import (
	"fmt"
	"math"
)

// reach is how far apart two addresses may be for a rel32 jump or a
// RIP-relative operand in an instruction at one to get to the other: 2^31
// less a page, which leaves room for the instruction itself (SDM Vol. 2, 2.2.1.6).
const reach = 1<<31 - PageSize

// span is a range of addresses by its first and last byte, so that it can end
// at the end of the address space.
type span struct{ first, last GVA }

func (s span) overlaps(o span) bool { return s.first <= o.last && o.first <= s.last }

// distance returns how far the farthest bytes of the two are apart, the short
// way round the address space.
func (s span) distance(o span) uint64 {
	return max(around(s.first, o.last), around(s.last, o.first), around(s.first, o.first), around(s.last, o.last))
}

// around returns the distance of two addresses modulo 2^64.
func around(a, b GVA) uint64 { return min(uint64(a-b), uint64(b-a)) }

// place returns a 2 MiB-aligned address for size bytes that overlap nothing in
// used, nor the first or last 2 MiB of the address space, nor the
// non-canonical addresses, such that a rel32 reaches from every byte to every
// byte of must, and if possible of want. Of all such places it is one
// with the least distance: holes far from everything else are what a guest is
// most likely to map later.
func place(size uint64, used, must, want []span) (GVA, error) {
	used = append([]span{
		{0, page2M - 1},
		{1 << 47, ^GVA(1<<47-1) - 1}, // non-canonical (SDM Vol. 1, 3.3.7.1)
		{^GVA(page2M - 1), math.MaxUint64},
	}, used...)
	best, bestDist, bestAll := GVA(0), uint64(math.MaxUint64), false
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
		all := true
		for _, w := range want {
			all = all && s.distance(w) <= reach
		}
		if best == 0 || all && !bestAll || all == bestAll && dist < bestDist {
			best, bestDist, bestAll = va, dist, all
		}
	}
	// A best place touches something that is in use, or would be nearer.
	for _, u := range used {
		try(GVA(alignDown(uint64(u.first)-size, page2M)))
		try(GVA(alignUp(uint64(u.last)+1, page2M)))
	}
	if best == 0 {
		return 0, fmt.Errorf("no free %d MiB of addresses within 2 GiB of all of it: link its text closer together, or away from the RAM's identity map", size>>20)
	}
	return best, nil
}
