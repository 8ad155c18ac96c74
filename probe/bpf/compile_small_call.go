package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// smallCall emits a helper call of a small program.
func (c *compiler) smallCall(pc int, o *op, st *smallState) {
	live := c.small.live[pc]
	r0 := live&1 != 0
	size := c.small.sizes[pc]
	zero := true // R0 becomes 0
	switch h := Helper(o.imm); h {
	case HelperKtimeGetNS:
		c.ktime()
		zero = false
	case HelperGetCPU:
		c.load(4, insn.RAX, at(c.blk, blkCPU))
		zero = false
	case HelperGetFuncIP:
		c.load(8, insn.RAX, at(c.blk, blkFuncIP))
		zero = false
	case HelperGetFuncArgCnt:
		c.movImm(insn.RAX, uint64(len(funcArgs)))
		zero = false
	case HelperGetPIDTGID:
		c.pidTGID(c.layout.Task)
		zero = false
	case HelperGetComm:
		c.comm(c.layout.Task, tmpA, insn.RAX)
		m := c.smallOperand(st, R1, 0, commSize)
		c.store(8, m, tmpA)
		c.store(8, m.plus(8), insn.RAX)
	case HelperMapLookup:
		c.smallLookup(st, st.regs[R1].m)
		zero = false
	case HelperRingOutput, HelperPerfEventOutput:
		ring, data := R1, R2
		if h == HelperPerfEventOutput {
			ring, data = R2, R4
		}
		c.smallOutput(st, c.p.maps[st.regs[ring].m], data, int(size))
		zero = false
	case HelperRingReserve:
		c.reserveInline(c.p.maps[st.regs[R1].m], int(st.regs[R1].m), size, c.record)
		if r0 {
			none := c.newLabel()
			c.movImm(insn.RAX, 0)
			c.test(true, c.record, c.record)
			c.jcc(condE, none)
			c.movImm(insn.RAX, segPointer(segRecords, 0, 0))
			c.place(none)
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
		c.movImm(insn.RAX, 0)
	}
	c.zeroArgs(pc)
}

// zeroArgs emits R1 to R5 = 0, as they are after a call, where that is needed.
func (c *compiler) zeroArgs(pc int) {
	for r := R1; r <= R5; r++ {
		if c.small.live[pc]>>r&1 != 0 {
			c.movImm(c.regs[r], 0)
		}
	}
}

// smallLookup emits R0 = address of an array's value, or 0.
func (c *compiler) smallLookup(st *smallState, i int32) {
	m := c.p.maps[i]
	done := c.newLabel()
	key, known := st.constant(st.regs[R2].off, 4)
	if known {
		if key >= uint64(m.spec.MaxEntries) {
			c.movImm(insn.RAX, 0)
			return
		}
		c.movImm(insn.RAX, key)
	} else {
		c.load(4, tmp9, c.smallOperand(st, R2, 0, 4))
		c.movImm(insn.RAX, 0)
		c.ri(false, aluCmp, tmp9, int32(m.spec.MaxEntries))
		c.jcc(condAE, done)
		c.mov(false, insn.RAX, tmp9)
	}
	if m.perCPU {
		c.load(4, tmp9, at(c.blk, blkCPU))
		c.imulImm(false, tmp9, tmp9, int32(m.entries))
		c.rr(false, aluAdd, insn.RAX, tmp9)
	}
	c.shiftImm(true, shiftLeft, insn.RAX, elemShift)
	c.movImm(tmp9, segPointer(segMaps+int(i), 0, 0))
	c.rr(true, aluOr, insn.RAX, tmp9)
	c.place(done)
}

// smallOutput emits a record of the n bytes at register data.
func (c *compiler) smallOutput(st *smallState, m *Map, data Reg, n int) {
	full, done := c.newLabel(), c.newLabel()
	i := 0
	for c.p.maps[i] != m {
		i++
	}
	c.reserveInline(m, i, int64(n), tmpA)
	c.test(true, tmpA, tmpA)
	c.jcc(condE, full)
	from := c.smallOperand(st, data, 0, n)
	for off := 0; off < n; {
		size := 8
		for size > n-off {
			size /= 2
		}
		c.load(size, insn.RAX, from.plus(int32(off)))
		c.store(size, at(tmpA, int32(off)), insn.RAX)
		off += size
	}
	c.publishInline(int64(n), recData, tmpA)
	c.movImm(insn.RAX, 0)
	c.jmp(done)
	c.place(full)
	c.result(errAgain)
	c.place(done)
}

// reserveInline emits to = address of n bytes in ring i, or 0. Where more than
// one compare-and-swap is needed, the shared routine does it. RAX, R9, R10 and
// R11 change.
func (c *compiler) reserveInline(m *Map, i int, n int64, to reg64) {
	slow, done := c.newLabel(), c.newLabel()
	need, size := int32(recHeader+(n+7)&^7), int32(m.ring.size)
	c.movImm(tmp9, m.area.Addr)
	c.load(8, insn.RAX, at(tmp9, hdrHead))
	c.mov(true, tmpB, insn.RAX)
	c.rm(true, aluSub, tmpB, at(tmp9, hdrTail))
	c.ri(true, aluCmp, tmpB, size-need)
	c.jcc(condA, slow)
	c.mov(false, tmpB, insn.RAX)
	c.ri(false, aluAnd, tmpB, (size-1)&^7)
	c.ri(false, aluCmp, tmpB, size-need)
	c.jcc(condA, slow)
	c.lea(true, tmpA, at(insn.RAX, need))
	c.locked(true, lockCmpxchg, at(tmp9, hdrHead), tmpA)
	c.jcc(condNE, slow)
	c.lea(true, to, operand{tmp9, tmpB, 1, int32(m.values + recHeader)})
	c.place(done)
	c.pending = append(c.pending, func() {
		kept := []reg64{insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.R8}
		c.place(slow)
		for _, r := range kept {
			c.push(r)
		}
		c.movImm(insn.RDX, uint64(n))
		c.callTo(c.reserveRoutine(m, i))
		for k := len(kept) - 1; k >= 0; k-- {
			c.pop(kept[k])
		}
		c.mov(true, to, tmp9)
		c.jmp(done)
	})
}

// publishInline emits the header of the n bytes at register data. RAX and R9
// change.
func (c *compiler) publishInline(n int64, kind uint64, data reg64) {
	c.load(4, insn.RAX, at(c.blk, blkCPU))
	c.shiftImm(true, shiftLeft, insn.RAX, recCPUShift)
	c.movImm(tmp9, uint64(n)|kind<<recKindShift)
	c.rr(true, aluOr, insn.RAX, tmp9)
	c.store(8, at(data, -recHeader), insn.RAX)
}
