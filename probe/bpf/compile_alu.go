package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// alu emits an arithmetic operation.
func (c *compiler) alu(o *op) {
	kind, f := o.code&^3, o.code&3
	wide, x := f == form64K || f == form64X, f == form64X || f == form32X
	dst, src := c.regs[o.dst], c.regs[o.src]
	imm := int32(uint32(o.imm))
	switch kind {
	case opAdd, opSub, opOr, opAnd, opXor:
		a := map[opc]alu2{opAdd: aluAdd, opSub: aluSub, opOr: aluOr, opAnd: aluAnd, opXor: aluXor}[kind]
		if x {
			c.rr(wide, a, dst, src)
		} else {
			c.ri(wide, a, dst, imm)
		}
	case opMov:
		switch {
		case x:
			c.mov(wide, dst, src)
		case wide:
			c.movImm(dst, uint64(o.imm))
		default:
			c.movImm(dst, uint64(uint32(imm)))
		}
	case opMul:
		if x {
			c.imul(wide, dst, src)
		} else {
			c.imulImm(wide, dst, dst, imm)
		}
	case opLsh, opRsh, opArsh:
		s := map[opc]reg64{opLsh: shiftLeft, opRsh: shiftRight, opArsh: shiftSar}[kind]
		switch {
		case x:
			c.shift(wide, s, dst, src)
		case wide:
			c.shiftImm(true, s, dst, byte(imm&63))
		case imm&31 == 0:
			c.mov(false, dst, dst) // a shift by 0 would leave the upper half
		default:
			c.shiftImm(false, s, dst, byte(imm&31))
		}
	default:
		c.divide(kind, wide, x, dst, src, imm)
	}
}

// shift emits a shift by a register. The CPU masks the count as RFC 9669 does,
// but takes it from CL only, and leaves the destination alone when it is 0.
func (c *compiler) shift(wide bool, kind reg64, dst, src reg64) {
	cl := insn.RCX
	switch {
	case src == cl && dst != cl:
		c.shiftCL(wide, kind, dst)
	case dst == cl:
		c.mov(true, tmpB, cl)
		if src != cl {
			c.mov(true, cl, src)
		}
		c.shiftCL(wide, kind, tmpB)
		c.mov(wide, cl, tmpB)
		return
	default:
		c.mov(true, tmpB, cl)
		c.mov(true, cl, src)
		c.shiftCL(wide, kind, dst)
		c.mov(true, cl, tmpB)
	}
	if !wide {
		c.mov(false, dst, dst)
	}
}

// divide emits the four divisions. What would trap is done without dividing.
func (c *compiler) divide(kind opc, wide, x bool, dst, src reg64, imm int32) {
	signed, rem := kind == opSdiv || kind == opSmod, kind == opMod || kind == opSmod
	done, zero, minus := c.newLabel(), c.newLabel(), c.newLabel()
	if x {
		c.mov(wide, tmpB, src)
	} else {
		v := uint64(int64(imm))
		if !wide {
			v = uint64(uint32(imm))
		}
		c.movImm(tmpB, v)
	}
	c.test(wide, tmpB, tmpB)
	c.jcc(condE, zero)
	if signed {
		c.ri(wide, aluCmp, tmpB, -1)
		c.jcc(condE, minus)
	}
	c.mov(true, tmp9, insn.RDX)
	c.mov(true, tmpA, insn.RAX)
	c.mov(wide, insn.RAX, dst)
	op := reg64(unaryDiv)
	if signed {
		op = unaryIdiv
		if wide {
			c.emit(0x48)
		}
		c.emit(0x99) // cqo or cdq
		c.writes(insn.RDX)
	} else {
		c.movImm(insn.RDX, 0)
	}
	c.unary(wide, op, tmpB)
	if rem {
		c.mov(wide, tmpB, insn.RDX)
	} else {
		c.mov(wide, tmpB, insn.RAX)
	}
	c.mov(true, insn.RDX, tmp9)
	c.mov(true, insn.RAX, tmpA)
	c.mov(true, dst, tmpB)
	c.jmp(done)
	if signed {
		c.place(minus)
		if rem {
			c.movImm(dst, 0)
		} else {
			c.unary(wide, unaryNeg, dst) // the smallest number stays what it is
		}
		c.jmp(done)
	}
	c.place(zero)
	switch {
	case !rem:
		c.movImm(dst, 0)
	case !wide:
		c.mov(false, dst, dst)
	}
	c.place(done)
}

// single emits the operations that come in no fours.
func (c *compiler) single(o *op) {
	dst, src := c.regs[o.dst], c.regs[o.src]
	c.writes(dst)
	switch o.code {
	case opNeg64:
		c.unary(true, unaryNeg, dst)
	case opNeg32:
		c.unary(false, unaryNeg, dst)
	case opMovs8:
		c.regOp(true, []byte{0x0f, 0xbe}, dst, src, true)
	case opMovs16:
		c.regOp(true, []byte{0x0f, 0xbf}, dst, src, false)
	case opMovs32:
		c.regOp(true, []byte{0x63}, dst, src, false)
	case opMovs8w:
		c.regOp(false, []byte{0x0f, 0xbe}, dst, src, true)
	case opMovs16w:
		c.regOp(false, []byte{0x0f, 0xbf}, dst, src, false)
	case opLe16:
		c.regOp(false, []byte{0x0f, 0xb7}, dst, dst, false)
	case opLe32:
		c.mov(false, dst, dst)
	case opSwap16:
		c.emit(0x66) // rol $8 of 16 bits
		c.regOp(false, []byte{0xc1}, 0, dst, false)
		c.emit(8)
		c.regOp(false, []byte{0x0f, 0xb7}, dst, dst, false)
	case opSwap32, opSwap64:
		rex := byte(0x40) | byte(dst)>>3
		if o.code == opSwap64 {
			rex |= 8
		}
		if rex != 0x40 {
			c.emit(rex)
		}
		c.emit(0x0f, 0xc8|byte(dst&7))
	case opNop:
	default:
		panic("BUG: operation has no code")
	}
}

var jumpConds = map[opc]cond{
	opJeq: condE, opJne: condNE, opJgt: condA, opJge: condAE, opJlt: condB, opJle: condBE,
	opJsgt: condG, opJsge: condGE, opJslt: condL, opJsle: condLE, opJset: condNE,
}

// jump emits a conditional jump.
func (c *compiler) jump(pc int, o *op) {
	kind, f := o.code&^3, o.code&3
	wide, x := f == form64K || f == form64X, f == form64X || f == form32X
	dst, src, imm := c.regs[o.dst], c.regs[o.src], int32(uint32(o.imm))
	switch {
	case kind == opJset && x:
		c.test(wide, dst, src)
	case kind == opJset:
		c.testImm(wide, dst, imm)
	case x:
		c.regOp(wide, []byte{0x39}, src, dst, false)
	case imm == 0 && (kind == opJeq || kind == opJne):
		c.test(wide, dst, dst)
	default:
		c.cmpImm(wide, dst, imm)
	}
	cc := jumpConds[kind]
	if o.cost == 0 {
		c.jcc(cc, c.pcs[o.off])
		return
	}
	skip := c.newLabel()
	c.jcc(cc.not(), skip)
	c.charge(pc, o)
	c.jmp(c.pcs[o.off])
	c.place(skip)
}

// cmpImm compares without counting the register as written.
func (c *compiler) cmpImm(wide bool, r reg64, v int32) {
	used := c.used
	c.ri(wide, aluCmp, r, v)
	c.used = used
}
