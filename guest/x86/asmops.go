package x86

import "fmt"

// The instructions that Asm knows, by their mnemonics, with the destination
// first. size is that of the operands in bytes: 1, 2, 4 or 8; a result of 4
// bytes clears the upper half of its register (SDM Vol. 1, 3.4.1.1). Unless it
// says otherwise an instruction takes two registers, a register and memory in
// either order, or either and an immediate.

// Add appends dst += src.
func (a *Asm) Add(size int, dst, src Arg) { a.arith(0, size, dst, src) }

// Or appends dst |= src.
func (a *Asm) Or(size int, dst, src Arg) { a.arith(1, size, dst, src) }

// Adc appends dst += src + CF.
func (a *Asm) Adc(size int, dst, src Arg) { a.arith(2, size, dst, src) }

// And appends dst &= src.
func (a *Asm) And(size int, dst, src Arg) { a.arith(4, size, dst, src) }

// Sub appends dst -= src.
func (a *Asm) Sub(size int, dst, src Arg) { a.arith(5, size, dst, src) }

// Xor appends dst ^= src.
func (a *Asm) Xor(size int, dst, src Arg) { a.arith(6, size, dst, src) }

// Cmp appends the comparison of x with y: the flags are those of x - y.
func (a *Asm) Cmp(size int, x, y Arg) { a.arith(cmpOp, size, x, y) }

// cmpOp is the one operation of eight that writes no operand.
const cmpOp = 7

// arith appends one of the eight operations that begin the opcode map (SDM Vol.
// 2, table A-2), numbered as there.
func (a *Asm) arith(n byte, size int, dst, src Arg) {
	if n != cmpOp {
		a.writes(dst)
	}
	switch src := src.(type) {
	case Reg64:
		a.op(size, opcode(n<<3|1), src, dst)
	case Mem:
		a.op(size, opcode(n<<3|3), dst.(Reg64), src)
	case Imm:
		v := src.imm(size)
		switch {
		case size == 1 && dst == RAX:
			a.emit(n<<3|4, byte(v))
		case size == 1:
			a.ext(1, 0x81, n, dst)
			a.emit(byte(v))
		case v == int32(int8(v)):
			a.ext(size, 0x83, n, dst)
			a.emit(byte(v))
		case dst == RAX:
			a.accumulator(size, n<<3|5)
			a.immediate(size, v)
		default:
			a.ext(size, 0x81, n, dst)
			a.immediate(size, v)
		}
	}
}

// accumulator appends the prefix and an opcode that has RAX as its operand.
func (a *Asm) accumulator(size int, op byte) {
	switch size {
	case 2:
		a.emit(0x66)
	case 8:
		a.emit(0x48)
	}
	a.emit(op)
}

// Test appends the flags of x & y; y is a register or an immediate.
func (a *Asm) Test(size int, x, y Arg) {
	switch y := y.(type) {
	case Reg64:
		a.op(size, 0x85, y, x)
	case Imm:
		v := y.imm(size)
		if x == RAX {
			op := byte(0xa9)
			if size == 1 {
				op = 0xa8
			}
			a.accumulator(size, op)
		} else {
			a.ext(size, 0xf7, 0, x)
		}
		a.immediate(size, v)
	default:
		panic("BUG: test takes a register or an immediate")
	}
}

// Mov appends dst = src. Of an immediate, a register takes all 64 bits.
func (a *Asm) Mov(size int, dst, src Arg) {
	a.writes(dst)
	switch src := src.(type) {
	case Reg64:
		a.op(size, 0x89, src, dst)
	case Mem:
		a.op(size, 0x8b, dst.(Reg64), src)
	case Imm:
		if r, ok := dst.(Reg64); ok {
			a.movImm(size, r, src)
			return
		}
		v := src.imm(size)
		a.ext(size, 0xc7, 0, dst)
		a.immediate(size, v)
	}
}

// movImm appends the shortest mov of v to all of r: 5 or 6 bytes when v fits in
// 32 bits without sign, 7 when it does with it, else 10.
func (a *Asm) movImm(size int, r Reg64, v Imm) {
	if size == 4 {
		v = Imm(uint32(v.imm(4)))
	} else if size != 8 {
		panic("BUG: mov of an immediate to part of a register")
	}
	switch {
	case v == Imm(uint32(v)):
		a.shortReg(0xb8, r)
		a.imm32(int32(uint32(v)))
	case v == Imm(int32(v)):
		a.ext(8, 0xc7, 0, r)
		a.imm32(int32(v))
	default:
		a.emit(0x48 | byte(r>>3))
		a.emit(0xb8 | byte(r&7))
		a.b = append64(a.b, uint64(v))
	}
}

// Movzx appends dst = src of size bytes, extended with zeros to 64 bits.
func (a *Asm) Movzx(size int, dst Reg64, src Arg) {
	switch size {
	case 1, 2:
		a.writes(dst)
		a.modrm(4, 0x0fb6|opcode(size>>1), dst, src, false, size == 1)
	default:
		a.Mov(size, dst, src)
	}
}

// Movsx appends dst = src of size bytes, 1, 2 or 4, extended with its sign to
// the to bytes of dst, 4 or 8.
func (a *Asm) Movsx(to, size int, dst Reg64, src Arg) {
	a.writes(dst)
	switch {
	case size == 4 && to == 8:
		a.modrm(8, 0x63, dst, src, false, false)
	case size == 1 || size == 2:
		a.modrm(to, 0x0fbe|opcode(size>>1), dst, src, false, size == 1)
	default:
		panic(fmt.Sprintf("BUG: no extension of %d bytes to %d", size, to))
	}
}

