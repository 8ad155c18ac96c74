package probetest

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// byteOr returns 1 when bit 0 of the opcode is clear, else the operand size.
func (x *instr) byteOr() int {
	if x.in.Opcode&1 == 0 {
		return 1
	}
	return x.size
}

// map0 executes the one-byte opcodes.
func (x *instr) map0() {
	op := x.in.Opcode
	imm := uint64(x.in.Imm)
	s := x.byteOr()
	ss := x.stackSize()
	switch {
	case op < 0x40 && op&7 < 6:
		x.classicALU(op, s, imm)
	case op>>3 == 0x50>>3:
		x.push(ss, x.reg(x.b(op), ss))
	case op>>3 == 0x58>>3:
		v := x.pop(ss)
		x.setReg(x.b(op), ss, v)
	case op == 0x63:
		x.setReg(x.r(), x.size, uint64(extend(x.rm(4), 4)))
	case op == 0x68, op == 0x6a:
		x.push(ss, imm)
	case op == 0x69, op == 0x6b:
		x.imul(x.rm(x.size), imm)
	case op>>4 == 7:
		if condition(op&15, x.flags()) {
			x.jump(x.next + imm)
		}
	case op == 0x80, op == 0x81, op == 0x83:
		if op != 0x80 {
			s = x.size
		}
		v, f, w := alu(x.in.Reg(), x.rm(s), imm, x.flags(), s)
		if w {
			x.setRM(s, v)
		}
		x.setFlags(f)
	case op == 0x84, op == 0x85:
		_, f, _ := alu(4, x.rm(s), x.reg(x.r(), s), x.flags(), s)
		x.setFlags(f)
	case op == 0x86, op == 0x87:
		a, b := x.rm(s), x.reg(x.r(), s)
		x.setRM(s, b)
		x.setReg(x.r(), s, a)
	case op == 0x88, op == 0x89:
		x.setRM(s, x.reg(x.r(), s))
	case op == 0x8a, op == 0x8b:
		x.setReg(x.r(), s, x.rm(s))
	case op == 0x8d:
		x.setReg(x.r(), x.size, x.addr())
	case op == 0x8f:
		v := x.pop(ss) // RSP as a base counts after the increment (SDM Vol. 2, POP)
		x.setRM(ss, v)
	case op == 0x90 && x.rex&1 == 0:
	case op>>3 == 0x90>>3:
		a, b := x.reg(0, x.size), x.reg(x.b(op), x.size)
		x.setReg(0, x.size, b)
		x.setReg(x.b(op), x.size, a)
	case op == 0x98:
		x.setReg(0, x.size, uint64(extend(x.reg(0, x.size/2), x.size/2)))
	case op == 0x99:
		x.setReg(2, x.size, uint64(extend(x.reg(0, x.size), x.size)>>63))
	case op == 0x9c:
		x.push(ss, x.flags()&^0x30000)
	case op == 0x9d:
		const settable = arith | tf | fi | df | 1<<14 | 1<<18 | 1<<21 // at CPL 0; IOPL stays
		f := x.pop(ss)
		x.setFlags(x.flags()&^settable | f&settable)
	case op == 0x9e: // sahf: AH is bits 8 to 15 of RAX
		const low = arith &^ of
		x.setFlags(x.flags()&^low | x.v.regs.RAX>>8&low)
	case op == 0x9f: // lahf
		x.setReg(0, 2, x.v.regs.RAX&0xff|(x.flags()&(arith&^of)|2)<<8)
	case op >= 0xa4 && op <= 0xa5, op >= 0xaa && op <= 0xad:
		x.string(op, s)
	case op == 0xa8, op == 0xa9:
		_, f, _ := alu(4, x.reg(0, s), imm, x.flags(), s)
		x.setFlags(f)
	case op>>3 == 0xb0>>3:
		x.setReg(x.b(op), 1, imm)
	case op>>3 == 0xb8>>3:
		x.setReg(x.b(op), x.size, imm)
	case op == 0xc0, op == 0xc1, op >= 0xd0 && op <= 0xd3:
		n := imm
		if op == 0xd0 || op == 0xd1 {
			n = 1
		} else if op >= 0xd2 {
			n = x.reg(1, 1)
		}
		v, f := shift(x.in.Reg(), x.rm(s), n, x.flags(), s)
		x.setRM(s, v)
		x.setFlags(f)
	case op == 0xc6 && x.in.Reg() == 0, op == 0xc7 && x.in.Reg() == 0:
		x.setRM(s, imm)
	case op == 0xc9:
		sp := x.v.regs.RBP
		x.v.regs.RSP = sp
		x.setReg(5, 8, x.pop(8))
	case op == 0xc8:
		x.enter()
	default:
		x.control(op, imm)
	}
}

