package bpf

import (
	"math"
	"math/bits"
)

// number is the knowledge about 64 bits: an unsigned range, a signed range, and some
// of the bits. All of it holds at once; tidy refines each part by the others. The
// bits are as in "Sound, Precise, and Fast Abstract Interpretation with Tristate
// Numbers" (Vishwanathan et al., CGO 2022), as in Linux's verifier.
type number struct {
	ulo, uhi uint64
	lo, hi   int64
	val, unk uint64 // bits that are set; bits that are not known, which are clear in val
	half     half
}

// half is the unsigned and signed range of a number's lower 32 bits. Comparisons of
// 32 bits give it for a number whose upper half is not known.
type half struct {
	ulo, uhi uint32
	lo, hi   int32
}

var (
	anyHalf   = half{0, math.MaxUint32, math.MinInt32, math.MaxInt32}
	anyNumber = number{0, math.MaxUint64, math.MinInt64, math.MaxInt64, 0, math.MaxUint64, anyHalf}
)

func constant(v uint64) number {
	w := uint32(v)
	return number{v, v, int64(v), int64(v), v, 0, half{w, w, int32(w), int32(w)}}
}

// numberBetween is a number in an unsigned range.
func numberBetween(lo, hi uint64) number {
	n := anyNumber
	n.ulo, n.uhi = lo, hi
	n.tidy()
	return n
}

// numberBetweenSigned is a number in a signed range.
func numberBetweenSigned(lo, hi int64) number {
	n := anyNumber
	n.lo, n.hi = lo, hi
	n.tidy()
	return n
}

// numberOfBits is a number with these known bits.
func numberOfBits(val, unk uint64) number {
	n := anyNumber
	n.val, n.unk = val&^unk, unk
	n.tidy()
	return n
}

// singleValue returns the number if there is only one possible.
func (n *number) singleValue() (uint64, bool) { return n.ulo, n.ulo == n.uhi }

// tidy refines the parts by each other. It returns false if no number satisfies them.
func (n *number) tidy() bool {
	for range 2 {
		// Use the bits.
		const sign = 1 << 63
		n.ulo, n.uhi = max(n.ulo, n.val), min(n.uhi, n.val|n.unk)
		n.lo, n.hi = max(n.lo, int64(n.val|n.unk&sign)), min(n.hi, int64(n.val|n.unk&^sign))
		// If the lowest bits are known, ranges begin and end with these.
		if low := uint64(1)<<bits.TrailingZeros64(n.unk|sign) - 1; low != 0 && n.ulo <= n.uhi && n.lo <= n.hi {
			up, down := (n.val-n.ulo)&low, (n.uhi-n.val)&low
			if n.uhi-n.ulo < up || n.uhi-n.ulo < down {
				return false
			}
			n.ulo, n.uhi = n.ulo+up, n.uhi-down
			up, down = (n.val-uint64(n.lo))&low, (uint64(n.hi)-n.val)&low
			if uint64(n.hi-n.lo) < up || uint64(n.hi-n.lo) < down {
				return false
			}
			n.lo, n.hi = n.lo+int64(up), n.hi-int64(down)
		}
		// If the sign is known both ranges are the same.
		if n.lo >= 0 || n.hi < 0 {
			n.ulo, n.uhi = max(n.ulo, uint64(n.lo)), min(n.uhi, uint64(n.hi))
		}
		if int64(n.ulo) <= int64(n.uhi) {
			n.lo, n.hi = max(n.lo, int64(n.ulo)), min(n.hi, int64(n.uhi))
		}
		if n.ulo > n.uhi || n.lo > n.hi {
			return false
		}
		// The bits above the highest one in which the ends differ.
		delta := ^uint64(0) >> bits.LeadingZeros64(n.ulo^n.uhi)
		if (n.val^n.ulo)&^(n.unk|delta) != 0 {
			return false
		}
		n.val |= n.ulo &^ delta
		n.unk &= delta
		if !n.tidyHalf() {
			return false
		}
	}
	return true
}

