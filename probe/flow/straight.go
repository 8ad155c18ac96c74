package flow

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Text is code that consists only of instructions, like a kernel's, and functions to read it.
type Text struct {
	// Ranges are the text's ranges in ascending order. They, and all text that their branches lead to, lie in one aligned block of 2 GiB, which is not the first.
	Ranges []Span
	// Spans returns the functions and the gaps between them. Each span is decoded from its first byte to its last. The spans are sorted
	// by Lo and can overlap, and each lies in one of Ranges. A branch to a target in its own span does not count.
	Spans func() []Span
	// Read reads the text at addr into p, and reports whether it could read all of it.
	Read func(addr uint64, p []byte) bool
	// Text reports whether an address is in the image's text.
	Text func(addr uint64) bool
	// Scans holds the results of earlier scans of the same text, and stores the new ones. It may be nil.
	Scans *Scans
	// Link converts the addresses in the text p at addr to the ones at link time, or, with back, from those. It leaves words
	// unchanged that are only partly in p. nil: the addresses are the same.
	Link func(addr uint64, p []byte, back bool)
}

// Span is the bytes from Lo to Hi.
type Span struct{ Lo, Hi uint64 }

// straight finds the branches that leave the spans of a Text. The scan does not decode instructions. It collects candidates: all places that would be a branch with
// a 32-bit displacement to the same 2 GiB if an instruction began there. That takes a few operations per eight bytes. A query for the branches to a place
// decodes only the spans with candidates for it, and nearby spans that may have a short branch to it. The result is the same as with
// Builder.AddStraight, which decodes everything. A straight must be used by one goroutine at a time.
type straight struct {
	Text
	lo, hi uint64     // start of the first of Ranges, and end of the last
	tables [][]uint64 // the candidates of each window, sorted by target
	spans  []Span     // Text.Spans, set by the first query that needs them
	ends   []uint64   // the highest Hi of the spans up to each one
	n      int        // number of candidates
	full   bool       // there were too many candidates
}

const (
	// scanSize is how many bytes are scanned at once. The scan reads scanMore bytes more, for an instruction that begins at the end, and scanEdge
	// bytes on both sides, for words that are only partly in the window.
	scanSize = 256 << 10
	scanMore = 16
	scanEdge = 8
	// nearBefore and nearAfter are the maximum distances of a short branch's opcode before and after its target.
	nearBefore, nearAfter = 129, 126
)

// AddText adds the branches of a text. If it cannot read a part of the text it returns false and adds nothing. Queries read the text again. A
// candidate that the guest has overwritten since the scan counts as a branch.
func (b *Builder) AddText(t Text) bool {
	if len(t.Ranges) == 0 {
		return true
	}
	s := &straight{Text: t, lo: t.Ranges[0].Lo, hi: t.Ranges[len(t.Ranges)-1].Hi}
	if !s.scan() {
		return false
	}
	b.x.straight = append(b.x.straight, s)
	b.x.full = b.x.full || s.full
	return true
}

// scan finds the candidates of the whole text.
func (s *straight) scan() bool {
	buf := make([]byte, scanEdge+scanSize+scanMore+scanEdge)
	var found, spare []uint64
	for _, r := range s.Ranges {
		for at := r.Lo; at < r.Hi; at += scanSize {
			from := max(r.Lo, at-scanEdge)
			code := buf[:min(r.Hi-from, at-from+scanSize+scanMore+scanEdge)]
			if !s.Read(from, code) {
				return false
			}
			window := code[at-from : min(uint64(len(code)), at-from+scanSize+scanMore)]
			var id scanID
			if s.Scans != nil {
				s.link(from, code, false)
				id = s.Scans.identify(at-s.lo, window)
				if table, ok := s.Scans.find(id); ok {
					s.tables = append(s.tables, table)
					s.n += len(table)
					s.full = s.full || s.n > maxTargets
					continue
				}
				s.link(from, code, true)
			}
			clear(buf[len(code):])
			found = s.scanWindow(found[:0], at, len(window), buf[at-from:])
			if s.Scans != nil && s.Link != nil {
				s.link(from, code, false)
				s.markSlid(found, at, len(window), buf[at-from:])
			}
			found, spare = sortCandidates(found, spare)
			table := slices.Clone(found)
			s.tables = append(s.tables, table)
			if s.n += len(table); s.n > maxTargets {
				s.full = true
				return true
			}
			if s.Scans != nil {
				s.Scans.keep(id, table)
			}
		}
	}
	return true
}

// slid marks a candidate that would be a different branch, or none, if the text were loaded at another address. Offsets in a text do not need this bit.
const slid = 1 << 31

