package bpf

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// address emits the bounds check of an access and returns where it goes. base
// keeps its value; R9, R10 and R11 do not.
func (c *compiler) address(pc int, r Reg, o *op, write bool) insn.Mem {
	off, size := int(o.off), int(o.size)
	if k := c.known[pc][r]; k.kind == inFrame || k.kind == inContext {
		if m, ok := c.inBounds(pc, k, off, size, write); ok {
			return m
		}
	}
	c.MarkWritten(c.regs[r])
	c.mayRead(c.known[pc][r])
	code, field := FaultLoad, segLoad
	if write {
		code, field = FaultStore, segStore
	}
	bad := c.fault(code, pc, c.regs[r], off)
	c.Lea(8, tmpB, insn.At(c.regs[r], off))
	c.Mov(8, tmpA, tmpB)
	c.Shr(8, tmpA, imm(segShift))
	c.Cmp(4, tmpA, imm(segMaps+len(c.p.maps)))
	c.Jcc(insn.CondAE, bad)
	c.Shl(4, tmpA, imm(6))
	c.Add(8, tmpA, c.blk)
	e := insn.At(tmpA, blkSegs)
	c.Mov(8, tmp9, tmpB)
	c.Shr(8, tmp9, imm(elemShift))
	c.And(4, tmp9, imm(elemMask))
	c.Cmp(4, tmp9, e.Plus(segCount))
	c.Jcc(insn.CondAE, bad)
	c.Imul(8, tmp9, e.Plus(segStride))
	c.And(4, tmpB, imm(offMask))
	c.Cmp(4, tmpB, e.Plus(field+4*int(bits.TrailingZeros8(o.size))))
	c.Jcc(insn.CondG, bad)
	c.Add(8, tmp9, e.Plus(segBase))
	return insn.AtIndex(tmp9, tmpB, 1, 0)
}

// inBounds returns the address of an access whose place is known and in bounds.
func (c *compiler) inBounds(pc int, k value, off, size int, write bool) (insn.Mem, bool) {
	lo := int(k.off) + int(off)
	if k.kind == inFrame {
		if lo < -FrameSize || lo+size > 0 {
			return insn.Mem{}, false
		}
		if c.p.fns.of(pc) == 0 {
			return insn.At(c.blk, int(blkStack+StackSize+lo)), true
		}
		c.MarkWritten(c.regs[R10])
		c.Mov(4, tmpB, c.regs[R10])
		return insn.AtIndex(c.blk, tmpB, 1, blkStack+lo), true
	}
	if write || !c.p.kind.hasRegs() || lo < 0 || lo+size > c.p.kind.ContextSize() {
		return insn.Mem{}, false
	}
	for i := lo / 8; i <= (lo+size-1)/8; i++ {
		c.info.ContextReads |= 1 << i
	}
	return insn.At(c.context(tmpB), lo), true
}

// context returns a register with the context's address, r if it must be loaded.
func (c *compiler) context(r reg64) reg64 {
	if c.small != nil {
		return insn.RDI
	}
	c.Mov(8, r, c.seg(segContext, segBase))
	return r
}

// mayRead notes that an access through a pointer that v describes may go to any
// part of the context.
func (c *compiler) mayRead(v value) {
	if c.escapes || v.kind == inContext {
		c.info.ContextReads = 1<<(c.p.kind.ContextSize()/8) - 1
	}
}

func (c *compiler) loadOp(pc int, o *op) {
	m := c.address(pc, Reg(o.src), o, false)
	if o.code >= opLoads8 {
		c.Movsx(8, int(o.size), c.regs[o.dst], m)
	} else {
		c.Movzx(int(o.size), c.regs[o.dst], m)
	}
}

func (c *compiler) storeOp(pc int, o *op) {
	m := c.address(pc, Reg(o.dst), o, true)
	if o.code == opStoreK {
		c.Mov(int(o.size), m, imm(o.imm))
	} else {
		c.Mov(int(o.size), m, c.regs[o.src])
	}
}

// atomicOp emits an atomic operation. Areas are aligned to 64 and strides to 8,
// so the program's own address tells the alignment.
func (c *compiler) atomicOp(pc int, o *op) {
	m := c.address(pc, Reg(o.dst), o, true)
	c.Lea(8, tmp9, m)
	c.Test(4, tmp9, imm(o.size-1))
	c.Jcc(insn.CondNE, c.fault(FaultAlign, pc, c.regs[o.dst], int(o.off)))
	c.atomicAt(o, insn.At(tmp9, 0))
}

// atomicOps are the atomic operations of two operands.
var atomicOps = map[int64]func(a *insn.Asm, size int, dst, src insn.Arg){
	atomicAdd: (*insn.Asm).Add, atomicOr: (*insn.Asm).Or, atomicAnd: (*insn.Asm).And, atomicXor: (*insn.Asm).Xor,
}

// atomicAt emits an atomic operation on w. R10 and R11 change.
func (c *compiler) atomicAt(o *op, w insn.Mem) {
	size, src := int(o.size), c.regs[o.src]
	op := atomicOps[o.imm&^atomicFetch]
	switch {
	case o.imm == atomicCmpXchg:
		c.Lock().Cmpxchg(size, w, src)
		if size == 4 {
			c.Mov(4, insn.RAX, insn.RAX) // not written when it was equal
		}
	case o.imm == atomicXchg:
		c.Xchg(size, w, src)
	case o.imm == atomicAdd|atomicFetch:
		c.Lock().Xadd(size, w, src)
	case o.imm&atomicFetch == 0:
		if !c.own {
			c.Lock()
		}
		op(&c.Asm, size, w, src)
	default:
		c.fetchOp(size, op, w, src)
	}
}

// fetchOp emits the operations that the CPU has no fetching form of.
func (c *compiler) fetchOp(size int, op func(a *insn.Asm, size int, dst, src insn.Arg), w insn.Mem, src reg64) {
	c.Mov(8, tmpA, insn.RAX)
	operand := src
	if src == insn.RAX {
		operand = tmpA
	}
	c.Movzx(size, insn.RAX, w)
	again := c.Here()
	c.Mov(size, tmpB, insn.RAX)
	op(&c.Asm, size, tmpB, operand)
	c.Lock().Cmpxchg(size, w, tmpB)
	c.Jcc(insn.CondNE, again)
	if size == 4 {
		c.Mov(4, insn.RAX, insn.RAX)
	}
	if src != insn.RAX {
		c.Mov(8, src, insn.RAX)
		c.Mov(8, insn.RAX, tmpA)
	}
}