// tidyHalf refines the range of the lower half and the rest by each other.
func (n *number) tidyHalf() bool {
	h, val, unk := &n.half, uint32(n.val), uint32(n.unk)
	const sign = 1 << 31
	h.ulo, h.uhi = max(h.ulo, val), min(h.uhi, val|unk)
	h.lo, h.hi = max(h.lo, int32(val|unk&sign)), min(h.hi, int32(val|unk&^sign))
	oneUpper := n.ulo>>32 == n.uhi>>32
	if oneUpper {
		h.ulo, h.uhi = max(h.ulo, uint32(n.ulo)), min(h.uhi, uint32(n.uhi))
	}
	small := n.lo >= math.MinInt32 && n.hi <= math.MaxInt32
	if small {
		h.lo, h.hi = max(h.lo, int32(n.lo)), min(h.hi, int32(n.hi))
	}
	if h.lo >= 0 || h.hi < 0 {
		h.ulo, h.uhi = max(h.ulo, uint32(h.lo)), min(h.uhi, uint32(h.hi))
	}
	if int32(h.ulo) <= int32(h.uhi) {
		h.lo, h.hi = max(h.lo, int32(h.ulo)), min(h.hi, int32(h.uhi))
	}
	if h.ulo > h.uhi || h.lo > h.hi {
		return false
	}
	delta := ^uint32(0) >> bits.LeadingZeros32(h.ulo^h.uhi)
	if (val^h.ulo)&^(unk|delta) != 0 {
		return false
	}
	n.val |= uint64(h.ulo &^ delta)
	n.unk &^= uint64(^delta)
	if oneUpper {
		up := n.ulo &^ math.MaxUint32
		n.ulo, n.uhi = max(n.ulo, up|uint64(h.ulo)), min(n.uhi, up|uint64(h.uhi))
	}
	if small {
		n.lo, n.hi = max(n.lo, int64(h.lo)), min(n.hi, int64(h.hi))
	}
	return n.ulo <= n.uhi && n.lo <= n.hi
}

// lowerOf is the knowledge about a number whose lower half is that of n.
func lowerOf(n number) number {
	r := anyNumber
	r.val, r.unk, r.half = n.val&math.MaxUint32, n.unk|^uint64(math.MaxUint32), n.half
	r.tidy()
	return r
}

// meet adds knowledge about the same number from elsewhere. It returns false if both
// contradict each other.
func (n *number) meet(o number) bool {
	if (n.val^o.val)&^(n.unk|o.unk) != 0 {
		return false
	}
	n.ulo, n.uhi = max(n.ulo, o.ulo), min(n.uhi, o.uhi)
	n.lo, n.hi = max(n.lo, o.lo), min(n.hi, o.hi)
	n.val, n.unk = n.val|o.val, n.unk&o.unk
	n.half = half{max(n.half.ulo, o.half.ulo), min(n.half.uhi, o.half.uhi), max(n.half.lo, o.half.lo), min(n.half.hi, o.half.hi)}
	return n.ulo <= n.uhi && n.lo <= n.hi && n.tidy()
}

// join is the knowledge about a number that is one or the other.
func (n number) join(o number) number {
	unk := n.unk | o.unk | (n.val ^ o.val)
	h := half{min(n.half.ulo, o.half.ulo), max(n.half.uhi, o.half.uhi), min(n.half.lo, o.half.lo), max(n.half.hi, o.half.hi)}
	return number{min(n.ulo, o.ulo), max(n.uhi, o.uhi), min(n.lo, o.lo), max(n.hi, o.hi), n.val &^ unk, unk, h}
}

// widen is join for a number that has grown to o and may continue to grow: each end
// that has moved goes to the next of stops, which are ascending.
func (n number) widen(o number, stops []int64) number {
	j := n.join(o)
	for k := len(stops) - 1; k >= 0 && j.lo < n.lo; k-- {
		if stops[k] <= j.lo {
			n.lo = stops[k]
		}
	}
	for k := 0; k < len(stops) && j.hi > n.hi; k++ {
		if stops[k] >= j.hi {
			n.hi = stops[k]
		}
	}
	if j.lo < n.lo {
		n.lo = math.MinInt64
	}
	if j.hi > n.hi {
		n.hi = math.MaxInt64
	}
	j.lo, j.hi = n.lo, n.hi
	switch {
	case j.lo >= 0: // both ranges are the same
		j.ulo, j.uhi = uint64(j.lo), uint64(j.hi)
	case j.ulo != n.ulo || j.uhi != n.uhi:
		j.ulo, j.uhi = 0, math.MaxUint64
	}
	if j.unk != n.unk { // only alignment survives of the bits
		low := uint64(1)<<bits.TrailingZeros64(j.unk) - 1
		j.val, j.unk = j.val&low, ^low
	}
	if j.half != n.half {
		j.half = anyHalf
	}
	j.tidy()
	return j
}

// truncate32 is the lower half of a number, extended with zeros.
func (n number) truncate32() number {
	const lower = math.MaxUint32
	if n.uhi <= lower {
		return n
	}
	m := number{uint64(n.half.ulo), uint64(n.half.uhi), 0, lower, n.val & lower, n.unk & lower, n.half}
	m.tidy()
	return m
}

// signExtend is the low size bytes of a number, extended with their sign.
func (n number) signExtend(size int) number {
	unused := 64 - 8*size
	least, most := int64(math.MinInt64)>>unused, int64(math.MaxInt64)>>unused
	if n.lo >= least && n.hi <= most {
		return n
	}
	if v, ok := n.singleValue(); ok {
		return constant(uint64(int64(v) << unused >> unused))
	}
	r := numberBetweenSigned(least, most)
	if size == 4 {
		r.lo, r.hi, r.half = int64(n.half.lo), int64(n.half.hi), n.half
		r.tidy()
	}
	return r
}

