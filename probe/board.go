package probe

import (
	"math/bits"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// A jump of 5 bytes overwrites what other contexts may still come back to: a
// task that was preempted behind the first of the displaced instructions, or an
// indirect jump that nobody knew of. So that none of them ever runs a part of
// the jump, the byte at each old boundary is an int3: the bytes of the
// displacement at those places are cc (instruction punning), which leaves few
// addresses for the jump to lead to. At such an address stands a board: a jump to
// the detour. Whoever comes to one of the int3s is moved to the copy of the
// instruction that used to begin there.

// pun is what the displacement of a jump must look like: mask has ff in the
// bytes that must be cc.
type pun struct{ mask uint32 }

const int3s = 0xcccccccc

// punOf returns the pun of a region with boundaries at those offsets.
func punOf(boundaries []int) pun {
	var p pun
	for _, b := range boundaries {
		p.mask |= 0xff << (8 * (b - 1))
	}
	return p
}

// next returns the least displacement that has its int3s and is not below rel, and false
// if there is none.
func (p pun) next(rel uint32) (uint32, bool) {
	want := int3s & p.mask
	wrong := rel&p.mask ^ want
	if wrong == 0 {
		return rel, true
	}
	at := (bits.Len32(wrong) - 1) &^ 7   // the highest byte that is wrong
	low := uint32(uint64(1)<<(at+8) - 1) // that byte, and what is below it
	if byte(rel>>at) < x86.Int3 {
		return rel&^low&^p.mask | want, true
	}
	up := uint64(rel|p.mask|low) + 1 // carried over the bytes that are fixed
	return uint32(up)&^p.mask | want, up>>32 == 0
}

// spread returns the i-th displacement that fits: the bits of i go to the free
// bits, from the lowest up. ok is false when i is too large.
func (p pun) spread(i uint32) (rel uint32, ok bool) {
	rel = int3s & p.mask
	for bit := range 32 {
		if p.mask>>bit&1 == 0 {
			rel |= i & 1 << bit
			i >>= 1
		}
	}
	return rel, i == 0
}

// boardTries bounds the addresses that are tried for one board on pages that
// are not there yet.
const boardTries = 512

// placeBoard finds a place for the board of d, puts a jump to the entry there, and
// returns it. Callers hold mu.
func (o *optimizer) placeBoard(d *detour) (guest.GVA, error) {
	p := punOf(d.region.Boundaries)
	from := d.region.Addr + x86.JmpLen
	try := func(at guest.GVA) bool {
		jmp, ok := x86.Jmp32(uint64(at), uint64(d.entry))
		return ok && o.code.PutAt(at, d.site(), d.user, d, jmp[:]) == nil
	}
	// Pages that are there, first those that came last: they have most room.
	for _, page := range slices.Backward(o.code.Mapped(d.user)) {
		rel := uint64(page) - from
		if int64(rel) < -1<<31 || int64(rel) > 1<<31-guest.PageSize {
			continue
		}
		for at, ok := p.next(uint32(rel)); ok && at-uint32(rel) <= guest.PageSize-x86.JmpLen; at, ok = p.next(at + 1) {
			if at := page + guest.GVA(at-uint32(rel)); try(at) {
				return at, nil
			}
		}
	}
	for i := range uint32(boardTries) {
		// Spread over what there is, and not first where others have been.
		rel, ok := p.spread(i * boardStride(p))
		if !ok {
			break
		}
		if at := guest.GVA(from + uint64(int64(int32(rel)))); try(at) {
			return at, nil
		}
	}
	return 0, errNoPlace
}

// boardStride makes the tries of a pun with many free bits go over all of its
// reach rather than along one page.
func boardStride(p pun) uint32 {
	free := 0
	for bit := range 32 {
		if p.mask>>bit&1 == 0 {
			free++
		}
	}
	if free <= 9 {
		return 1
	}
	return 1<<(free-9) | 1
}

// String shows the pattern, for messages: "cc" or "??" for each byte.
func (p pun) String() string {
	s := "e9"
	for i := range 4 {
		if p.mask>>(8*i)&0xff != 0 {
			s += " cc"
		} else {
			s += " ??"
		}
	}
	return s
}