// markSlid marks the candidates that are different in the linked text buf[:n], which is at addr.
func (s *straight) markSlid(found []uint64, addr uint64, n int, buf []byte) {
	for k, c := range found {
		from := s.lo + c&(slid-1)
		if to, size, ok := branchAt(buf[from-addr:], from); !ok || uint32(to-s.lo) != uint32(c>>32) || int(from-addr)+size > n {
			found[k] |= slid
		}
	}
}

// sortCandidates sorts candidates, which must be sorted by their own place. It returns them with a slice of the same size for the next call. It is a radix sort: for
// tens of thousands of candidates it takes a fraction of the time of a comparison sort.
func sortCandidates(all, spare []uint64) (sorted, other []uint64) {
	const digit = 11
	if cap(spare) < len(all) {
		spare = make([]uint64, cap(all))
	}
	spare = spare[:len(all)]
	for shift := 32; shift < 64; shift += digit {
		var next [1 << digit]uint32
		for _, c := range all {
			next[c>>shift&(1<<digit-1)]++
		}
		n := uint32(0)
		for d, count := range next {
			next[d], n = n, n+count
		}
		for _, c := range all {
			at := &next[c>>shift&(1<<digit-1)]
			spare[*at] = c
			*at++
		}
		all, spare = spare, all
	}
	return all, spare
}

// link calls Link, if set.
func (s *straight) link(addr uint64, p []byte, back bool) {
	if s.Link != nil {
		s.Link(addr, p, back)
	}
}

const ones = 0x0101_0101_0101_0101 // 1 in each byte of a word

// scanWindow appends to found the candidates that begin in the first scanSize bytes of buf[:n], which is at addr. buf has scanMore more bytes.
func (s *straight) scanWindow(found []uint64, addr uint64, n int, buf []byte) []uint64 {
	end := min(n, scanSize)
	for i := 0; i < end; i += 8 {
		b := buf[i : i+scanMore]
		w, more := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		next, after := w>>8|more<<56, w>>16|more<<48
		// Each of these has a zero byte where an opcode begins: call and jmp, jcc, xbegin, jmpabs.
		near, jcc := (w|ones)^0xe9*ones, w^0x0f*ones|next&(0xf0*ones)^0x80*ones
		begin, abs := w^0xc7*ones|next^0xf8*ones, w^0xd5*ones|after^0xa1*ones
		// This marks all zero bytes, and possibly some bytes above one. branchAt checks them.
		m := ((near-ones)&^near | (jcc-ones)&^jcc | (begin-ones)&^begin | (abs-ones)&^abs) & (0x80 * ones)
		for ; m != 0; m &= m - 1 {
			at := i + bits.TrailingZeros64(m)/8
			if at >= end {
				break
			}
			if to, size, ok := branchAt(buf[at:], addr+uint64(at)); ok && at+size <= n && to>>31 == s.lo>>31 {
				found = append(found, uint64(uint32(to-s.lo))<<32|uint64(uint32(addr-s.lo)+uint32(at)))
			}
		}
	}
	return found
}

// branchAt returns the target of the branch whose opcode is at the start of b, at addr, and its size from the opcode on. It returns false for short branches and all other
// instructions. It ignores operand-size prefixes before the opcode: they truncate the target to 16 bits, where there is no text.
func branchAt(b []byte, addr uint64) (to uint64, size int, ok bool) {
	if len(b) < 5 {
		return 0, 0, false
	}
	switch op := b[0]; {
	case op|1 == 0xe9:
		size = 5
	case op == 0x0f && b[1]&0xf0 == 0x80, op == 0xc7 && b[1] == 0xf8:
		size = 6
	case op == 0xd5 && b[2] == 0xa1 && len(b) >= 11:
		return binary.LittleEndian.Uint64(b[3:]), 11, true
	}
	if size == 0 || len(b) < size {
		return 0, 0, false
	}
	return addr + uint64(size) + uint64(int64(int32(binary.LittleEndian.Uint32(b[size-4:])))), size, true
}

// forEach calls f with each candidate whose target is in [lo, hi). here is set if the candidate has this target only at the current load address.
func (s *straight) forEach(lo, hi uint64, f func(to, from uint64, here bool)) {
	block := s.lo >> 31 << 31
	lo, hi = max(lo, block), min(hi, block+1<<31-1) // the block's last byte cannot be a target, and block+1<<31 may overflow to 0
	// Targets below the text are stored as the highest numbers.
	for _, r := range [2]Span{{lo, min(hi, s.lo)}, {max(lo, s.lo), hi}} {
		if r.Lo >= r.Hi {
			continue
		}
		first, last := uint64(uint32(r.Lo-s.lo)), uint64(uint32(r.Hi-1-s.lo))
		for _, t := range s.tables {
			k, _ := slices.BinarySearch(t, first<<32)
			for ; k < len(t) && t[k]>>32 <= last; k++ {
				f(s.lo+uint64(int64(int32(t[k]>>32))), s.lo+t[k]&(slid-1), t[k]&slid != 0)
			}
		}
	}
}