// classicALU executes the eight operations of the opcodes below 40, in their six
// forms.
func (x *instr) classicALU(op byte, s int, imm uint64) {
	var a, b uint64
	switch op & 7 {
	case 0, 1:
		a, b = x.rm(s), x.reg(x.r(), s)
	case 2, 3:
		a, b = x.reg(x.r(), s), x.rm(s)
	default:
		a, b = x.reg(0, s), imm
	}
	v, f, w := alu(op>>3, a, b, x.flags(), s)
	if w {
		switch op & 7 {
		case 0, 1:
			x.setRM(s, v)
		case 2, 3:
			x.setReg(x.r(), s, v)
		default:
			x.setReg(0, s, v)
		}
	}
	x.setFlags(f)
}

// enter executes enter with nesting level 0.
func (x *instr) enter() {
	b := x.in.Bytes()
	n := len(b)
	if b[n-1]&31 != 0 {
		x.raiseUndefined()
		return
	}
	size := uint64(b[n-3]) | uint64(b[n-2])<<8
	x.push(8, x.v.regs.RBP)
	if x.fail == nil {
		x.v.regs.RBP = x.v.regs.RSP
		x.v.regs.RSP -= size
	}
}

// string executes movs, stos and lods, one element at a time, so that a repeated
// one can be interrupted.
func (x *instr) string(op byte, s int) {
	r := &x.v.regs
	rep := x.in.Has(x86.PrefixRep)
	if rep && r.RCX == 0 {
		return
	}
	step := uint64(s)
	if r.RFLAGS&df != 0 {
		step = -step
	}
	switch op &^ 1 {
	case 0xa4:
		x.store(r.RDI, s, x.load(r.RSI, s))
		r.RSI += step
		r.RDI += step
	case 0xaa:
		x.store(r.RDI, s, x.reg(0, s))
		r.RDI += step
	default:
		x.setReg(0, s, x.load(r.RSI, s))
		r.RSI += step
	}
	if rep {
		if r.RCX--; r.RCX != 0 {
			x.next = x.at
		}
	}
}

// control executes branches, stack frames, flags, groups 3 and 5, and
// instructions that leave the guest.
func (x *instr) control(op byte, imm uint64) {
	r := &x.v.regs
	switch op {
	case 0xc2, 0xc3:
		to := x.pop(8)
		if op == 0xc2 {
			r.RSP += imm & 0xffff
		}
		x.jump(to)
	case 0xcb:
		if x.size != 8 {
			x.raiseUndefined()
			return
		}
		to := x.pop(8)
		x.pop(8)
		x.jump(to)
	case 0xcf:
		x.iret()
	case 0xe0, 0xe1, 0xe2, 0xe3:
		x.loop(op, imm)
	case 0xe6, 0xe7:
		if x.v.cpl != 0 {
			x.fail = &exception{vector: vecGP}
			return
		}
		x.v.executeOut(uint8(imm), uint32(r.RAX))
	case 0xe8:
		to := x.next + imm
		x.push(8, x.next)
		x.jump(to)
	case 0xe9, 0xeb:
		x.jump(x.next + imm)
	case 0xf4:
		x.v.halted = true
	case 0xf5:
		x.setFlags(x.flags() ^ cf)
	case 0xf6, 0xf7:
		x.group3()
	case 0xf8:
		x.setFlags(x.flags() &^ cf)
	case 0xf9:
		x.setFlags(x.flags() | cf)
	case 0xfa, 0xfb:
		if x.v.cpl != 0 {
			x.fail = &exception{vector: vecGP}
			return
		}
		if op == 0xfb && x.flags()&fi == 0 {
			x.v.shadow = true
		}
		x.setFlags(x.flags()&^fi | uint64(op&1)*fi)
	case 0xfc:
		x.setFlags(x.flags() &^ df)
	case 0xfd:
		x.setFlags(x.flags() | df)
	case 0xfe, 0xff:
		x.group5(op)
	default:
		x.raiseUndefined()
	}
}

