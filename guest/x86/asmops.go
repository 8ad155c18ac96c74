package x86

import "fmt"

// The instructions of Asm, by their mnemonics, with the destination first. size is
// the operand size in bytes: 1, 2, 4 or 8; a result of 4 bytes clears the upper half
// of its register (SDM Vol. 1, 3.4.1.1). Unless stated otherwise an instruction takes
// two registers, a register and memory in either order, or either and an immediate.

// Add appends dst += src.
func (e *encoder) Add(size int, dst, src Arg) { e.arith(0, size, dst, src) }

// Or appends dst |= src.
func (e *encoder) Or(size int, dst, src Arg) { e.arith(1, size, dst, src) }

// Adc appends dst += src + CF.
func (e *encoder) Adc(size int, dst, src Arg) { e.arith(2, size, dst, src) }

// And appends dst &= src.
func (e *encoder) And(size int, dst, src Arg) { e.arith(4, size, dst, src) }

// Sub appends dst -= src.
func (e *encoder) Sub(size int, dst, src Arg) { e.arith(5, size, dst, src) }

// Xor appends dst ^= src.
func (e *encoder) Xor(size int, dst, src Arg) { e.arith(6, size, dst, src) }

// Cmp appends the comparison of x with y: it sets the flags of x - y.
func (e *encoder) Cmp(size int, x, y Arg) { e.arith(cmpOp, size, x, y) }

// cmpOp is the only operation of the eight that writes no operand.
const cmpOp = 7

// arith appends one of the eight operations that begin the opcode map (SDM Vol.
// 2, table A-2), numbered as there.
func (e *encoder) arith(n byte, size int, dst, src Arg) {
	if n != cmpOp {
		e.noteWrite(dst)
	}
	switch src := src.(type) {
	case Reg64:
		e.op(size, opcode(n<<3|1), src, dst)
	case Mem:
		e.op(size, opcode(n<<3|3), dst.(Reg64), src)
	case Imm:
		v := src.imm(size)
		switch {
		case size == 1 && dst == RAX:
			e.emit(n<<3|4, byte(v))
		case size == 1:
			e.ext(1, 0x81, n, dst)
			e.emit(byte(v))
		case v == int32(int8(v)):
			e.ext(size, 0x83, n, dst)
			e.emit(byte(v))
		case dst == RAX:
			e.accumulator(size, n<<3|5)
			e.appendImmediate(size, v)
		default:
			e.ext(size, 0x81, n, dst)
			e.appendImmediate(size, v)
		}
	}
}

// accumulator appends the prefix and an opcode with the implicit operand RAX.
func (e *encoder) accumulator(size int, op byte) {
	switch size {
	case 2:
		e.emit(0x66)
	case 8:
		e.emit(0x48)
	}
	e.emit(op)
}

// Test appends the flags of x & y; y is a register or an immediate.
func (e *encoder) Test(size int, x, y Arg) {
	switch y := y.(type) {
	case Reg64:
		e.op(size, 0x85, y, x)
	case Imm:
		v := y.imm(size)
		if x == RAX {
			op := byte(0xa9)
			if size == 1 {
				op = 0xa8
			}
			e.accumulator(size, op)
		} else {
			e.ext(size, 0xf7, 0, x)
		}
		e.appendImmediate(size, v)
	default:
		panic("BUG: test takes a register or an immediate")
	}
}

// Mov appends dst = src. A register can take a 64-bit immediate.
func (e *encoder) Mov(size int, dst, src Arg) {
	e.noteWrite(dst)
	switch src := src.(type) {
	case Reg64:
		e.op(size, 0x89, src, dst)
	case Mem:
		e.op(size, 0x8b, dst.(Reg64), src)
	case Imm:
		if r, ok := dst.(Reg64); ok {
			e.movImm(size, r, src)
			return
		}
		v := src.imm(size)
		e.ext(size, 0xc7, 0, dst)
		e.appendImmediate(size, v)
	}
}

// movImm appends the shortest mov of v to all of r: 5 or 6 bytes if v fits in 32
// unsigned bits, 7 if it fits in 32 signed bits, else 10.
func (e *encoder) movImm(size int, r Reg64, v Imm) {
	if size == 4 {
		v = Imm(uint32(v.imm(4)))
	} else if size != 8 {
		panic("BUG: mov of an immediate to part of a register")
	}
	switch {
	case v == Imm(uint32(v)):
		e.shortReg(0xb8, r)
		e.imm32(int32(uint32(v)))
	case v == Imm(int32(v)):
		e.ext(8, 0xc7, 0, r)
		e.imm32(int32(v))
	default:
		e.emit(0x48 | byte(r>>3))
		e.emit(0xb8 | byte(r&7))
		e.b = append64(e.b, uint64(v))
	}
}

// Movzx appends dst = src of size bytes, zero-extended to 64 bits.
func (e *encoder) Movzx(size int, dst Reg64, src Arg) {
	switch size {
	case 1, 2:
		e.noteWrite(dst)
		e.modrm(4, 0x0fb6|opcode(size>>1), dst, src, false, size == 1)
	default:
		e.Mov(size, dst, src)
	}
}

// Movsx appends dst = src of size bytes, 1, 2 or 4, sign-extended to the to bytes of
// dst, 4 or 8.
func (e *encoder) Movsx(to, size int, dst Reg64, src Arg) {
	e.noteWrite(dst)
	switch {
	case size == 4 && to == 8:
		e.modrm(8, 0x63, dst, src, false, false)
	case size == 1 || size == 2:
		e.modrm(to, 0x0fbe|opcode(size>>1), dst, src, false, size == 1)
	default:
		panic(fmt.Sprintf("BUG: no extension of %d bytes to %d", size, to))
	}
}