// plus is a sum modulo 2^64.
func (n number) plus(o number) number {
	r := anyNumber
	if lo, hi := n.ulo+o.ulo, n.uhi+o.uhi; (lo < n.ulo) == (hi < n.uhi) {
		r.ulo, r.uhi = lo, hi // both ends wrap, or neither
	}
	if lo, hi := n.lo+o.lo, n.hi+o.hi; !overflows(n.lo, o.lo, lo) && !overflows(n.hi, o.hi, hi) {
		r.lo, r.hi = lo, hi
	}
	sum := n.val + o.val
	unk := ((n.unk + o.unk + sum) ^ sum) | n.unk | o.unk
	r.val, r.unk = sum&^unk, unk
	a, b := n.half, o.half
	r.half = halfOf(int64(a.ulo)+int64(b.ulo), int64(a.uhi)+int64(b.uhi), int64(a.lo)+int64(b.lo), int64(a.hi)+int64(b.hi))
	r.tidy()
	return r
}

// halfOf is the 32-bit range of a number with these unsigned and signed ranges.
func halfOf(ulo, uhi, lo, hi int64) half {
	h := anyHalf
	if ulo>>32 == uhi>>32 { // both ends wrap, or neither
		h.ulo, h.uhi = uint32(ulo), uint32(uhi)
	}
	if lo >= math.MinInt32 && hi <= math.MaxInt32 {
		h.lo, h.hi = int32(lo), int32(hi)
	}
	return h
}

// overflows reports whether the sum of a and b has the wrong sign.
func overflows(a, b, sum int64) bool { return (a^sum)&(b^sum) < 0 }

// negate is 0 less a number.
func (n number) negate() number { return constant(0).minus(n) }

// minus is a difference modulo 2^64.
func (n number) minus(o number) number {
	r := anyNumber
	if lo, hi := n.ulo-o.uhi, n.uhi-o.ulo; (n.ulo < o.uhi) == (n.uhi < o.ulo) {
		r.ulo, r.uhi = lo, hi
	}
	if lo, hi := n.lo-o.hi, n.hi-o.lo; (n.lo^o.hi)&(n.lo^lo) >= 0 && (n.hi^o.lo)&(n.hi^hi) >= 0 {
		r.lo, r.hi = lo, hi
	}
	diff := n.val - o.val
	unk := ((diff + n.unk) ^ (diff - o.unk)) | n.unk | o.unk
	r.val, r.unk = diff&^unk, unk
	a, b := n.half, o.half
	r.half = halfOf(int64(a.ulo)-int64(b.uhi), int64(a.uhi)-int64(b.ulo), int64(a.lo)-int64(b.hi), int64(a.hi)-int64(b.lo))
	r.tidy()
	return r
}

// times is a product modulo 2^64.
func (n number) times(o number) number {
	zeros := bits.TrailingZeros64(n.val|n.unk) + bits.TrailingZeros64(o.val|o.unk)
	if zeros >= 64 {
		return constant(0)
	}
	r := numberOfBits(0, ^uint64(0)<<zeros)
	if over, hi := bits.Mul64(n.uhi, o.uhi); over == 0 {
		r.meet(numberBetween(n.ulo*o.ulo, hi))
	}
	return r
}

func (n number) and(o number) number {
	ones, maybe := n.val&o.val, (n.val|n.unk)&(o.val|o.unk)
	r := numberOfBits(ones, maybe&^ones)
	r.meet(numberBetween(0, min(n.uhi, o.uhi)))
	return r
}

func (n number) or(o number) number {
	ones := n.val | o.val
	r := numberOfBits(ones, (n.unk|o.unk)&^ones)
	r.meet(numberBetween(max(n.ulo, o.ulo), math.MaxUint64))
	return r
}

func (n number) xor(o number) number {
	unk := n.unk | o.unk
	return numberOfBits((n.val^o.val)&^unk, unk)
}

// shift is a shift to the left by s bits, or to the right by -s.
func (n number) shift(s int) number {
	if s < 0 {
		s = -s
		r := numberBetween(n.ulo>>s, n.uhi>>s)
		r.meet(numberOfBits(n.val>>s, n.unk>>s))
		return r
	}
	r := numberOfBits(n.val<<s, n.unk<<s)
	if bits.LeadingZeros64(n.uhi) >= s {
		r.meet(numberBetween(n.ulo<<s, n.uhi<<s))
	}
	return r
}

// shiftSigned is a shift to the right by s bits, with the sign.
func (n number) shiftSigned(s int) number {
	r := numberBetweenSigned(n.lo>>s, n.hi>>s)
	r.meet(numberOfBits(uint64(int64(n.val)>>s)&^uint64(int64(n.unk)>>s), uint64(int64(n.unk)>>s)))
	return r
}
