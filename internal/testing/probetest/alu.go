package probetest

import "math/bits"

// Bits of RFLAGS (SDM Vol. 1, 3.4.3). This file and interp.go are written from
// the manual and share nothing with guest/x86's emulation: the suite compares
// the two.
const (
	cf = 1 << 0
	pf = 1 << 2
	af = 1 << 4
	zf = 1 << 6
	sf = 1 << 7
	tf = 1 << 8
	fi = 1 << 9 // IF
	df = 1 << 10
	of = 1 << 11

	arith = cf | pf | af | zf | sf | of
)

func maskOf(size int) uint64 { return ^uint64(0) >> (64 - 8*size) }
func signOf(size int) uint64 { return 1 << (8*size - 1) }

// result returns the flags that depend on the result only.
func result(v uint64, size int) uint64 {
	f := uint64(0)
	v &= maskOf(size)
	if v == 0 {
		f |= zf
	}
	if v&signOf(size) != 0 {
		f |= sf
	}
	if bits.OnesCount8(uint8(v))%2 == 0 {
		f |= pf
	}
	return f
}

// add returns a + b + carry and its flags.
func add(a, b, carry uint64, size int) (uint64, uint64) {
	m := maskOf(size)
	a, b = a&m, b&m
	v := (a + b + carry) & m
	f := result(v, size)
	if v < a || carry == 1 && v == a {
		f |= cf
	}
	if (a^b^v)&0x10 != 0 {
		f |= af
	}
	if (a^v)&(b^v)&signOf(size) != 0 {
		f |= of
	}
	return v, f
}

// sub returns a - b - borrow and its flags.
func sub(a, b, borrow uint64, size int) (uint64, uint64) {
	m := maskOf(size)
	a, b = a&m, b&m
	v := (a - b - borrow) & m
	f := result(v, size)
	if a < b || borrow == 1 && a == b {
		f |= cf
	}
	if (a^b^v)&0x10 != 0 {
		f |= af
	}
	if (a^b)&(a^v)&signOf(size) != 0 {
		f |= of
	}
	return v, f
}

// alu does the operation in bits 5 to 3 of the classic opcodes: add, or, adc,
// sbb, and, sub, xor, cmp. write is false for cmp.
func alu(op byte, a, b, flags uint64, size int) (v, f uint64, write bool) {
	carry := flags & cf
	switch op {
	case 0:
		v, f = add(a, b, 0, size)
	case 1:
		v = (a | b) & maskOf(size)
		f = result(v, size)
	case 2:
		v, f = add(a, b, carry, size)
	case 3:
		v, f = sub(a, b, carry, size)
	case 4:
		v = a & b & maskOf(size)
		f = result(v, size)
	case 6:
		v = (a ^ b) & maskOf(size)
		f = result(v, size)
	default:
		v, f = sub(a, b, 0, size)
	}
	return v, flags&^arith | f, op != 7
}

// shift does the operation in ModRM.reg of the shift group: rol, ror, rcl, rcr,
// shl, shr, sal, sar.
func shift(op byte, v, n, flags uint64, size int) (uint64, uint64) {
	width := uint64(8 * size)
	m, sign := maskOf(size), signOf(size)
	if size == 8 {
		n &= 63
	} else {
		n &= 31
	}
	v &= m
	if n == 0 {
		return v, flags
	}
	before := v
	carry := flags & cf
	for range n { // one bit at a time, as the manual's pseudocode does
		switch op {
		case 0:
			carry = v >> (width - 1)
			v = (v<<1 | carry) & m
		case 1:
			carry = v & 1
			v = v>>1 | carry<<(width-1)
		case 2:
			c := v >> (width - 1)
			v = (v<<1 | carry) & m
			carry = c
		case 3:
			c := v & 1
			v = v>>1 | carry<<(width-1)
			carry = c
		case 4, 6:
			carry = v >> (width - 1)
			v = v << 1 & m
		case 5:
			carry = v & 1
			v >>= 1
		default:
			carry = v & 1
			v = v>>1 | v&sign
		}
	}
	f := flags&^(cf|of) | carry
	overflow := false
	switch op {
	case 0, 2, 4, 6:
		overflow = v>>(width-1) != carry
	case 1, 3:
		overflow = (v>>(width-1))^(v>>(width-2)&1) != 0
	case 5:
		overflow = before&sign != 0
	}
	if overflow {
		f |= of
	}
	if op >= 4 {
		f = f&^(zf|sf|pf|af) | result(v, size)
	}
	return v, f
}

// condition evaluates a condition code (SDM Vol. 1, appendix B).
func condition(cc byte, f uint64) bool {
	is := func(bit uint64) bool { return f&bit != 0 }
	var v bool
	switch cc >> 1 {
	case 0:
		v = is(of)
	case 1:
		v = is(cf)
	case 2:
		v = is(zf)
	case 3:
		v = is(cf) || is(zf)
	case 4:
		v = is(sf)
	case 5:
		v = is(pf)
	case 6:
		v = is(sf) != is(of)
	default:
		v = is(zf) || is(sf) != is(of)
	}
	if cc&1 != 0 {
		return !v
	}
	return v
}

// extend returns the low size bytes of v with their sign.
func extend(v uint64, size int) int64 {
	s := 64 - 8*size
	return int64(v<<s) >> s
}
