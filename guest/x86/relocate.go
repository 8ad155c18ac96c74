package x86

import (
	"errors"
	"fmt"
)

// MaxRelocated is the most bytes that Relocate writes.
const MaxRelocated = MaxLen

// Errors of Relocate, to be tested with errors.Is.
var (
	// ErrOutOfReach: an operand or target is more than 2 GiB away from the
	// new place.
	ErrOutOfReach = errors.New("out of reach of a 32-bit displacement")
	// ErrNotMovable: a copy would not have the same effect as the original.
	ErrNotMovable = errors.New("instruction cannot be moved")
)

// Relocate writes into dst a copy of the instruction at from that has the same effect
// at to, and returns its length. A RIP-relative operand keeps its address, a direct
// jump its target; jumps with an 8-bit displacement become jumps with a 32-bit one
// (loop and jrcxz by way of two more jumps). Addresses wrap modulo 2^64, as RIP does.
//
// A call would push another return address, and a branch as in VendorDependent means
// different things to different CPUs: both are ErrNotMovable. Relocate does not check
// whether an int3 or a jump may follow the copy: Analyze does. dst needs room for
// MaxRelocated bytes.
func Relocate(dst []byte, i *Inst, from, to uint64) (int, error) {
	if i.VendorDependent() {
		return 0, relocateError(i, from, to, ErrNotMovable)
	}
	switch i.Class() {
	case ClassCall, ClassCallInd:
		return 0, relocateError(i, from, to, ErrNotMovable)
	case ClassJump, ClassCondJump, ClassLoop, ClassTransaction:
		return relocateBranch(dst, i, from, to)
	}
	n := copy(dst, i.raw[:i.Len])
	if !i.RIPRelative() {
		return n, nil
	}
	disp := uint64(int64(i.Disp)) + from - to
	if i.Prefix&PrefixAddrSize == 0 && !fits32(disp) {
		return 0, relocateError(i, from, to, ErrOutOfReach)
	}
	put32(dst[i.dispOff:], uint32(disp))
	return n, nil
}

// relocateBranch rewrites a direct branch.
func relocateBranch(dst []byte, i *Inst, from, to uint64) (int, error) {
	target, _ := i.Target(from)
	if i.Enc == REX2 { // jmpabs
		return copy(dst, i.raw[:i.Len]), nil
	}
	n := 0
	switch op := i.Opcode; {
	case i.immLen > 1: // keep prefixes (they may be hints) and opcode
		n = copy(dst, i.raw[:i.immOff])
	case i.Class() == ClassLoop:
		// loop 1f; jmp 2f; 1: jmp target; 2:
		// Of the prefixes only the address size counts.
		if i.Prefix&PrefixAddrSize != 0 {
			dst[0], n = 0x67, 1
		}
		n += copy(dst[n:], []byte{op, 2, jmp8Op, JmpLen, JmpOp})
	case i.Class() == ClassCondJump:
		dst[0], dst[1], n = 0x0f, op+0x10, 2
	default:
		dst[0], n = JmpOp, 1
	}
	disp := target - (to + uint64(n) + 4)
	if !fits32(disp) {
		return 0, relocateError(i, from, to, ErrOutOfReach)
	}
	put32(dst[n:], uint32(disp))
	return n + 4, nil
}

func relocateError(i *Inst, from, to uint64, err error) error {
	return fmt.Errorf("x86: relocate %x from %#x to %#x: %w", i.raw[:i.Len], from, to, err)
}

// fits32 reports whether v is the sign extension of its low 32 bits.
func fits32(v uint64) bool { return v == uint64(int64(int32(v))) }

func put32(b []byte, v uint32) {
	_ = b[3]
	b[0], b[1], b[2], b[3] = byte(v), byte(v>>8), byte(v>>16), byte(v>>24)
}
