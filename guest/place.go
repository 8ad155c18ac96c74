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
	return max(distance(s.first, o.last), distance(s.last, o.first), distance(s.first, o.first), distance(s.last, o.last))
}

// distance returns the distance of two addresses modulo 2^64.
func distance(a, b GVA) uint64 { return min(uint64(a-b), uint64(b-a)) }

// placement is one possible place.
type placement struct {
	va   GVA
	all  bool   // reaches all that it should
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

// place returns a 2 MiB-aligned address for size bytes that overlap nothing in
// used, nor the first or last 2 MiB of the address space, nor the
// non-canonical addresses, such that a rel32 reaches from every byte to every
// byte of must. Of all such places it takes one that reaches all of want too;
// then one in the same half of the address space, where the same privilege is
// at home; then the nearest, as holes far from everything else are what a guest
// is most likely to map later; then the higher.
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
	// A best place touches something that is in use, or would be nearer.
	for _, u := range used {
		try(GVA(alignDown(uint64(u.first)-size, page2M)))
		try(GVA(alignUp(uint64(u.last)+1, page2M)))
	}
	if best.va == 0 {
		return 0, fmt.Errorf("no free %d MiB of addresses within 2 GiB of all of it: link its text closer together, or away from the RAM's identity map", size>>20)
	}
	return best.va, nil
}