// Lea appends dst = the address of src. It changes no flags.
func (e *encoder) Lea(size int, dst Reg64, src Mem) {
	e.noteWrite(dst)
	e.op(size, 0x8d, dst, src)
}

// Xchg appends the exchange of r with memory, which is always locked.
func (e *encoder) Xchg(size int, m Mem, r Reg64) {
	e.noteWrite(r)
	e.op(size, 0x87, r, m)
}

// Xadd appends m, r = m + r, m.
func (e *encoder) Xadd(size int, m Mem, r Reg64) {
	e.noteWrite(r)
	e.op(size, 0x0fc1, r, m)
}

// Cmpxchg appends: if RAX is m, then m = r, else RAX = m. ZF says which.
func (e *encoder) Cmpxchg(size int, m Mem, r Reg64) {
	e.noteWrite(RAX)
	e.op(size, 0x0fb1, r, m)
}

// Lock appends the prefix that makes the next instruction, if it reads and writes
// memory, atomic.
func (a *Asm) Lock() *Asm {
	a.emit(0xf0)
	return a
}

// Bts appends: CF = bit n of m, then the bit is set.
func (e *encoder) Bts(size int, m Mem, n uint8) {
	e.modrm(size, 0x0fba, 5, m, false, false)
	e.emit(n)
}

// Inc appends x++, and Dec x--; neither changes CF.
func (e *encoder) Inc(size int, x Arg) { e.unary(size, 0xff, 0, x) }

// Dec appends x--.
func (e *encoder) Dec(size int, x Arg) { e.unary(size, 0xff, 1, x) }

// Not appends x = ^x; it changes no flags.
func (e *encoder) Not(size int, x Arg) { e.unary(size, 0xf7, 2, x) }

// Neg appends x = -x.
func (e *encoder) Neg(size int, x Arg) { e.unary(size, 0xf7, 3, x) }

func (e *encoder) unary(size int, op opcode, n byte, x Arg) {
	e.noteWrite(x)
	e.ext(size, op, n, x)
}

// Mul appends RDX:RAX = RAX * x, unsigned.
func (e *encoder) Mul(size int, x Arg) { e.ext(size, 0xf7, 4, x) }

// Div appends RAX, RDX = RDX:RAX / x and the remainder, unsigned.
func (e *encoder) Div(size int, x Arg) { e.ext(size, 0xf7, 6, x) }

// Idiv is Div, signed.
func (e *encoder) Idiv(size int, x Arg) { e.ext(size, 0xf7, 7, x) }

// SignDX appends cqo, or with 4 bytes cdq: RDX = the sign of RAX, in all bits.
func (e *encoder) SignDX(size int) {
	if size == 8 {
		e.emit(0x48)
	}
	e.emit(0x99)
}

// Imul appends dst *= src, a register or memory.
func (e *encoder) Imul(size int, dst Reg64, src Arg) {
	e.noteWrite(dst)
	e.modrm(size, 0x0faf, dst, src, false, false)
}

// ImulImm appends dst = src * v; src is a register or memory.
func (e *encoder) ImulImm(size int, dst Reg64, src Arg, v Imm) {
	e.noteWrite(dst)
	n := v.imm(size)
	if n == int32(int8(n)) {
		e.modrm(size, 0x6b, dst, src, false, false)
		e.emit(byte(n))
		return
	}
	e.modrm(size, 0x69, dst, src, false, false)
	e.appendImmediate(size, n)
}

// Shl appends dst <<= n: an Imm, or the low bits of RCX.
func (e *encoder) Shl(size int, dst, n Arg) { e.shift(size, 4, dst, n) }

// Shr appends dst >>= n with zeros; see Shl.
func (e *encoder) Shr(size int, dst, n Arg) { e.shift(size, 5, dst, n) }

// Sar appends dst >>= n with the sign; see Shl.
func (e *encoder) Sar(size int, dst, n Arg) { e.shift(size, 7, dst, n) }

// Rol appends the rotation of dst to the left; see Shl.
func (e *encoder) Rol(size int, dst, n Arg) { e.shift(size, 0, dst, n) }

func (e *encoder) shift(size int, kind byte, dst, n Arg) {
	e.noteWrite(dst)
	if n == RCX {
		e.ext(size, 0xd3, kind, dst)
		return
	}
	v := n.(Imm)
	if v < 0 || v >= 64 {
		panic(fmt.Sprintf("BUG: shift by %d", v))
	}
	e.ext(size, 0xc1, kind, dst)
	e.emit(byte(v))
}

// Shrd appends dst >>= n with the low bits of src shifted in from above.
func (e *encoder) Shrd(size int, dst Arg, src Reg64, n uint8) {
	e.noteWrite(dst)
	e.modrm(size, 0x0fac, src, dst, false, false)
	e.emit(n)
}

// Bswap appends the reversal of the bytes of r, 4 or 8.
func (e *encoder) Bswap(size int, r Reg64) {
	e.noteWrite(r)
	prefix := byte(0x40) | byte(r>>3)
	if size == 8 {
		prefix |= 8
	}
	if prefix != 0x40 {
		e.emit(prefix)
	}
	e.emit(0x0f, 0xc8|byte(r&7))
}

// shortReg appends an opcode that has the register in its low bits.
func (e *encoder) shortReg(op byte, r Reg64) {
	if r > R15 {
		panic(fmt.Sprintf("BUG: %d is no register", r))
	}
	if r >= R8 {
		e.emit(0x41)
	}
	e.emit(op | byte(r&7))
}
