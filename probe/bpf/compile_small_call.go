package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// smallCall emits a helper call of a small program.
func (c *compiler) smallCall(pc int, o *op, st *smallState) {
	live := c.small.live[pc]
	r0 := live&1 != 0
	size := int(c.small.sizes[pc])
	zero := true // R0 becomes 0
	switch h := Helper(o.imm); h {
	case HelperKtimeGetNS:
		ktime(&c.Asm, c.blk)
		zero = false
	case HelperGetCPU:
		c.Mov(4, insn.RAX, insn.At(c.blk, blkCPU))
		zero = false
	case HelperGetFuncIP:
		c.Mov(8, insn.RAX, insn.At(c.blk, blkFuncIP))
		zero = false
	case HelperGetFuncArgCnt:
		c.set(insn.RAX, uint64(len(insn.CallArgs)))
		zero = false
	case HelperGetPIDTGID:
		c.pidTGID(c.layout.Task)
		zero = false
	case HelperGetComm:
		c.comm(c.layout.Task, tmpA, insn.RAX)
		m := c.smallOperand(st, R1, 0, commSize)
		c.Mov(8, m, tmpA)
		c.Mov(8, m.Plus(8), insn.RAX)
	case HelperMapLookup:
		c.smallLookup(st, st.regs[R1].m)
		zero = false
	case HelperRingOutput, HelperPerfEventOutput:
		ring, data := R1, R2
		if h == HelperPerfEventOutput {
			ring, data = R2, R4
		}
		c.smallOutput(st, c.p.maps[st.regs[ring].m], data, size)
		zero = false
	case HelperRingReserve:
		c.reserveInline(c.p.maps[st.regs[R1].m], int(st.regs[R1].m), size, c.record)
		if r0 {
			none := c.NewLabel()
			c.set(insn.RAX, 0)
			c.Test(8, c.record, c.record)
			c.Jcc(insn.CondE, none)
			c.set(insn.RAX, segPointer(segRecords, 0, 0))
			c.Place(none)
		}
		zero = false
	case HelperRingSubmit:
		c.publishInline(size, recData, c.record)
	case HelperRingDiscard:
		c.publishInline(size, recDiscarded, c.record)
	default:
		panic("BUG: helper has no code in a small program")
	}
	if zero && r0 {
		c.set(insn.RAX, 0)
	}
	c.zeroArgs(pc)
}

// zeroArgs emits R1 to R5 = 0, as they are after a call, where that is needed.
func (c *compiler) zeroArgs(pc int) {
	for r := R1; r <= R5; r++ {
		if c.small.live[pc]>>r&1 != 0 {
			c.set(c.regs[r], 0)
		}
	}
}

// smallLookup emits R0 = address of an array's value, or 0.
func (c *compiler) smallLookup(st *smallState, i int32) {
	m := c.p.maps[i]
	done := c.NewLabel()
	key, known := st.constant(st.regs[R2].off, 4)
	if known {
		if key >= uint64(m.spec.MaxEntries) {
			c.set(insn.RAX, 0)
			return
		}
		c.set(insn.RAX, key)
	} else {
		c.Mov(4, tmp9, c.smallOperand(st, R2, 0, 4))
		c.set(insn.RAX, 0)
		c.Cmp(4, tmp9, imm(m.spec.MaxEntries))
		c.Jcc(insn.CondAE, done)
		c.Mov(4, insn.RAX, tmp9)
	}
	if m.perCPU {
		c.Mov(4, tmp9, insn.At(c.blk, blkCPU))
		c.ImulImm(4, tmp9, tmp9, imm(m.entries))
		c.Add(4, insn.RAX, tmp9)
	}
	c.Shl(8, insn.RAX, imm(elemShift))
	c.set(tmp9, segPointer(segMaps+int(i), 0, 0))
	c.Or(8, insn.RAX, tmp9)
	c.Place(done)
}

// smallOutput emits a record of the n bytes at register data.
func (c *compiler) smallOutput(st *smallState, m *Map, data Reg, n int) {
	full, done := c.NewLabel(), c.NewLabel()
	i := 0
	for c.p.maps[i] != m {
		i++
	}
	c.reserveInline(m, i, n, tmpA)
	c.Test(8, tmpA, tmpA)
	c.Jcc(insn.CondE, full)
	from := c.smallOperand(st, data, 0, n)
	for off := 0; off < n; {
		size := 8
		for size > n-off {
			size /= 2
		}
		c.Movzx(size, insn.RAX, from.Plus(off))
		c.Mov(size, insn.At(tmpA, int(off)), insn.RAX)
		off += size
	}
	c.publishInline(n, recData, tmpA)
	c.set(insn.RAX, 0)
	c.Jmp(done)
	c.Place(full)
	c.result(errAgain)
	c.Place(done)
}

// reserveInline emits to = address of n bytes in ring i, or 0. Where more than
// one compare-and-swap is needed, the shared routine does it. RAX, R9, R10 and
// R11 change.
func (c *compiler) reserveInline(m *Map, i int, n int, to reg64) {
	slow, done := c.NewLabel(), c.NewLabel()
	need, size := recHeader+(n+7)&^7, m.ring.size
	c.set(tmp9, m.area.Addr)
	c.Mov(8, insn.RAX, insn.At(tmp9, hdrHead))
	c.Mov(8, tmpB, insn.RAX)
	c.Sub(8, tmpB, insn.At(tmp9, hdrTail))
	c.Cmp(8, tmpB, imm(size-need))
	c.Jcc(insn.CondA, slow)
	c.Mov(4, tmpB, insn.RAX)
	c.And(4, tmpB, imm((size-1)&^7))
	c.Cmp(4, tmpB, imm(size-need))
	c.Jcc(insn.CondA, slow)
	c.Lea(8, tmpA, insn.At(insn.RAX, need))
	c.Lock().Cmpxchg(8, insn.At(tmp9, hdrHead), tmpA)
	c.Jcc(insn.CondNE, slow)
	c.Mov(8, insn.AtIndex(tmp9, tmpB, 1, m.values), imm(n|recOpen<<recKindShift))
	c.Lea(8, to, insn.AtIndex(tmp9, tmpB, 1, m.values+recHeader))
	c.Place(done)
	c.pending = append(c.pending, func() {
		kept := []reg64{insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.R8}
		c.Place(slow)
		for _, r := range kept {
			c.Push(r)
		}
		c.set(insn.RDX, uint64(n))
		c.Call(c.reserveRoutine(m, i))
		for k := len(kept) - 1; k >= 0; k-- {
			c.Pop(kept[k])
		}
		c.Mov(8, to, tmp9)
		c.Jmp(done)
	})
}

// publishInline emits the header of the n bytes at register data. RAX changes.
func (c *compiler) publishInline(n, kind int, data reg64) {
	c.Mov(4, insn.RAX, insn.At(c.blk, blkCPU))
	c.Shl(8, insn.RAX, imm(recCPUShift))
	c.Or(8, insn.RAX, imm(n|kind<<recKindShift))
	c.Mov(8, insn.At(data, -recHeader), insn.RAX)
}
