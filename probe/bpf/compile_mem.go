package bpf

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// operand emits the checks of an access, and returns its memory operand. R9, R10 and
// R11 change.
func (c *compiler) operand(pc int, a access, write bool) x86.Mem {
	switch a.class {
	case direct:
		return c.memUnchecked(pc, a)
	case bounded:
		return c.checkOffset(pc, a, write)
	case guessed:
		return c.checkBase(pc, a, write)
	}
	c.Lea(8, tmpB, x86.At(c.regs[a.ptr], int(a.disp)))
	return c.checkAnywhere(a, write, c.accessFault(pc, a, write))
}

// accessFault returns the label that reports an access as out of bounds.
func (c *compiler) accessFault(pc int, a access, write bool) x86.Label {
	code := FaultLoad
	if write {
		code = FaultStore
	}
	return c.faultAt(code, pc, a)
}

// faultAt returns the label that reports a fault at the address of an access.
func (c *compiler) faultAt(code FaultCode, pc int, a access) x86.Label {
	if a.by == byIndex && a.base.fixed(c.p) {
		return c.faultFar(code, pc, c.regs[a.index], a.off, a.base.address())
	}
	return c.fault(code, pc, c.regs[a.ptr], a.disp)
}

// checkAnywhere emits all checks of an access at the address in R11, and returns its
// memory operand.
func (c *compiler) checkAnywhere(a access, write bool, bad x86.Label) x86.Mem {
	c.noteMayRead(a.base)
	field := segLoad
	if write {
		field = segStore
	}
	c.Mov(8, tmpA, tmpB)
	c.Shr(8, tmpA, imm(segShift))
	c.Cmp(4, tmpA, imm(segMaps+len(c.p.maps)))
	c.Jcc(x86.CondAE, bad)
	c.Shl(4, tmpA, imm(6)) // segSize
	c.Add(8, tmpA, c.blk)
	e := x86.At(tmpA, blkSegs)
	c.Mov(8, tmp9, tmpB)
	c.Shr(8, tmp9, imm(elemShift))
	c.And(4, tmp9, imm(elemMask))
	c.Cmp(4, tmp9, e.Plus(segCount))
	c.Jcc(x86.CondAE, bad)
	c.Imul(8, tmp9, e.Plus(segStride))
	c.And(4, tmpB, imm(offMask))
	c.Cmp(4, tmpB, e.Plus(field+4*bits.TrailingZeros(uint(a.size))))
	c.Jcc(x86.CondG, bad)
	c.Add(8, tmp9, e.Plus(segBase))
	return x86.AtIndex(tmp9, tmpB, 1, 0)
}

// checkBase emits the check that an access is at its expected base. If it is not, all
// places are searched.
func (c *compiler) checkBase(pc int, a access, write bool) x86.Mem {
	elsewhere, done := c.NewLabel(), c.NewLabel()
	first := int64(0) // offset of the first byte that may be accessed
	if a.base.kind == inFrame {
		first = -StackSize
	}
	if a.by == byIndex {
		c.Lea(8, tmpB, x86.At(c.regs[a.index], int(a.off-first)))
	} else {
		back := c.constant(pc, -(a.base.address() + uint64(first)), tmpB)
		c.Lea(8, tmpB, x86.AtIndex(back, c.regs[a.ptr], 1, int(a.disp)))
	}
	c.Cmp(8, tmpB, imm(a.end-first-int64(a.size)))
	c.Jcc(x86.CondA, elsewhere)
	c.noteContext(a.base, 0, int64(c.p.contextSize()))
	c.Place(done)
	bad := c.accessFault(pc, a, write)
	c.pending = append(c.pending, func() {
		c.Place(elsewhere)
		if a.by == byIndex {
			c.set(tmpB, a.base.address()+uint64(a.off))
			c.Add(8, tmpB, c.regs[a.index])
		} else {
			c.Lea(8, tmpB, x86.At(c.regs[a.ptr], int(a.disp)))
		}
		c.Lea(8, tmpB, c.checkAnywhere(a, write, bad))
		c.Lea(8, tmpA, c.base(pc, a.base, first))
		c.Sub(8, tmpB, tmpA) // the distance from the base
		c.Jmp(done)
	})
	m := c.base(pc, a.base, first)
	m.Index = tmpB
	return m
}

