package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// reserveRoutine is a routine for one ring: it takes room for RDX bytes, and R9
// becomes the machine address of the data, or 0 when there is none, which is
// counted. RAX, RCX, RSI, RDI, R8, R10 and R11 change. It is Map.reserve.
func (c *compiler) reserveRoutine(m *Map, i int) label {
	return c.routine("reserve "+string(rune('0'+i)), func() {
		try, fits, whole, lose := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
		size := int32(m.ring.size)
		c.movImm(insn.RDI, m.area.Addr)
		c.ri(true, aluCmp, insn.RDX, int32(m.maxRecord()))
		c.jcc(condA, lose)
		c.lea(true, insn.RCX, at(insn.RDX, 7+recHeader))
		c.ri(true, aluAnd, insn.RCX, -8)
		c.movImm(insn.R8, ringTries)
		c.place(try)
		c.load(8, insn.RAX, at(insn.RDI, hdrHead))
		c.ri(true, aluAnd, insn.RAX, -8)
		c.mov(true, tmpA, insn.RAX)
		c.ri(false, aluAnd, tmpA, size-1)
		c.movImm(tmpB, 0)
		c.lea(true, tmp9, operand{tmpA, insn.RCX, 1, 0})
		c.ri(true, aluCmp, tmp9, size)
		c.jcc(condBE, fits)
		c.movImm(tmpB, uint64(size))
		c.rr(true, aluSub, tmpB, tmpA)
		c.place(fits)
		c.lea(true, tmp9, operand{insn.RAX, tmpB, 1, 0})
		c.rr(true, aluAdd, tmp9, insn.RCX)
		c.mov(true, insn.RSI, tmp9)
		c.rm(true, aluSub, insn.RSI, at(insn.RDI, hdrTail))
		c.ri(true, aluCmp, insn.RSI, size)
		c.jcc(condA, lose)
		taken := c.newLabel()
		c.locked(true, lockCmpxchg, at(insn.RDI, hdrHead), tmp9)
		c.jcc(condE, taken)
		c.ri(false, aluSub, insn.R8, 1)
		c.jcc(condNE, try)
		c.place(lose)
		c.lockAddImm(at(insn.RDI, hdrLost), 1)
		c.movImm(tmp9, 0)
		c.ret()
		c.place(taken)
		c.test(true, tmpB, tmpB)
		c.jcc(condE, whole)
		c.movImm(insn.RAX, recDiscarded<<recKindShift)
		c.lea(true, insn.RAX, operand{insn.RAX, tmpB, 1, -recHeader})
		c.store(8, operand{insn.RDI, tmpA, 1, int32(m.values)}, insn.RAX)
		c.movImm(tmpA, 0)
		c.place(whole)
		c.lea(true, tmp9, operand{insn.RDI, tmpA, 1, int32(m.values + recHeader)})
		c.ret()
	})
}

// publishRoutine is a routine: it publishes the record at R9 of RDX bytes. RAX
// changes.
func (c *compiler) publishRoutine(kind int32) label {
	return c.routine("publish "+string(rune('0'+kind)), func() {
		c.load(4, insn.RAX, at(c.blk, blkCPU))
		c.shiftImm(true, shiftLeft, insn.RAX, recCPUShift-recKindShift)
		c.ri(true, aluOr, insn.RAX, kind)
		c.shiftImm(true, shiftLeft, insn.RAX, recKindShift)
		c.rr(true, aluOr, insn.RAX, insn.RDX)
		c.store(8, at(tmp9, -recHeader), insn.RAX)
		c.ret()
	})
}

// ringOutput emits ringbuf_output and perf_event_output; flags is R0 for the
// one that ignores them.
func (c *compiler) ringOutput(pc int, h Helper, ring, data, size, flags Reg) error {
	m, i, err := c.mapOf(pc, h, ring, ringMaps)
	if err != nil {
		return err
	}
	empty, done := c.newLabel(), c.newLabel()
	c.movImm(tmp9, 0)
	c.test(true, c.regs[size], c.regs[size])
	c.jcc(condE, empty)
	c.region(pc, data, -1, c.regs[size], false)
	c.place(empty)
	c.store(8, at(c.blk, tmpValue), tmp9)
	if flags != R0 {
		c.result(errInval)
		c.mov(true, tmpB, c.regs[flags])
		c.ri(true, aluAnd, tmpB, ^3)
		c.jcc(condNE, done)
	}
	c.mov(true, insn.RDX, c.regs[size])
	c.callTo(c.reserveRoutine(m, i))
	c.result(errAgain)
	c.test(true, tmp9, tmp9)
	c.jcc(condE, done)
	c.load(8, insn.RSI, at(c.blk, tmpValue))
	c.copyBytes(tmp9, insn.RSI, insn.RDX)
	c.callTo(c.publishRoutine(recData))
	c.movImm(insn.RAX, 0)
	c.place(done)
	return nil
}

