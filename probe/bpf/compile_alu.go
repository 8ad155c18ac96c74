package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// source returns the operand size in bytes of an operation with four forms, and its
// source: a register or the immediate.
func (c *compiler) source(o *op) (size int, src x86.Arg) {
	size = 8
	if o.code&3 >= form32K {
		size = 4
	}
	if o.code&1 != 0 { // form64X, form32X
		return size, c.regs[o.src]
	}
	return size, imm(o.imm)
}

// twoOperand are the operations that the CPU has in the same form.
var twoOperand = map[opc]func(a *x86.Asm, size int, dst, src x86.Arg){
	opAdd: (*x86.Asm).Add, opSub: (*x86.Asm).Sub, opOr: (*x86.Asm).Or, opAnd: (*x86.Asm).And, opXor: (*x86.Asm).Xor,
	opLsh: (*x86.Asm).Shl, opRsh: (*x86.Asm).Shr, opArsh: (*x86.Asm).Sar,
}

// alu emits an arithmetic operation.
func (c *compiler) alu(o *op) {
	dst := c.regs[o.dst]
	size, src := c.source(o)
	reg, x := src.(reg64)
	switch kind := o.code &^ 3; kind {
	case opAdd, opSub, opOr, opAnd, opXor:
		twoOperand[kind](&c.Asm, size, dst, src)
	case opMov:
		if x {
			c.Mov(size, dst, reg)
		} else {
			c.set(dst, uint64(o.imm))
		}
	case opMul:
		if x {
			c.Imul(size, dst, reg)
		} else {
			c.ImulImm(size, dst, dst, imm(o.imm))
		}
	case opLsh, opRsh, opArsh:
		n := o.imm & int64(8*size-1)
		switch {
		case x:
			c.shift(size, twoOperand[kind], dst, reg)
		case size == 4 && n == 0:
			c.Mov(4, dst, dst) // a shift by 0 would leave the upper half
		default:
			twoOperand[kind](&c.Asm, size, dst, imm(n))
		}
	default:
		c.divide(kind, size, dst, src)
	}
}

// shift emits a shift by a register. The CPU masks the count as RFC 9669 does, but
// takes it from CL only, and does not change the destination if it is 0.
func (c *compiler) shift(size int, op func(a *x86.Asm, size int, dst, n x86.Arg), dst, src reg64) {
	const cl = x86.RCX
	switch {
	case src == cl && dst != cl:
		op(&c.Asm, size, dst, cl)
	case dst == cl:
		c.Mov(8, tmpB, cl)
		if src != cl {
			c.Mov(8, cl, src)
		}
		op(&c.Asm, size, tmpB, cl)
		c.Mov(size, cl, tmpB)
		return
	default:
		c.Mov(8, tmpB, cl)
		c.Mov(8, cl, src)
		op(&c.Asm, size, dst, cl)
		c.Mov(8, cl, tmpB)
	}
	if size == 4 {
		c.Mov(4, dst, dst)
	}
}

// divide emits the four divisions. Operands that would trap are handled without
// dividing.
func (c *compiler) divide(kind opc, size int, dst reg64, src x86.Arg) {
	signed, rem := kind == opSdiv || kind == opSmod, kind == opMod || kind == opSmod
	done, zero, minus := c.NewLabel(), c.NewLabel(), c.NewLabel()
	if v, ok := src.(imm); ok {
		c.set(tmpB, uint64(v))
	} else {
		c.Mov(size, tmpB, src)
	}
	c.Test(size, tmpB, tmpB)
	c.Jcc(x86.CondE, zero)
	if signed {
		c.Cmp(size, tmpB, imm(-1))
		c.Jcc(x86.CondE, minus)
	}
	c.Mov(8, tmp9, x86.RDX)
	c.Mov(8, tmpA, x86.RAX)
	c.Mov(size, x86.RAX, dst)
	if signed {
		c.SignDX(size)
		c.MarkWritten(x86.RDX)
		c.Idiv(size, tmpB)
	} else {
		c.set(x86.RDX, 0)
		c.Div(size, tmpB)
	}
	if rem {
		c.Mov(size, tmpB, x86.RDX)
	} else {
		c.Mov(size, tmpB, x86.RAX)
	}
	c.Mov(8, x86.RDX, tmp9)
	c.Mov(8, x86.RAX, tmpA)
	c.Mov(8, dst, tmpB)
	c.Jmp(done)
	if signed {
		c.Place(minus)
		if rem {
			c.set(dst, 0)
		} else {
			c.Neg(size, dst) // the smallest number stays the same
		}
		c.Jmp(done)
	}
	c.Place(zero)
	switch {
	case !rem:
		c.set(dst, 0)
	case size == 4:
		c.Mov(4, dst, dst)
	}
	c.Place(done)
}

// emitSingle emits the operations that do not have four forms.
func (c *compiler) emitSingle(o *op) {
	dst, src := c.regs[o.dst], c.regs[o.src]
	switch o.code {
	case opNeg64:
		c.Neg(8, dst)
	case opNeg32:
		c.Neg(4, dst)
	case opMovs8:
		c.Movsx(8, 1, dst, src)
	case opMovs16:
		c.Movsx(8, 2, dst, src)
	case opMovs32:
		c.Movsx(8, 4, dst, src)
	case opMovs8w:
		c.Movsx(4, 1, dst, src)
	case opMovs16w:
		c.Movsx(4, 2, dst, src)
	case opLe16:
		c.Movzx(2, dst, dst)
	case opLe32:
		c.Mov(4, dst, dst)
	case opSwap16:
		c.Rol(2, dst, imm(8))
		c.Movzx(2, dst, dst)
	case opSwap32:
		c.Bswap(4, dst)
	case opSwap64:
		c.Bswap(8, dst)
	case opNop:
		c.MarkWritten(dst)
	default:
		panic("BUG: operation has no code")
	}
}

var jumpConds = map[opc]x86.Cond{
	opJeq: x86.CondE, opJne: x86.CondNE, opJgt: x86.CondA, opJge: x86.CondAE, opJlt: x86.CondB, opJle: x86.CondBE,
	opJsgt: x86.CondG, opJsge: x86.CondGE, opJslt: x86.CondL, opJsle: x86.CondLE, opJset: x86.CondNE,
}

// jump emits a conditional jump.
func (c *compiler) jump(pc int, o *op) {
	kind, dst := o.code&^3, c.regs[o.dst]
	size, src := c.source(o)
	f := &c.facts[pc]
	if i, ok := c.shadow(f.test); ok {
		dst = c.shadows[c.ids[i]]
	}
	switch {
	case f.jump == neverTaken:
		return
	case f.jump == alwaysTaken:
		c.Jmp(c.jumpTo(pc))
		return
	case kind == opJset:
		c.Test(size, dst, src)
	case src == imm(0) && (kind == opJeq || kind == opJne):
		c.Test(size, dst, dst)
	default:
		c.Cmp(size, dst, src)
	}
	c.Jcc(jumpConds[kind], c.jumpTo(pc))
}