// checkOffset emits the check of an access whose offset may be too large, or negative.
func (c *compiler) checkOffset(pc int, a access, write bool) x86.Mem {
	bad := c.accessFault(pc, a, write)
	last := a.end - int64(a.size)
	x, off := c.regs[a.ptr], a.disp
	byIndex := a.by == byIndex && a.base.fixed(c.p)
	if byIndex {
		x, off = c.regs[a.index], a.off
	} else {
		a.by = byAddress
	}
	switch low := a.base.fixed(c.p) && uint32(a.base.address()) == 0; {
	case (byIndex || low) && (off == 0 || a.ahead && off > 0 && off <= last): // the low half is the number itself
		c.Cmp(4, x, imm(last-off))
		c.Jcc(x86.CondA, bad)
		return c.memUnchecked(pc, a)
	case byIndex:
		c.Lea(4, tmpB, x86.At(x, int(off)))
		c.Cmp(4, tmpB, imm(last))
		c.Jcc(x86.CondA, bad)
		return c.memUnchecked(pc, a)
	}
	c.emitOffset(a)
	c.Cmp(4, tmpB, imm(last))
	c.Jcc(x86.CondA, bad)
	return c.memAtOffset(pc, a)
}

// emitOffset emits R11 = the offset of an access from its base, from the address
// alone. It is treated as an unsigned number of at least 24 bits.
func (c *compiler) emitOffset(a access) {
	if a.disp == 0 {
		c.Mov(4, tmpB, c.regs[a.ptr])
	} else {
		c.Lea(4, tmpB, x86.At(c.regs[a.ptr], int(a.disp)))
	}
	if a.base.kind == inValue && (a.base.elem != 0 || c.p.maps[a.base.m].perCPU) {
		c.And(4, tmpB, imm(offMask))
	}
}

// memAtOffset returns the memory operand of an access whose offset is in R11.
func (c *compiler) memAtOffset(pc int, a access) x86.Mem {
	off := int64(0)
	if a.base.kind == inFrame {
		off = -StackSize // the offset counts from the stack's first byte
	}
	m := c.address(pc, a, off)
	if m.Index != x86.NoReg {
		panic("BUG: an address with two offsets")
	}
	m.Index = tmpB
	return m
}

// memUnchecked returns the memory operand of an access that needs no check.
func (c *compiler) memUnchecked(pc int, a access) x86.Mem {
	switch {
	case a.by == byOffset:
		c.noteContext(a.base, a.off, a.off+int64(a.size))
		return c.address(pc, a, a.off)
	case a.by == byIndex:
		c.noteContext(a.base, 0, int64(c.p.contextSize()))
		m := c.address(pc, a, a.off)
		m.Index = c.regs[a.index]
		return m
	case a.base.fixed(c.p) && a.base.kind == inValue:
		m := c.p.maps[a.base.m]
		far := c.constant(pc, m.valueAddr(int(a.base.elem))-a.base.address(), tmp9)
		return x86.AtIndex(far, c.regs[a.ptr], 1, int(a.disp))
	}
	c.noteContext(a.base, 0, int64(c.p.contextSize()))
	c.emitOffset(a)
	return c.memAtOffset(pc, a)
}

// address returns the memory operand off bytes from the base of an access. R9
// changes, and R10 or, if that does not hold the offset, R11.
func (c *compiler) address(pc int, a access, off int64) x86.Mem {
	if i, ok := c.shadow(a.base); ok {
		return x86.At(c.shadows[c.ids[i]], int(off))
	}
	if a.base.kind != inValue || a.base.elem >= 0 {
		return c.base(pc, a.base, off)
	}
	inside, t := a.disp, tmpA
	if a.by != byAddress {
		t = tmpB
	}
	if a.by == byOffset {
		inside -= a.off // the beginning of the element
	}
	c.Lea(8, tmp9, x86.At(c.regs[a.ptr], int(inside)))
	c.Shr(8, tmp9, imm(elemShift))
	c.And(4, tmp9, imm(elemMask))
	c.elementAddr(c.p.maps[a.base.m], tmp9, t)
	return x86.At(tmp9, int(off))
}

// elementAddr emits r = machine address of the element whose number r is. t changes.
func (c *compiler) elementAddr(m *Map, r, t reg64) {
	c.ImulImm(8, r, r, imm(m.stride))
	c.set(t, m.valueAddr(0))
	c.Add(8, r, t)
}

// valueAddr returns the machine address of an element that all vCPUs share.
func (m *Map) valueAddr(elem int) uint64 {
	return m.area.Addr + uint64(m.values) + uint64(elem)*uint64(m.stride)
}

// base returns the memory operand off bytes from a base whose machine address is
// known without the program's address. R9 changes.
func (c *compiler) base(pc int, b base, off int64) x86.Mem {
	switch {
	case b.kind == inContext:
		return x86.At(c.context(tmp9), int(off))
	case b.kind == inFrame && c.ownStack:
		return x86.At(x86.RSP, c.frame+int(off))
	case b.kind == inFrame && c.p.fns.indexOf(pc) == 0:
		return x86.At(c.blk, blkStack+StackSize+int(off))
	case b.kind == inFrame:
		c.Mov(4, tmp9, c.regs[R10])
		c.Add(8, tmp9, c.blk)
		return x86.At(tmp9, blkStack+int(off))
	case b.kind != inValue || b.elem < 0:
		panic("BUG: no such place")
	}
	m := c.p.maps[b.m]
	if m.perCPU {
		c.Mov(8, tmp9, x86.At(c.blk, c.p.localOff(int(b.m))))
		return x86.At(tmp9, int(b.elem)*m.stride+int(off))
	}
	return x86.At(c.constant(pc, m.valueAddr(int(b.elem)), tmp9), int(off))
}