// Lea appends dst = the address that src stands for. It changes no flags.
func (a *Asm) Lea(size int, dst Reg64, src Mem) {
	a.writes(dst)
	a.op(size, 0x8d, dst, src)
}

// Xchg appends the exchange of r with memory, which is always locked.
func (a *Asm) Xchg(size int, m Mem, r Reg64) {
	a.writes(r)
	a.op(size, 0x87, r, m)
}

// Xadd appends m, r = m + r, m.
func (a *Asm) Xadd(size int, m Mem, r Reg64) {
	a.writes(r)
	a.op(size, 0x0fc1, r, m)
}

// Cmpxchg appends: if RAX is m, then m = r, else RAX = m. ZF tells.
func (a *Asm) Cmpxchg(size int, m Mem, r Reg64) {
	a.writes(RAX)
	a.op(size, 0x0fb1, r, m)
}

// Lock appends the prefix that makes the next instruction, one of those that
// read and write memory, atomic.
func (a *Asm) Lock() *Asm {
	a.emit(0xf0)
	return a
}

// Bts appends: CF = bit n of m, which is set.
func (a *Asm) Bts(size int, m Mem, n uint8) {
	a.modrm(size, 0x0fba, 5, m, false, false)
	a.emit(n)
}

// Inc appends x++, and Dec x--, without CF.
func (a *Asm) Inc(size int, x Arg) { a.unary(size, 0xff, 0, x) }

// Dec appends x--.
func (a *Asm) Dec(size int, x Arg) { a.unary(size, 0xff, 1, x) }

// Not appends x = ^x, without flags.
func (a *Asm) Not(size int, x Arg) { a.unary(size, 0xf7, 2, x) }

// Neg appends x = -x.
func (a *Asm) Neg(size int, x Arg) { a.unary(size, 0xf7, 3, x) }

func (a *Asm) unary(size int, op opcode, n byte, x Arg) {
	a.writes(x)
	a.ext(size, op, n, x)
}

// Mul appends RDX:RAX = RAX * x, without sign.
func (a *Asm) Mul(size int, x Arg) { a.ext(size, 0xf7, 4, x) }

// Div appends RAX, RDX = RDX:RAX / x and the remainder, without sign.
func (a *Asm) Div(size int, x Arg) { a.ext(size, 0xf7, 6, x) }

// Idiv is Div with sign.
func (a *Asm) Idiv(size int, x Arg) { a.ext(size, 0xf7, 7, x) }

// SignDX appends cqo, or with 4 bytes cdq: RDX = the sign of RAX, in all bits.
func (a *Asm) SignDX(size int) {
	if size == 8 {
		a.emit(0x48)
	}
	a.emit(0x99)
}

// Imul appends dst *= src, a register or memory.
func (a *Asm) Imul(size int, dst Reg64, src Arg) {
	a.writes(dst)
	a.modrm(size, 0x0faf, dst, src, false, false)
}

// ImulImm appends dst = src * v; src is a register or memory.
func (a *Asm) ImulImm(size int, dst Reg64, src Arg, v Imm) {
	a.writes(dst)
	n := v.imm(size)
	if n == int32(int8(n)) {
		a.modrm(size, 0x6b, dst, src, false, false)
		a.emit(byte(n))
		return
	}
	a.modrm(size, 0x69, dst, src, false, false)
	a.immediate(size, n)
}

// Shl appends dst <<= n: an Imm, or RCX, of which the low bits count.
func (a *Asm) Shl(size int, dst, n Arg) { a.shift(size, 4, dst, n) }

// Shr appends dst >>= n with zeros; see Shl.
func (a *Asm) Shr(size int, dst, n Arg) { a.shift(size, 5, dst, n) }

// Sar appends dst >>= n with the sign; see Shl.
func (a *Asm) Sar(size int, dst, n Arg) { a.shift(size, 7, dst, n) }

// Rol appends the rotation of dst to the left; see Shl.
func (a *Asm) Rol(size int, dst, n Arg) { a.shift(size, 0, dst, n) }

func (a *Asm) shift(size int, kind byte, dst, n Arg) {
	a.writes(dst)
	if n == RCX {
		a.ext(size, 0xd3, kind, dst)
		return
	}
	v := n.(Imm)
	if v < 0 || v >= 64 {
		panic(fmt.Sprintf("BUG: shift by %d", v))
	}
	a.ext(size, 0xc1, kind, dst)
	a.emit(byte(v))
}

// Shrd appends dst >>= n with the low bits of src coming in from above.
func (a *Asm) Shrd(size int, dst Arg, src Reg64, n uint8) {
	a.writes(dst)
	a.modrm(size, 0x0fac, src, dst, false, false)
	a.emit(n)
}

// Bswap appends the reversal of the bytes of r, 4 or 8.
func (a *Asm) Bswap(size int, r Reg64) {
	a.writes(r)
	prefix := byte(0x40) | byte(r>>3)
	if size == 8 {
		prefix |= 8
	}
	if prefix != 0x40 {
		a.emit(prefix)
	}
	a.emit(0x0f, 0xc8|byte(r&7))
}

// shortReg appends an opcode that has the register in its low bits.
func (a *Asm) shortReg(op byte, r Reg64) {
	if r > R15 {
		panic(fmt.Sprintf("BUG: %d is no register", r))
	}
	if r >= R8 {
		a.emit(0x41)
	}
	a.emit(op | byte(r&7))
}
