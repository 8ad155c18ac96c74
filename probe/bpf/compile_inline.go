package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// inlineCall emits a call that changes RAX, R9, R10 and R11 only; the clock changes
// RDX.
func (c *compiler) inlineCall(pc int, h Helper) {
	f := c.facts[pc].call
	switch h {
	case HelperKtimeGetNS, HelperKtimeBootNS, HelperKtimeCoarseNS:
		ktime(&c.Asm, c.blk)
		c.MarkWritten(x86.RDX)
	case HelperGetCPU:
		c.Mov(4, x86.RAX, x86.At(c.blk, blkCPU))
	case HelperGetRandom:
		c.random()
	case HelperGetFuncIP:
		c.Mov(8, x86.RAX, x86.At(c.blk, blkFuncIP))
	case HelperGetAttachCookie:
		c.set(x86.RAX, c.layout.Cookie)
	case HelperGetFuncArgCnt:
		c.set(x86.RAX, uint64(c.p.argWords()))
	case HelperGetTask, HelperGetTaskBTF:
		c.tasks.taskAddress(c.layout.Task)
	case HelperGetPIDTGID:
		c.tasks.pidTGID(c.layout.Task)
	case HelperGetUIDGID, HelperGetCgroupID:
		c.tasks.number(c.layout.Task, c.layout.Task.number(h))
	case HelperGetComm:
		c.tasks.comm(c.layout.Task, tmpA, x86.RAX)
		m := c.memUnchecked(pc, f.args[R1])
		c.Mov(8, m, tmpA)
		c.Mov(8, m.Plus(8), x86.RAX)
		c.returnZero(pc)
	case HelperMapLookup:
		c.inlineLookup(pc, f)
	case HelperRingOutput:
		c.inlineOutput(pc, f, f.args[R2])
	case HelperPerfEventOutput:
		c.inlineOutput(pc, f, f.args[R4])
	case HelperRingReserve:
		c.inlineReserve(pc, f)
	case HelperRingSubmit:
		c.inlineEnd(pc, f, recData)
	case HelperRingDiscard:
		c.inlineEnd(pc, f, recDiscarded)
	default:
		panic("BUG: helper has no code in line")
	}
}

// random emits RAX = a random number of 32 bits, by xorshift64* (Vigna, 2016): its state
// is the run block's, and InitBlock has seeded it. R11 changes.
func (c *coder) random() {
	state := x86.At(c.blk, blkRandom)
	c.Mov(8, x86.RAX, state)
	for _, s := range []struct {
		shift func(size int, dst, n x86.Arg)
		bits  int
	}{{c.Shr, 12}, {c.Shl, 25}, {c.Shr, 27}} {
		c.Mov(8, tmpB, x86.RAX)
		s.shift(8, tmpB, imm(s.bits))
		c.Xor(8, x86.RAX, tmpB)
	}
	c.Mov(8, state, x86.RAX)
	c.set(tmpB, 0x2545f4914f6cdd1d)
	c.Imul(8, x86.RAX, tmpB)
	c.Shr(8, x86.RAX, imm(32))
}

// inlineLookup emits the lookup of an element of an array.
func (c *compiler) inlineLookup(pc int, f *callFact) {
	m := c.p.maps[f.m]
	switch {
	case f.key >= int64(m.spec.MaxEntries):
		c.set(x86.RAX, 0)
	case f.key >= 0:
		c.set(tmp9, uint64(f.key))
		c.element(pc, f.m, blkCPU)
	default:
		c.Mov(4, tmp9, c.memUnchecked(pc, f.args[R2]))
		c.arrayElement(pc, f.m, blkCPU)
	}
}

// arrayElement emits the result of a lookup of the element whose number is in R9.
func (c *compiler) arrayElement(pc, i, cpu int) {
	none := c.NewLabel()
	c.emitNoElement(pc)
	c.Cmp(4, tmp9, imm(c.p.maps[i].spec.MaxEntries))
	c.Jcc(x86.CondAE, none)
	c.element(pc, i, cpu)
	c.Place(none)
}

// emitNoElement emits the result of a failed lookup.
func (c *compiler) emitNoElement(pc int) {
	c.returnZero(pc)
	if r, ok := c.shadows[def(pc)]; ok {
		c.set(r, 0)
	}
}