// targets appends to all the targets in [lo, hi) of branches that leave their span, in no particular order.
func (s *straight) targets(all []uint64, lo, hi uint64) []uint64 {
	if lo >= hi {
		return all
	}
	var asked []int // indexes of spans to decode
	ask := func(at uint64) {
		s.forEachSpan(at, func(k int) {
			if x := s.spans[k]; x.Lo > lo || x.Hi < hi {
				asked = append(asked, k)
			}
		})
	}
	var now [scanMore]byte
	s.forEach(lo, hi, func(to, from uint64, here bool) {
		code := now[:min(scanMore, s.room(from))]
		readable := s.Read(from, code)
		if t, _, ok := branchAt(code, from); (!readable || !ok || t != to) && !here && s.Text.Text(to) {
			all = append(all, to) // overwritten since the scan
		}
		ask(from)
	})
	s.forEachShort(lo, hi, ask)
	slices.Sort(asked)
	for _, k := range slices.Compact(asked) {
		all = s.decode(all, s.spans[k], lo, hi)
	}
	return all
}

// room returns how many bytes of text follow from addr on.
func (s *straight) room(addr uint64) uint64 {
	for _, r := range s.Ranges {
		if addr >= r.Lo && addr < r.Hi {
			return r.Hi - addr
		}
	}
	return 0
}

// forEachShort calls f with each possible place of the opcode of a short branch to [lo, hi).
func (s *straight) forEachShort(lo, hi uint64, f func(at uint64)) {
	buf := make([]byte, 0, 512)
	for _, r := range s.Ranges {
		from, to := max(r.Lo, lo-min(lo, nearBefore)), min(r.Hi, hi+nearAfter+2)
		if to < hi { // overflow
			to = r.Hi
		}
		for ; from+1 < to; from += scanSize {
			n := int(min(to-from, scanSize+1))
			if cap(buf) < n {
				buf = make([]byte, n)
			}
			buf = buf[:n]
			if k := s.spanOf(from); k >= 0 && s.spans[k].Lo <= lo && s.spans[k].Hi >= hi && s.spans[k].Hi >= from+uint64(n) && s.alone(k) {
				continue // these branches stay in the span
			}
			if !s.Read(from, buf) {
				continue
			}
			for i, op := range buf[:n-1] {
				if op&0xf0 != 0x70 && op&0xfc != 0xe0 && op != 0xeb {
					continue
				}
				at := from + uint64(i)
				if t := at + 2 + uint64(int64(int8(buf[i+1]))); t >= lo && t < hi {
					f(at)
				}
			}
		}
	}
}

// load calls Spans once.
func (s *straight) load() {
	if s.spans != nil {
		return
	}
	s.spans = s.Spans()
	s.ends = make([]uint64, len(s.spans))
	var end uint64
	for k, x := range s.spans {
		end = max(end, x.Hi)
		s.ends[k] = end
	}
}

// spanOf returns the last span that begins at or before addr, or -1.
func (s *straight) spanOf(addr uint64) int {
	s.load()
	k, found := slices.BinarySearchFunc(s.spans, addr, func(x Span, a uint64) int { return cmp.Compare(x.Lo, a) })
	if found {
		return k
	}
	return k - 1
}

// alone reports whether no other span overlaps span k.
func (s *straight) alone(k int) bool {
	return (k == 0 || s.ends[k-1] <= s.spans[k].Lo) && (k+1 == len(s.spans) || s.spans[k+1].Lo >= s.spans[k].Hi)
}

// forEachSpan calls f with the index of each span that contains addr.
func (s *straight) forEachSpan(addr uint64, f func(k int)) {
	for k := s.spanOf(addr); k >= 0 && s.ends[k] > addr; k-- {
		if s.spans[k].Hi > addr {
			f(k)
		}
	}
}

// decode appends the targets in [lo, hi) of the branches that leave the span x.
func (s *straight) decode(all []uint64, x Span, lo, hi uint64) []uint64 {
	code := make([]byte, x.Hi-x.Lo)
	if !s.Read(x.Lo, code) {
		return all // the candidates are already counted
	}
	for at := 0; at < len(code); {
		n, t, branch, err := x86.Scan(code[at:], x.Lo+uint64(at))
		if err != nil {
			at++
			continue
		}
		if branch && t >= lo && t < hi && t-x.Lo >= x.Hi-x.Lo && s.Text.Text(t) {
			all = append(all, t)
		}
		at += n
	}
	return all
}