// ringReserve emits ringbuf_reserve (map, size, flags).
func (c *compiler) ringReserve(pc int, h Helper) error {
	m, i, err := c.mapOf(pc, h, R1, ringMaps)
	if err != nil {
		return err
	}
	done := c.newLabel()
	c.mi(false, aluCmp, at(c.blk, blkOpen), MaxReservations)
	c.jcc(condE, c.fault(FaultRecords, pc, insn.RDI, 0))
	c.movImm(insn.RAX, 0)
	c.test(true, insn.RDX, insn.RDX)
	c.jcc(condNE, done)
	c.mov(true, insn.RDX, insn.RSI)
	c.callTo(c.reserveRoutine(m, i))
	c.movImm(insn.RAX, 0)
	c.test(true, tmp9, tmp9)
	c.jcc(condE, done)
	c.callTo(c.openRoutine())
	c.place(done)
	return nil
}

// openRoutine is a routine: it enters the reservation at R9 of RDX bytes, and
// RAX becomes the program's address of it. RCX changes.
func (c *compiler) openRoutine() label {
	return c.routine("open", func() {
		for i := int32(0); i < MaxReservations; i++ {
			next := c.newLabel()
			if i < MaxReservations-1 {
				c.mi(true, aluCmp, at(c.blk, blkRecords+i*blkRecordSize), 0)
				c.jcc(condNE, next)
			}
			c.store(8, at(c.blk, blkRecords+i*blkRecordSize), tmp9)
			c.store(8, at(c.blk, blkRecords+i*blkRecordSize+8), insn.RDX)
			e := c.seg(segRecords+i, 0)
			c.store(8, e.plus(segBase), tmp9)
			c.storeImm(4, e.plus(segCount), 1)
			c.mov(true, insn.RCX, insn.RDX)
			c.limits(e, insn.RCX)
			c.mi(false, aluAdd, at(c.blk, blkOpen), 1)
			c.movImm(insn.RAX, segPointer(segRecords+int(i), 0, 0))
			c.ret()
			c.place(next)
		}
	})
}

// ringEnd emits ringbuf_submit and ringbuf_discard (record, flags).
func (c *compiler) ringEnd(pc int, kind int32) {
	bad := c.fault(FaultRecordArg, pc, insn.RDI, 0)
	c.mov(true, insn.RAX, insn.RDI)
	c.shiftImm(true, shiftLeft, insn.RAX, 64-segShift)
	c.jcc(condNE, bad)
	c.mov(true, tmpB, insn.RDI)
	c.shiftImm(true, shiftRight, tmpB, segShift)
	c.ri(false, aluSub, tmpB, segRecords)
	c.ri(false, aluCmp, tmpB, MaxReservations)
	c.jcc(condAE, bad)
	c.shiftImm(false, shiftLeft, tmpB, 4) // blkRecordSize
	c.load(8, tmp9, operand{c.blk, tmpB, 1, blkRecords})
	c.test(true, tmp9, tmp9)
	c.jcc(condE, bad)
	c.load(8, insn.RDX, operand{c.blk, tmpB, 1, blkRecords + 8})
	c.callTo(c.publishRoutine(kind))
	c.storeImm(8, operand{c.blk, tmpB, 1, blkRecords}, 0)
	c.shiftImm(false, shiftLeft, tmpB, 2) // segSize / blkRecordSize
	c.storeImm(4, operand{c.blk, tmpB, 1, blkSegs + segRecords*segSize + segCount}, 0)
	c.mi(false, aluSub, at(c.blk, blkOpen), 1)
	c.movImm(insn.RAX, 0)
}

// dropRecords emits the discarding of what the program reserved and did not
// submit. RAX keeps its value.
func (c *compiler) dropRecords() {
	none := c.newLabel()
	c.mi(false, aluCmp, at(c.blk, blkOpen), 0)
	c.jcc(condE, none)
	c.mov(true, tmpA, insn.RAX)
	for i := int32(0); i < MaxReservations; i++ {
		next := c.newLabel()
		c.load(8, tmp9, at(c.blk, blkRecords+i*blkRecordSize))
		c.test(true, tmp9, tmp9)
		c.jcc(condE, next)
		c.load(8, insn.RDX, at(c.blk, blkRecords+i*blkRecordSize+8))
		c.callTo(c.publishRoutine(recDiscarded))
		c.storeImm(8, at(c.blk, blkRecords+i*blkRecordSize), 0)
		c.storeImm(4, c.seg(segRecords+i, segCount), 0)
		c.place(next)
	}
	c.storeImm(4, at(c.blk, blkOpen), 0)
	c.mov(true, insn.RAX, tmpA)
	c.place(none)
}

// ringQuery emits ringbuf_query (map, what).
func (c *compiler) ringQuery(pc int, h Helper) error {
	m, _, err := c.mapOf(pc, h, R1, ringMaps)
	if err != nil {
		return err
	}
	c.movImm(tmp9, m.area.Addr)
	c.load(8, tmpA, at(tmp9, hdrHead))
	c.load(8, tmpB, at(tmp9, hdrTail))
	done := c.newLabel()
	for what, emit := range []func(){
		func() { c.mov(true, insn.RAX, tmpA); c.rr(true, aluSub, insn.RAX, tmpB) },
		func() { c.movImm(insn.RAX, uint64(m.ring.size)) },
		func() { c.mov(true, insn.RAX, tmpB) },
		func() { c.mov(true, insn.RAX, tmpA) },
	} {
		next := c.newLabel()
		c.cmpImm(true, insn.RSI, int32(what))
		c.jcc(condNE, next)
		emit()
		c.jmp(done)
		c.place(next)
	}
	c.movImm(insn.RAX, 0)
	c.place(done)
	return nil
}