// noteMayRead records that an access to an address with that base may go to any part
// of the context.
func (c *compiler) noteMayRead(b base) {
	if c.escapes || b.kind == inContext {
		c.info.ContextReads = 1<<(c.p.contextSize()/8) - 1
	}
}

func (c *compiler) loadOp(pc int, o *op) {
	m, dst := c.operand(pc, c.facts[pc].mem, false), c.regs[o.dst]
	if dst == x86.NoReg {
		dst = tmp9 // the result is not needed, only whether the access is possible
	}
	if o.code >= opLoads8 {
		c.Movsx(8, int(o.size), dst, m)
	} else {
		c.Movzx(int(o.size), dst, m)
	}
}

func (c *compiler) storeOp(pc int, o *op) {
	m := c.operand(pc, c.facts[pc].mem, true)
	switch {
	case c.fused[pc]:
		c.addOp(&c.p.ops[pc-1], int(o.size), m)
	case o.code == opStoreK:
		c.Mov(int(o.size), m, imm(o.imm))
	default:
		c.Mov(int(o.size), m, c.regs[o.src])
	}
}

// addOp emits the addition of an operation directly to memory.
func (c *compiler) addOp(add *op, size int, m x86.Mem) {
	if add.code&1 != 0 { // form64X or form32X
		c.Add(size, m, c.regs[add.src])
		return
	}
	c.Add(size, m, imm(add.imm))
}

// atomicOp emits an atomic operation. Areas are aligned to 64 and strides to 8,
// so the program's own address tells the alignment.
func (c *compiler) atomicOp(pc int, o *op) {
	a := c.facts[pc].mem
	m := c.operand(pc, a, true)
	if m.Index == tmpB { // the operation may need it
		c.Lea(8, tmp9, m)
		m = x86.At(tmp9, 0)
	}
	if a.class <= guessed {
		c.Test(4, tmp9, imm(o.size-1))
		c.Jcc(x86.CondNE, c.faultAt(FaultAlign, pc, a))
	}
	c.atomicAt(o, m, c.isOwn(a))
}

// isOwn reports whether only this vCPU's programs write there: then one instruction
// is atomic without a lock, because interruptions occur only between instructions. A
// value whose base is known is the vCPU's own; the base of the result of
// map_lookup_percpu_elem is not known.
func (c *compiler) isOwn(a access) bool {
	return a.class >= bounded && a.base.kind == inValue && c.p.maps[a.base.m].perCPU && !c.layout.Shared
}

// atomicOps are the atomic operations with two operands.
var atomicOps = map[int64]func(a *x86.Asm, size int, dst, src x86.Arg){
	atomicAdd: (*x86.Asm).Add, atomicOr: (*x86.Asm).Or, atomicAnd: (*x86.Asm).And, atomicXor: (*x86.Asm).Xor,
}

// atomicAt emits an atomic operation on w, with a lock unless it is this vCPU's
// own. R10 and R11 change.
func (c *compiler) atomicAt(o *op, w x86.Mem, own bool) {
	size, src := int(o.size), c.regs[o.src]
	op := atomicOps[o.imm&^atomicFetch]
	switch {
	case o.imm == atomicCmpXchg:
		c.Lock().Cmpxchg(size, w, src)
		if size == 4 {
			c.Mov(4, x86.RAX, x86.RAX) // not written when it was equal
		}
	case o.imm == atomicXchg:
		c.Xchg(size, w, src)
	case o.imm == atomicAdd|atomicFetch:
		c.Lock().Xadd(size, w, src)
	case o.imm&atomicFetch == 0:
		if !own {
			c.Lock()
		}
		op(&c.Asm, size, w, src)
	default:
		c.fetchOp(size, op, w, src)
	}
}

// fetchOp emits the operations that have no fetching form on the CPU.
func (c *compiler) fetchOp(size int, op func(a *x86.Asm, size int, dst, src x86.Arg), w x86.Mem, src reg64) {
	c.Mov(8, tmpA, x86.RAX)
	operand := src
	if src == x86.RAX {
		operand = tmpA
	}
	c.Movzx(size, x86.RAX, w)
	again := c.LabelHere()
	c.Mov(size, tmpB, x86.RAX)
	op(&c.Asm, size, tmpB, operand)
	c.Lock().Cmpxchg(size, w, tmpB)
	c.Jcc(x86.CondNE, again)
	if size == 4 {
		c.Mov(4, x86.RAX, x86.RAX)
	}
	if src != x86.RAX {
		c.Mov(8, src, x86.RAX)
		c.Mov(8, x86.RAX, tmpA)
	}
}
