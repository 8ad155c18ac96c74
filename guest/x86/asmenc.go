package x86

import (
	"fmt"
	"math/bits"
)

// Arg is an operand of an instruction that Asm assembles: a Reg64, a Mem or an
// Imm. Of a Mem only Segment, Base, Index, Scale and Disp count; Base may be NoReg for
// an absolute address of 32 bits with its sign.
type Arg interface{ isArg() }

// Imm is an immediate operand. It is extended with its sign, so one of an
// operation on less than 64 bits may also be the number without sign.
type Imm int64

func (Reg64) isArg() {}
func (Mem) isArg()   {}
func (Imm) isArg()   {}

// At is the memory at base + disp.
func At(base Reg64, disp int) Mem {
	return Mem{Base: base, Index: NoReg, Scale: 1, Disp: int64(disp)}
}

// AtGS is the memory at the base of GS + disp.
func AtGS(disp int) Mem {
	m := At(NoReg, disp)
	m.Segment = SegGS
	return m
}

// AtIndex is the memory at base + index*scale + disp.
func AtIndex(base, index Reg64, scale uint8, disp int) Mem {
	return Mem{Base: base, Index: index, Scale: scale, Disp: int64(disp)}
}

// Plus returns the operand n bytes further on.
func (m Mem) Plus(n int) Mem {
	m.Disp += int64(n)
	return m
}

// opcode is a one-byte opcode, or with 0x0f in the upper byte a two-byte one.
type opcode uint16

// op appends an instruction on operands of size bytes: a register, and a
// register or memory.
func (a *Asm) op(size int, op opcode, reg Reg64, rm Arg) {
	a.modrm(size, op.of(size), reg, rm, size == 1 && hiByte(reg), size == 1)
}

// ext is op for an opcode that goes on in the place of the register.
func (a *Asm) ext(size int, op opcode, n byte, rm Arg) {
	a.modrm(size, op.of(size), Reg64(n), rm, false, size == 1)
}

// of returns the opcode for operands of size bytes, where its lowest bit tells
// bytes from all others (SDM Vol. 2, B.1.4.3).
func (o opcode) of(size int) opcode {
	if size == 1 {
		o &^= 1
	}
	return o
}

// hiByte reports whether a byte operand of that number is SPL to DIL only with
// a REX prefix (SDM Vol. 2, 3.1.1.1).
func hiByte(r Reg64) bool { return r >= RSP && r <= RDI }

// modrm is op for any size that the opcode itself stands for. rex makes a REX
// prefix necessary; byteRM says that rm is a byte.
func (a *Asm) modrm(size int, op opcode, reg Reg64, rm Arg, rex, byteRM bool) {
	switch size {
	case 1, 2, 4, 8:
	default:
		panic(fmt.Sprintf("BUG: no operand of %d bytes", size))
	}
	if size == 2 {
		a.emit(0x66)
	}
	m, isMem := rm.(Mem)
	r, isReg := rm.(Reg64)
	if !isMem && !isReg || reg > R15 || isReg && r > R15 {
		panic(fmt.Sprintf("BUG: %v is neither register nor memory, or %d is no register", rm, reg))
	}
	if isMem && m.Segment == SegGS {
		a.emit(0x65)
	}
	prefix := byte(0x40) | byte(reg>>3)<<2
	if size == 8 {
		prefix |= 8
	}
	if isReg {
		prefix |= byte(r >> 3)
		rex = rex || byteRM && hiByte(r)
	} else {
		if m.Base != NoReg {
			prefix |= byte(m.Base >> 3)
		}
		if m.Index != NoReg {
			prefix |= byte(m.Index>>3) << 1
		}
	}
	if prefix != 0x40 || rex {
		a.emit(prefix)
	}
	if op > 0xff {
		a.emit(byte(op >> 8))
	}
	a.emit(byte(op))
	if isReg {
		a.emit(0xc0 | byte(reg&7)<<3 | byte(r&7))
		return
	}
	a.mem(reg, m)
}

// mem appends ModRM, SIB and displacement (SDM Vol. 2, 2.1.5) with the shortest
// displacement that there is.
func (a *Asm) mem(reg Reg64, m Mem) {
	disp := int32(m.Disp)
	if int64(disp) != m.Disp || m.Index == RSP || m.Index > R15 && m.Index != NoReg || m.Base > R15 && m.Base != NoReg || bits.OnesCount8(m.Scale) != 1 || m.Scale > 8 || m.Base == NoReg && m.Index != NoReg {
		panic(fmt.Sprintf("BUG: no such operand: %+v", m))
	}
	modrm := byte(reg&7) << 3
	if m.Base == NoReg {
		a.emit(modrm|4, 0x25)
		a.imm32(disp)
		return
	}
	short := disp == int32(int8(disp))
	switch {
	case disp == 0 && m.Base&7 != RBP:
	case short:
		modrm |= 0x40
	default:
		modrm |= 0x80
	}
	if m.Index != NoReg || m.Base&7 == RSP {
		index := byte(4) // none
		if m.Index != NoReg {
			index = byte(m.Index & 7)
		}
		a.emit(modrm|4, byte(bits.TrailingZeros8(m.Scale))<<6|index<<3|byte(m.Base&7))
	} else {
		a.emit(modrm | byte(m.Base&7))
	}
	switch modrm >> 6 {
	case 1:
		a.emit(byte(disp))
	case 2:
		a.imm32(disp)
	}
}

// imm returns v as the immediate of an operation on size bytes: 32 bits, which
// the CPU extends with their sign, at most.
func (v Imm) imm(size int) int32 {
	unused := 64 - 8*min(size, 4)
	n := int64(v) << unused >> unused
	if n != int64(v) && (size == 8 || uint64(v)<<unused>>unused != uint64(v)) {
		panic(fmt.Sprintf("BUG: %#x is no immediate of %d bytes", int64(v), size))
	}
	return int32(n)
}

// immediate appends an immediate of an operation on size bytes, whole.
func (a *Asm) immediate(size int, n int32) {
	switch size {
	case 1:
		a.emit(byte(n))
	case 2:
		a.emit(byte(n), byte(n>>8))
	default:
		a.imm32(n)
	}
}

// writes notes that an operand is written.
func (a *Asm) writes(dst Arg) {
	if r, ok := dst.(Reg64); ok {
		a.written.Add(r)
	}
}