// element emits the result of a lookup that finds the element whose number is in R9,
// for the vCPU whose number is in the block at cpu. R9 and R10 change.
func (c *compiler) element(pc, i, cpu int) {
	m := c.p.maps[i]
	if m.perCPU {
		c.Mov(4, tmpA, x86.At(c.blk, cpu))
		c.ImulImm(4, tmpA, tmpA, imm(m.entries))
		c.Add(4, tmp9, tmpA)
	}
	if r, ok := c.shadows[def(pc)]; ok {
		c.Mov(4, r, tmp9)
		c.elementAddr(m, r, tmpA)
	}
	if c.after[pc].regs.has(uint8(R0)) {
		c.Shl(8, tmp9, imm(elemShift))
		c.set(x86.RAX, segPointer(segMaps+i, 0, 0))
		c.Or(8, x86.RAX, tmp9)
	}
}

// inlineOutput emits a record with a copy of data.
func (c *compiler) inlineOutput(pc int, f *callFact, data access) {
	if n := data.size >> copyShift; n != 0 {
		c.take(pc, imm(n))
	}
	full, done := c.NewLabel(), c.NewLabel()
	c.reserveInline(f.m, data.size, tmpA)
	c.Test(8, tmpA, tmpA)
	c.Jcc(x86.CondE, full)
	from := c.memUnchecked(pc, data)
	for off := 0; off < data.size; {
		size := 8
		for size > data.size-off {
			size /= 2
		}
		c.Movzx(size, x86.RAX, from.Plus(off))
		c.Mov(size, x86.At(tmpA, off), x86.RAX)
		off += size
	}
	c.publishInline(data.size, recData, tmpA)
	c.set(x86.RAX, 0)
	c.Jmp(done)
	c.Place(full)
	c.result(errAgain)
	c.Place(done)
}

// inlineReserve emits the reservation of a record.
func (c *compiler) inlineReserve(pc int, f *callFact) {
	to, ok := c.shadows[def(pc)]
	if !ok {
		to = tmpA
	}
	c.reserveInline(f.m, int(c.sizes[def(pc)][0]), to)
	if c.after[pc].regs.has(uint8(R0)) {
		none := c.NewLabel()
		c.set(x86.RAX, 0)
		c.Test(8, to, to)
		c.Jcc(x86.CondE, none)
		c.set(x86.RAX, segPointer(segRecords, 0, 0))
		c.Place(none)
	}
}

// inlineEnd emits the end of a record.
func (c *compiler) inlineEnd(pc int, f *callFact, kind int) {
	c.publishInline(int(c.sizes[f.record][0]), kind, c.shadows[f.record])
	c.returnZero(pc)
}

// reserveInline emits to = address of n bytes in ring i, or 0. If one
// compare-and-swap is not enough, the shared routine takes over. RAX, R9, R10 and R11
// change.
func (c *compiler) reserveInline(i, n int, to reg64) {
	m := c.p.maps[i]
	slow, done := c.NewLabel(), c.NewLabel()
	need, size := recHeader+(n+7)&^7, m.ring.size
	c.set(tmp9, m.area.Addr)
	c.Mov(8, x86.RAX, x86.At(tmp9, hdrHead))
	c.Mov(8, tmpB, x86.RAX)
	c.Sub(8, tmpB, x86.At(tmp9, hdrTail))
	c.Cmp(8, tmpB, imm(size-need))
	c.Jcc(x86.CondA, slow)
	c.Mov(4, tmpB, x86.RAX)
	c.And(4, tmpB, imm((size-1)&^7))
	c.Cmp(4, tmpB, imm(size-need))
	c.Jcc(x86.CondA, slow)
	c.Lea(8, tmpA, x86.At(x86.RAX, need))
	c.Lock().Cmpxchg(8, x86.At(tmp9, hdrHead), tmpA)
	c.Jcc(x86.CondNE, slow)
	c.Mov(8, x86.AtIndex(tmp9, tmpB, 1, m.values), imm(n|recOpen<<recKindShift))
	c.Lea(8, to, x86.AtIndex(tmp9, tmpB, 1, m.values+recHeader))
	c.Place(done)
	c.pending = append(c.pending, func() {
		kept := []reg64{x86.RCX, x86.RDX, x86.RSI, x86.RDI, x86.R8}
		c.Place(slow)
		for _, r := range kept {
			c.Push(r)
		}
		c.set(x86.RDX, uint64(n))
		c.Call(c.rings.reserveRoutine(m, i))
		for k := len(kept) - 1; k >= 0; k-- {
			c.Pop(kept[k])
		}
		c.Mov(8, to, tmp9)
		c.Jmp(done)
	})
}

// publishInline emits the header of the n bytes at register data. RAX changes.
func (c *compiler) publishInline(n, kind int, data reg64) {
	c.Mov(4, x86.RAX, x86.At(c.blk, blkCPU))
	c.Shl(8, x86.RAX, imm(recCPUShift))
	c.Or(8, x86.RAX, imm(n|kind<<recKindShift))
	c.Mov(8, x86.At(data, -recHeader), x86.RAX)
}
