package probe

import (
	"math/bits"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// A jump of 5 bytes overwrites code that other contexts may still return to: a task
// that was preempted after the first of the displaced instructions, or an indirect
// jump that the analysis did not know of. To keep them from running a part of the
// jump, the byte at each old instruction boundary is an int3: the bytes of the
// displacement at those places are cc (instruction punning), which leaves few
// addresses for the jump to lead to. The code at such an address is a board: a jump
// to the detour. A context that hits one of the int3s is moved to the copy of the
// instruction that used to begin there.

// pun is the required form of a jump's displacement: mask has ff in the bytes that
// must be cc.
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

// next returns the smallest displacement that has its int3s and is at least rel; ok
// is false if no displacement qualifies.
func (p pun) next(rel uint32) (uint32, bool) {
	want := int3s & p.mask
	wrong := rel&p.mask ^ want
	if wrong == 0 {
		return rel, true
	}
	at := (bits.Len32(wrong) - 1) &^ 7   // the highest byte that is wrong
	low := uint32(uint64(1)<<(at+8) - 1) // that byte, and the bytes below it
	if byte(rel>>at) < x86.Int3 {
		return rel&^low&^p.mask | want, true
	}
	up := uint64(rel|p.mask|low) + 1 // carried over the bytes that are fixed
	return uint32(up)&^p.mask | want, up>>32 == 0
}

// spread returns the i-th displacement that fits: the bits of i go to the free bits,
// from the lowest up. ok is false if i is too large.
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

// boardTries bounds the addresses tried for one board on pages that do not exist yet.
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
	// Existing pages, the newest first: they have the most room.
	for _, page := range slices.Backward(o.code.MappedPages(d.user)) {
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
	if t, ok := o.target.(Boards); ok {
		windows, anywhere := t.Boards(d.user)
		for _, w := range windows {
			if at, ok := p.findWithin(guest.GVA(from), w, try); ok {
				return at, nil
			}
		}
		if !anywhere {
			return 0, errNoPlace
		}
	}
	for i := range uint32(boardTries) {
		// Spread over the possible places, and do not begin where earlier boards are.
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

// findWithin tries the places in w that fit a jump which ends at from, at most one
// per page, until try accepts one.
func (p pun) findWithin(from guest.GVA, w guest.Range, try func(guest.GVA) bool) (guest.GVA, bool) {
	const page = guest.PageSize
	for n, at := 0, w.Start; n < boardTries && at-w.Start < w.End-w.Start; n++ {
		rel, ok := p.next(uint32(at - from))
		if !ok {
			break
		}
		at += guest.GVA(rel - uint32(at-from))
		if int64(at-from) != int64(int32(rel)) || at-w.Start > w.End-w.Start-x86.JmpLen {
			break // out of reach, or past the window
		}
		if try(at) {
			return at, true
		}
		at = (at + page) &^ (page - 1)
	}
	return 0, false
}

// boardStride spreads the tries of a pun with many free bits over its whole reach
// instead of along one page.
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
