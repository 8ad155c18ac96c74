package probe

import (
	"maps"
	"sync/atomic"

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

// board is a jump to a detour at an address of which some bytes were fixed.
type board struct {
	at     guest.GVA
	detour *detour
}

// boards are the pages with boards. Lookups take no lock; the rest is guarded by
// Engine.mu.
type boards struct {
	byPage [2]map[guest.GVA]*boardPage // by 1 = user text
	bad    [2]map[guest.GVA]bool       // pages that could not be had
	found  atomic.Pointer[map[guest.GVA]*detour]
	fresh  []board // not yet in found
}

// boardPage is one page of boards.
type boardPage struct {
	used [guest.PageSize / 8]uint8 // a bit per byte
}

// free reports whether the n bytes at off are in the page and unused.
func (p *boardPage) free(off, n int) bool {
	if off+n > guest.PageSize {
		return false
	}
	for i := off; i < off+n; i++ {
		if p.used[i/8]>>(i%8)&1 != 0 {
			return false
		}
	}
	return true
}

func (p *boardPage) take(off, n int) {
	for i := off; i < off+n; i++ {
		p.used[i/8] |= 1 << (i % 8)
	}
}

func (bs *boards) forget() {
	for i := range bs.byPage {
		bs.byPage[i] = map[guest.GVA]*boardPage{}
		bs.bad[i] = map[guest.GVA]bool{}
	}
	bs.fresh = nil
	bs.found.Store(&map[guest.GVA]*detour{})
}

// publish makes new boards known to lookups. It is called before any text leads
// to them.
func (bs *boards) publish() {
	if len(bs.fresh) == 0 {
		return
	}
	m := maps.Clone(*bs.found.Load())
	for _, b := range bs.fresh {
		m[b.at] = b.detour
	}
	bs.fresh = nil
	bs.found.Store(&m)
}

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
// returns it.
func (ds *detours) board(d *detour) (guest.GVA, error) {
	p := punOf(d.region.Boundaries)
	from := d.region.Addr + insn.JmpLen
	k := index(d.user)
	try := func(page guest.GVA, pg *boardPage, at guest.GVA) (guest.GVA, bool) {
		off := int(at - page)
		if !pg.free(off, insn.JmpLen) {
			return 0, false
		}
		code, ok := insn.Jmp32(uint64(at), uint64(d.entry))
		if !ok || ds.target.WriteExec(at, code[:]) != nil {
			return 0, false
		}
		pg.take(off, insn.JmpLen)
		ds.slots.boards.fresh = append(ds.slots.boards.fresh, board{at, d})
		return at, true
	}
	// Pages that are there. Where the lowest byte is fixed, every 256th address
	// can fit at most.
	for page, pg := range ds.slots.boards.byPage[k] {
		rel := uint64(page) - from
		if int64(rel) < -1<<31 || int64(rel) > 1<<31-guest.PageSize {
			continue
		}
		first, step := uint32(0), uint32(1)
		if p.mask&0xff == 0xff {
			first, step = (0xcc-uint32(rel))&0xff, 0x100
		}
		for off := first; off <= guest.PageSize-insn.JmpLen; off += step {
			if !p.fits(uint32(rel) + off) {
				continue
			}
			if at, ok := try(page, pg, page+guest.GVA(off)); ok {
				return at, nil
			}
		}
	}
	if ds.placer == nil {
		return 0, errNoPlace
	}
	for i := range uint32(boardTries) {
		// Spread over what there is, and not first where others have been.
		rel, ok := p.spread(i * boardStride(p))
		if !ok {
			break
		}
		at := guest.GVA(from + uint64(int64(int32(rel))))
		page := at &^ (guest.PageSize - 1)
		last := (at + insn.JmpLen - 1) &^ (guest.PageSize - 1)
		if page != last || !at.Canonical() || ds.slots.boards.bad[k][page] || ds.slots.boards.byPage[k][page] != nil {
			continue
		}
		if err := ds.placer.MapExec(d.site(), at, insn.JmpLen); err != nil {
			ds.slots.boards.bad[k][page] = true
			continue
		}
		pg := &boardPage{}
		ds.slots.boards.byPage[k][page] = pg
		if at, ok := try(page, pg, at); ok {
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

// board returns the detour whose board is at a, or nil.
func (s *slots) board(a guest.GVA) *detour { return (*s.boards.found.Load())[a] }

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
