package bpf

import (
	"encoding/binary"
	"math"
)

// maxDigits is how many characters of a number are read (BPF_MAX_STRTO_LEN...,
// kernel/bpf/helpers.c: a buffer of 64 with a zero).
const maxDigits = 63

// strtol is strtol and strtoul (text, its size, base, result). It returns how many
// characters it has read.
func (v *VM) strtol(r *[16]uint64, signed bool) FaultCode {
	n := r[R2]
	if n > maxRead {
		return v.badArg(FaultSize, n)
	}
	dst, code := v.dest(r[R4], 8)
	if code != NoFault {
		return code
	}
	text := v.mem(r[R1], n)
	switch {
	case text == nil && n > 0:
		return v.badArg(FaultMemArg, r[R1])
	case !v.charge(int64(n >> copyShift)):
		return v.badArg(FaultBudget, 0)
	}
	value, minus, read, e := parseNumber(text, r[R3])
	switch {
	case e != 0:
	case !signed && minus:
		e = errInval
	case signed && minus && value > 1<<63, signed && !minus && value > math.MaxInt64:
		e = errRange
	case minus:
		value = -value
	}
	if r[R0] = uint64(read); e != 0 {
		r[R0] = errno(e)
		return NoFault
	}
	binary.LittleEndian.PutUint64(dst, value)
	return NoFault
}

// parseNumber reads a number as the kernel's helpers do, and returns how many
// characters it has read, or an errno.
func parseNumber(text []byte, base uint64) (value uint64, minus bool, read, e int) {
	if base != 0 && base != 8 && base != 10 && base != 16 || len(text) == 0 {
		return 0, false, 0, errInval
	}
	i := 0
	for i < len(text) && (text[i] == ' ' || text[i] >= '\t' && text[i] <= '\r' || text[i] == 0xa0) {
		i++
	}
	if minus = i < len(text) && text[i] == '-'; minus {
		i++
	}
	rest := text[i:min(len(text), i+maxDigits)]
	at := func(n int) byte { // in lower case
		if n < len(rest) {
			return rest[n] | 0x20
		}
		return 0
	}
	skip := 0
	hex := at(0) == '0' && at(1) == 'x'
	switch {
	case base == 0 && hex && digit(at(2)) < 16:
		base = 16
	case base == 0 && at(0) == '0':
		base = 8
	case base == 0:
		base = 10
	}
	if base == 16 && hex {
		skip = 2
	}
	first := skip
	for ; digit(at(skip)) < base; skip++ {
		d := digit(at(skip))
		if value > (math.MaxUint64-d)/base {
			e = errRange
		}
		value = value*base + d
	}
	if skip == first {
		e = errInval
	}
	return value, minus, i + skip, e
}

// digit returns the value of a digit in lower case, a large number for any other
// character.
func digit(c byte) uint64 {
	switch {
	case c >= '0' && c <= '9':
		return uint64(c - '0')
	case c >= 'a' && c <= 'f':
		return uint64(c-'a') + 10
	}
	return math.MaxUint64
}