// loop executes loopne, loope, loop and jrcxz with a 64- or 32-bit counter.
func (x *instr) loop(op byte, imm uint64) {
	size := 8
	if x.in.Has(x86.PrefixAddrSize) {
		size = 4
	}
	n := x.reg(1, size)
	if op == 0xe3 {
		if n == 0 {
			x.jump(x.next + imm)
		}
		return
	}
	n = (n - 1) & maskOf(size)
	z := x.flags()&zf != 0
	taken := n != 0 && (op == 0xe2 || op == 0xe1 && z || op == 0xe0 && !z)
	if taken {
		x.jump(x.next + imm)
	}
	x.setReg(1, size, n)
}

func (x *instr) group3() {
	s := x.byteOr()
	a := x.rm(s)
	switch x.in.Reg() {
	case 0, 1:
		_, f, _ := alu(4, a, uint64(x.in.Imm), x.flags(), s)
		x.setFlags(f)
	case 2:
		x.setRM(s, ^a)
	case 3:
		v, f := sub(0, a, 0, s)
		x.setRM(s, v)
		x.setFlags(x.flags()&^arith | f)
	case 4:
		x.mul(a, s)
	case 6:
		x.div(a, s)
	default:
		x.raiseUndefined()
	}
}

// mul and div do the 32- and 64-bit forms.
func (x *instr) mul(a uint64, s int) {
	var hi, lo uint64
	switch s {
	case 8:
		hi, lo = bits.Mul64(x.v.regs.RAX, a)
	case 4:
		p := x.reg(0, 4) * a
		hi, lo = p>>32, p&0xffffffff
	default:
		x.raiseUndefined()
		return
	}
	x.setReg(0, s, lo)
	x.setReg(2, s, hi)
	f := x.flags() &^ (cf | of)
	if hi != 0 {
		f |= cf | of
	}
	x.setFlags(f)
}

func (x *instr) div(a uint64, s int) {
	hi, lo := x.reg(2, s), x.reg(0, s)
	switch {
	case s < 4:
		x.raiseUndefined()
	case x.fail != nil:
	case hi >= a: // also a == 0
		x.fail = &exception{vector: vecDE}
	case s == 8:
		q, r := bits.Div64(hi, lo, a)
		x.setReg(0, 8, q)
		x.setReg(2, 8, r)
	default:
		n := hi<<32 | lo
		x.setReg(0, 4, n/a)
		x.setReg(2, 4, n%a)
	}
}

func (x *instr) group5(op byte) {
	s := x.byteOr()
	switch n := x.in.Reg(); {
	case n < 2:
		a := x.rm(s)
		var v, f uint64
		if n == 0 {
			v, f = add(a, 1, 0, s)
		} else {
			v, f = sub(a, 1, 0, s)
		}
		x.setRM(s, v)
		x.setFlags(x.flags()&^(arith&^cf) | f&^cf) // CF is left alone
	case op == 0xff && n == 2:
		to := x.rm(8)
		x.push(8, x.next)
		x.jump(to)
	case op == 0xff && n == 4:
		x.jump(x.rm(8))
	case op == 0xff && n == 6:
		x.push(x.stackSize(), x.rm(x.stackSize()))
	default:
		x.raiseUndefined()
	}
}

// iret executes iretq.
func (x *instr) iret() {
	if x.size != 8 {
		x.raiseUndefined()
		return
	}
	to, cs, f, sp, ss := x.pop(8), x.pop(8), x.pop(8), x.pop(8), x.pop(8)
	_ = ss // flat
	x.jump(to)
	if x.fail == nil {
		x.setFlags(f)
		x.v.regs.RSP = sp
		x.v.cpl = uint8(cs & 3)
	}
}
