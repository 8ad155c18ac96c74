package x86

import (
	"fmt"
	"math/bits"
)

// Arg is an operand of an instruction that Asm assembles: a Reg64, a Mem or an Imm.
// For a Mem only Segment, Base, Index, Scale and Disp are used; Base may be NoReg for
// a sign-extended absolute address of 32 bits.
type Arg interface{ isArg() }

// Imm is an immediate operand. It is sign-extended, so an operand of less than 64
// bits may also be given as an unsigned number.
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

// encoder appends instructions without labels: their bytes depend only on their
// operands.
type encoder struct {
	b       []byte
	written RegSet
}

// opcode is a one-byte opcode, or with 0x0f in the upper byte a two-byte one.
type opcode uint16

// op appends an instruction on operands of size bytes: a register, and a
// register or memory.
func (e *encoder) op(size int, op opcode, reg Reg64, rm Arg) {
	e.modrm(size, op.forSize(size), reg, rm, size == 1 && hiByte(reg), size == 1)
}

// ext is op for an opcode that continues in the place of the register.
func (e *encoder) ext(size int, op opcode, n byte, rm Arg) {
	e.modrm(size, op.forSize(size), Reg64(n), rm, false, size == 1)
}

// forSize returns the opcode for operands of size bytes, if its lowest bit
// distinguishes bytes from all others (SDM Vol. 2, B.1.4.3).
func (o opcode) forSize(size int) opcode {
	if size == 1 {
		o &^= 1
	}
	return o
}

// hiByte reports whether a byte operand of that number is SPL to DIL only with
// a REX prefix (SDM Vol. 2, 3.1.1.1).
func hiByte(r Reg64) bool { return r >= RSP && r <= RDI }

// modrm is op for opcodes that fix the operand size. rex makes a REX prefix
// necessary; byteRM says that rm is a byte.
func (e *encoder) modrm(size int, op opcode, reg Reg64, rm Arg, rex, byteRM bool) {
	switch size {
	case 1, 2, 4, 8:
	default:
		panic(fmt.Sprintf("BUG: no operand of %d bytes", size))
	}
	if size == 2 {
		e.emit(0x66)
	}
	m, isMem := rm.(Mem)
	r, isReg := rm.(Reg64)
	if !isMem && !isReg || reg > R15 || isReg && r > R15 {
		panic(fmt.Sprintf("BUG: %v is neither register nor memory, or %d is no register", rm, reg))
	}
	if isMem && m.Segment == SegGS {
		e.emit(0x65)
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
		e.emit(prefix)
	}
	if op > 0xff {
		e.emit(byte(op >> 8))
	}
	e.emit(byte(op))
	if isReg {
		e.emit(0xc0 | byte(reg&7)<<3 | byte(r&7))
		return
	}
	e.mem(reg, m)
}

// mem appends ModRM, SIB and displacement (SDM Vol. 2, 2.1.5) with the shortest
// possible displacement.
func (e *encoder) mem(reg Reg64, m Mem) {
	disp := int32(m.Disp)
	if int64(disp) != m.Disp || m.Index == RSP || m.Index > R15 && m.Index != NoReg || m.Base > R15 && m.Base != NoReg || bits.OnesCount8(m.Scale) != 1 || m.Scale > 8 || m.Base == NoReg && m.Index != NoReg {
		panic(fmt.Sprintf("BUG: no such operand: %+v", m))
	}
	modrm := byte(reg&7) << 3
	if m.Base == NoReg {
		e.emit(modrm|4, 0x25)
		e.imm32(disp)
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
		e.emit(modrm|4, byte(bits.TrailingZeros8(m.Scale))<<6|index<<3|byte(m.Base&7))
	} else {
		e.emit(modrm | byte(m.Base&7))
	}
	switch modrm >> 6 {
	case 1:
		e.emit(byte(disp))
	case 2:
		e.imm32(disp)
	}
}

// imm returns v as the immediate of an operation on size bytes: at most 32 bits,
// which the CPU sign-extends.
func (v Imm) imm(size int) int32 {
	unused := 64 - 8*min(size, 4)
	n := int64(v) << unused >> unused
	if n != int64(v) && (size == 8 || uint64(v)<<unused>>unused != uint64(v)) {
		panic(fmt.Sprintf("BUG: %#x is no immediate of %d bytes", int64(v), size))
	}
	return int32(n)
}

// appendImmediate appends a full-size immediate of an operation on size bytes.
func (e *encoder) appendImmediate(size int, n int32) {
	switch size {
	case 1:
		e.emit(byte(n))
	case 2:
		e.emit(byte(n), byte(n>>8))
	default:
		e.imm32(n)
	}
}

// noteWrite records that an operand is written.
func (e *encoder) noteWrite(dst Arg) {
	if r, ok := dst.(Reg64); ok {
		e.written.add(r)
	}
}

// WrittenRegs returns the registers that instructions have written so far, except
// implicit operands (mul, div, cqo, rdtsc, lahf, push, pop and calls).
func (e *encoder) WrittenRegs() RegSet { return e.written }

// MarkWritten adds registers to the result of WrittenRegs.
func (e *encoder) MarkWritten(regs ...Reg64) {
	for _, r := range regs {
		e.written.add(r)
	}
}

func (e *encoder) emit(b ...byte) { e.b = append(e.b, b...) }

func (e *encoder) imm32(v int32) { e.b = append32(e.b, uint32(v)) }
