package bpf

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// address emits the bounds check of an access and returns where it goes. base
// keeps its value; R9, R10 and R11 do not.
func (c *compiler) address(pc int, r Reg, o *op, write bool) operand {
	off, size := o.off, int(o.size)
	if k := c.known[pc][r]; k.kind == inFrame || k.kind == inContext {
		if m, ok := c.inBounds(pc, k, off, size, write); ok {
			return m
		}
	}
	c.writes(c.regs[r])
	c.mayRead(c.known[pc][r])
	code, field := FaultLoad, int32(segLoad)
	if write {
		code, field = FaultStore, segStore
	}
	bad := c.fault(code, pc, c.regs[r], off)
	c.lea(true, tmpB, at(c.regs[r], off))
	c.mov(true, tmpA, tmpB)
	c.shiftImm(true, shiftRight, tmpA, segShift)
	c.ri(false, aluCmp, tmpA, int32(segMaps+len(c.p.maps)))
	c.jcc(condAE, bad)
	c.shiftImm(false, shiftLeft, tmpA, 6)
	c.rr(true, aluAdd, tmpA, c.blk)
	e := at(tmpA, blkSegs)
	c.mov(true, tmp9, tmpB)
	c.shiftImm(true, shiftRight, tmp9, elemShift)
	c.ri(false, aluAnd, tmp9, elemMask)
	c.rm(false, aluCmp, tmp9, e.plus(segCount))
	c.jcc(condAE, bad)
	c.imulMem(tmp9, e.plus(segStride))
	c.ri(false, aluAnd, tmpB, offMask)
	c.rm(false, aluCmp, tmpB, e.plus(field+4*int32(bits.TrailingZeros8(o.size))))
	c.jcc(condG, bad)
	c.rm(true, aluAdd, tmp9, e.plus(segBase))
	return operand{tmp9, tmpB, 1, 0}
}

// inBounds returns the address of an access whose place is known and in bounds.
func (c *compiler) inBounds(pc int, k value, off int32, size int, write bool) (operand, bool) {
	lo := int(k.off) + int(off)
	if k.kind == inFrame {
		if lo < -FrameSize || lo+size > 0 {
			return operand{}, false
		}
		if c.p.fns.of(pc) == 0 {
			return at(c.blk, int32(blkStack+StackSize+lo)), true
		}
		c.writes(c.regs[R10])
		c.mov(false, tmpB, c.regs[R10])
		return operand{c.blk, tmpB, 1, int32(blkStack + lo)}, true
	}
	if write || !c.p.kind.hasRegs() || lo < 0 || lo+size > c.p.kind.ContextSize() {
		return operand{}, false
	}
	for i := lo / 8; i <= (lo+size-1)/8; i++ {
		c.info.ContextReads |= 1 << i
	}
	return at(c.context(tmpB), int32(lo)), true
}

// context returns a register with the context's address, r if it must be loaded.
func (c *compiler) context(r reg64) reg64 {
	if c.small != nil {
		return insn.RDI
	}
	c.load(8, r, c.seg(segContext, segBase))
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
		c.loadSigned(int(o.size), c.regs[o.dst], m)
	} else {
		c.load(int(o.size), c.regs[o.dst], m)
	}
}

func (c *compiler) storeOp(pc int, o *op) {
	m := c.address(pc, Reg(o.dst), o, true)
	if o.code == opStoreK {
		c.storeImm(int(o.size), m, int32(uint32(o.imm)))
	} else {
		c.store(int(o.size), m, c.regs[o.src])
	}
}

// atomicOp emits an atomic operation. Areas are aligned to 64 and strides to 8,
// so the program's own address tells the alignment.
func (c *compiler) atomicOp(pc int, o *op) {
	m := c.address(pc, Reg(o.dst), o, true)
	c.lea(true, tmp9, m)
	c.testImm(false, tmp9, int32(o.size-1))
	c.jcc(condNE, c.fault(FaultAlign, pc, c.regs[o.dst], o.off))
	c.atomicAt(o, at(tmp9, 0))
}

// atomicAt emits an atomic operation on w. R10 and R11 change.
func (c *compiler) atomicAt(o *op, w operand) {
	wide, src := o.size == 8, c.regs[o.src]
	op := map[int64]alu2{AtomicAdd: aluAdd, AtomicOr: aluOr, AtomicAnd: aluAnd, AtomicXor: aluXor}[o.imm&^AtomicFetch]
	switch {
	case o.imm == AtomicCmpXchg:
		c.locked(wide, lockCmpxchg, w, src)
		if !wide {
			c.mov(false, insn.RAX, insn.RAX) // not written when it was equal
		}
		c.writes(insn.RAX)
	case o.imm == AtomicXchg:
		c.writes(src)
		c.memOp(wide, []byte{0x87}, src, w, false)
	case o.imm == AtomicAdd|AtomicFetch:
		c.writes(src)
		c.locked(wide, lockXadd, w, src)
	case o.imm&AtomicFetch == 0 && c.own:
		c.memOp(wide, []byte{byte(op)<<3 | 1}, src, w, false)
	case o.imm&AtomicFetch == 0:
		c.locked(wide, []byte{byte(op)<<3 | 1}, w, src)
	default:
		c.fetchOp(wide, op, w, src)
	}
}

// fetchOp emits the operations that the CPU has no fetching form of.
func (c *compiler) fetchOp(wide bool, op alu2, w operand, src reg64) {
	c.mov(true, tmpA, insn.RAX)
	operand := src
	if src == insn.RAX {
		operand = tmpA
	}
	size := 4
	if wide {
		size = 8
	}
	c.load(size, insn.RAX, w)
	again := c.newLabel()
	c.place(again)
	c.mov(wide, tmpB, insn.RAX)
	c.rr(wide, op, tmpB, operand)
	c.locked(wide, lockCmpxchg, w, tmpB)
	c.jcc(condNE, again)
	if !wide {
		c.mov(false, insn.RAX, insn.RAX)
	}
	if src != insn.RAX {
		c.mov(true, src, insn.RAX)
		c.mov(true, insn.RAX, tmpA)
	}
}
