package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
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

// fits reports whether a displacement has its int3s.
func (p pun) fits(rel uint32) bool { return rel&p.mask == int3s&p.mask }

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

// board finds a place for the board of d, puts a jump to the entry there, and
// returns it. Callers hold mu.
func (o *optimizer) board(d *detour) (guest.GVA, error) {
	p := punOf(d.region.Boundaries)
	from := d.region.Addr + insn.JmpLen
	try := func(at guest.GVA) bool {
		jmp, ok := insn.Jmp32(uint64(at), uint64(d.entry))
		return ok && o.code.PutAt(at, d.site(), d.user, d, jmp[:]) == nil
	}
	// Pages that are there. Where the lowest byte is fixed, every 256th address
	// can fit at most.
	for _, page := range o.code.Mapped(d.user) {
		rel := uint64(page) - from
		if int64(rel) < -1<<31 || int64(rel) > 1<<31-guest.PageSize {
			continue
		}
		first, step := uint32(0), uint32(1)
		if p.mask&0xff == 0xff {
			first, step = (0xcc-uint32(rel))&0xff, 0x100
		}
		for off := first; off <= guest.PageSize-insn.JmpLen; off += step {
			if at := page + guest.GVA(off); p.fits(uint32(rel)+off) && try(at) {
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
