package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// ringCoder emits the reserving and publishing of records.
type ringCoder struct{ *coder }

// reserveRoutine is a routine for one ring: it reserves RDX bytes, and R9 becomes the
// machine address of the data, or 0 if there is no room, which is counted. RAX, RCX,
// RSI, RDI, R8, R10 and R11 change. It is Map.reserve.
func (c ringCoder) reserveRoutine(m *Map, i int) x86.Label {
	return c.routine("reserve "+string(rune('0'+i)), func() {
		try, fits, whole, lose := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		size := m.ring.size
		c.set(x86.RDI, m.area.Addr)
		c.Cmp(8, x86.RDX, imm(m.maxRecord()))
		c.Jcc(x86.CondA, lose)
		c.Lea(8, x86.RCX, x86.At(x86.RDX, 7+recHeader))
		c.And(8, x86.RCX, imm(-8))
		c.set(x86.R8, ringTries)
		c.Place(try)
		c.Mov(8, x86.RAX, x86.At(x86.RDI, hdrHead))
		c.And(8, x86.RAX, imm(-8))
		c.Mov(8, tmpA, x86.RAX)
		c.And(4, tmpA, imm(size-1))
		c.set(tmpB, 0)
		c.Lea(8, tmp9, x86.AtIndex(tmpA, x86.RCX, 1, 0))
		c.Cmp(8, tmp9, imm(size))
		c.Jcc(x86.CondBE, fits)
		c.set(tmpB, uint64(size))
		c.Sub(8, tmpB, tmpA)
		c.Place(fits)
		c.Lea(8, tmp9, x86.AtIndex(x86.RAX, tmpB, 1, 0))
		c.Add(8, tmp9, x86.RCX)
		c.Mov(8, x86.RSI, tmp9)
		c.Sub(8, x86.RSI, x86.At(x86.RDI, hdrTail))
		c.Cmp(8, x86.RSI, imm(size))
		c.Jcc(x86.CondA, lose)
		taken := c.NewLabel()
		c.Lock().Cmpxchg(8, x86.At(x86.RDI, hdrHead), tmp9)
		c.Jcc(x86.CondE, taken)
		c.Sub(4, x86.R8, imm(1))
		c.Jcc(x86.CondNE, try)
		c.Place(lose)
		c.Lock().Add(8, x86.At(x86.RDI, hdrLost), imm(1))
		c.set(tmp9, 0)
		c.Ret()
		c.Place(taken)
		c.Test(8, tmpB, tmpB)
		c.Jcc(x86.CondE, whole)
		c.set(x86.RAX, recDiscarded<<recKindShift)
		c.Lea(8, x86.RAX, x86.AtIndex(x86.RAX, tmpB, 1, -recHeader))
		c.Mov(8, x86.AtIndex(x86.RDI, tmpA, 1, m.values), x86.RAX)
		c.set(tmpA, 0)
		c.Place(whole)
		c.Mov(8, x86.RAX, x86.RDX)
		c.Or(8, x86.RAX, imm(recOpen<<recKindShift))
		c.Mov(8, x86.AtIndex(x86.RDI, tmpA, 1, m.values), x86.RAX)
		c.Lea(8, tmp9, x86.AtIndex(x86.RDI, tmpA, 1, m.values+recHeader))
		c.Ret()
	})
}

// publishRoutine is a routine: it publishes the record at R9 of RDX bytes. RAX
// changes.
func (c ringCoder) publishRoutine(kind int) x86.Label {
	return c.routine("publish "+string(rune('0'+kind)), func() {
		c.Mov(4, x86.RAX, x86.At(c.blk, blkCPU))
		c.Shl(8, x86.RAX, imm(recCPUShift))
		c.Or(8, x86.RAX, x86.RDX)
		c.Or(8, x86.RAX, imm(kind<<recKindShift))
		c.Mov(8, x86.At(tmp9, -recHeader), x86.RAX)
		c.Ret()
	})
}

// ringOutput emits ringbuf_output and perf_event_output; flags is R0 for the
// one that ignores them.
func (c *compiler) ringOutput(pc int, h Helper, data, size, flags Reg) error {
	m, i, err := c.mapOf(pc, h)
	if err != nil {
		return err
	}
	empty, done := c.NewLabel(), c.NewLabel()
	c.set(tmp9, 0)
	c.Test(8, c.regs[size], c.regs[size])
	c.Jcc(x86.CondE, empty)
	c.region(pc, data, -1, c.regs[size], false)
	if c.charges {
		c.Mov(8, tmpB, c.regs[size])
		c.Shr(8, tmpB, imm(copyShift))
		c.take(pc, tmpB)
	}
	c.Place(empty)
	c.Mov(8, x86.At(c.blk, tmpValue), tmp9)
	if flags != R0 {
		c.result(errInval)
		c.Mov(8, tmpB, c.regs[flags])
		c.And(8, tmpB, imm(^3))
		c.Jcc(x86.CondNE, done)
	}
	c.Mov(8, x86.RDX, c.regs[size])
	c.Call(c.rings.reserveRoutine(m, i))
	c.result(errAgain)
	c.Test(8, tmp9, tmp9)
	c.Jcc(x86.CondE, done)
	c.Mov(8, x86.RSI, x86.At(c.blk, tmpValue))
	c.reads.copyBytes(tmp9, x86.RSI, x86.RDX)
	c.Call(c.rings.publishRoutine(recData))
	c.set(x86.RAX, 0)
	c.Place(done)
	return nil
}

// ringReserve emits ringbuf_reserve (map, size, flags).
func (c *compiler) ringReserve(pc int, h Helper) error {
	m, i, err := c.mapOf(pc, h)
	if err != nil {
		return err
	}
	done := c.NewLabel()
	c.Cmp(4, x86.At(c.blk, blkOpen), imm(MaxReservations))
	c.Jcc(x86.CondE, c.fault(FaultRecords, pc, x86.RDI, 0))
	c.set(x86.RAX, 0)
	c.Test(8, x86.RDX, x86.RDX)
	c.Jcc(x86.CondNE, done)
	c.Mov(8, x86.RDX, x86.RSI)
	c.Call(c.rings.reserveRoutine(m, i))
	c.set(x86.RAX, 0)
	c.Test(8, tmp9, tmp9)
	c.Jcc(x86.CondE, done)
	c.Call(c.rings.openRoutine())
	c.Place(done)
	return nil
}

// openRoutine is a routine: it records the reservation at R9 of RDX bytes, and RAX
// becomes the program's address of it. RCX changes.
func (c ringCoder) openRoutine() x86.Label {
	return c.routine("open", func() {
		for i := range MaxReservations {
			next := c.NewLabel()
			if i < MaxReservations-1 {
				c.Cmp(8, x86.At(c.blk, blkRecords+i*blkRecordSize), imm(0))
				c.Jcc(x86.CondNE, next)
			}
			c.Mov(8, x86.At(c.blk, blkRecords+i*blkRecordSize), tmp9)
			c.Mov(8, x86.At(c.blk, blkRecords+i*blkRecordSize+8), x86.RDX)
			e := c.seg(segRecords+i, 0)
			c.Mov(8, e.Plus(segBase), tmp9)
			c.Mov(4, e.Plus(segCount), imm(1))
			c.Mov(8, x86.RCX, x86.RDX)
			c.fillLimits(e, x86.RCX)
			c.Add(4, x86.At(c.blk, blkOpen), imm(1))
			c.set(x86.RAX, segPointer(segRecords+int(i), 0, 0))
			c.Ret()
			c.Place(next)
		}
	})
}

// ringEnd emits ringbuf_submit and ringbuf_discard (record, flags).
func (c *compiler) ringEnd(pc int, kind int) {
	bad := c.fault(FaultRecordArg, pc, x86.RDI, 0)
	c.Mov(8, x86.RAX, x86.RDI)
	c.Shl(8, x86.RAX, imm(64-segShift))
	c.Jcc(x86.CondNE, bad)
	c.Mov(8, tmpB, x86.RDI)
	c.Shr(8, tmpB, imm(segShift))
	c.Sub(4, tmpB, imm(segRecords))
	c.Cmp(4, tmpB, imm(MaxReservations))
	c.Jcc(x86.CondAE, bad)
	c.Shl(4, tmpB, imm(4)) // blkRecordSize
	c.Mov(8, tmp9, x86.AtIndex(c.blk, tmpB, 1, blkRecords))
	c.Test(8, tmp9, tmp9)
	c.Jcc(x86.CondE, bad)
	c.Mov(8, x86.RDX, x86.AtIndex(c.blk, tmpB, 1, blkRecords+8))
	c.Call(c.rings.publishRoutine(kind))
	c.Mov(8, x86.AtIndex(c.blk, tmpB, 1, blkRecords), imm(0))
	c.Shl(4, tmpB, imm(2)) // segSize / blkRecordSize
	c.Mov(4, x86.AtIndex(c.blk, tmpB, 1, blkSegs+segRecords*segSize+segCount), imm(0))
	c.Sub(4, x86.At(c.blk, blkOpen), imm(1))
	c.set(x86.RAX, 0)
}

// dropRecords emits code that discards the records that the program reserved and did
// not submit. RAX keeps its value.
func (c ringCoder) dropRecords() {
	none := c.NewLabel()
	c.Cmp(4, x86.At(c.blk, blkOpen), imm(0))
	c.Jcc(x86.CondE, none)
	c.Mov(8, tmpA, x86.RAX)
	for i := range MaxReservations {
		next := c.NewLabel()
		c.Mov(8, tmp9, x86.At(c.blk, blkRecords+i*blkRecordSize))
		c.Test(8, tmp9, tmp9)
		c.Jcc(x86.CondE, next)
		c.Mov(8, x86.RDX, x86.At(c.blk, blkRecords+i*blkRecordSize+8))
		c.Call(c.publishRoutine(recDiscarded))
		c.Mov(8, x86.At(c.blk, blkRecords+i*blkRecordSize), imm(0))
		c.Mov(4, c.seg(segRecords+i, segCount), imm(0))
		c.Place(next)
	}
	c.Mov(4, x86.At(c.blk, blkOpen), imm(0))
	c.Mov(8, x86.RAX, tmpA)
	c.Place(none)
}

// ringQuery emits ringbuf_query (map, what).
func (c *compiler) ringQuery(pc int, h Helper) error {
	m, _, err := c.mapOf(pc, h)
	if err != nil {
		return err
	}
	c.set(tmp9, m.area.Addr)
	c.Mov(8, tmpA, x86.At(tmp9, hdrHead))
	c.Mov(8, tmpB, x86.At(tmp9, hdrTail))
	done := c.NewLabel()
	for what, emit := range []func(){
		func() { c.Mov(8, x86.RAX, tmpA); c.Sub(8, x86.RAX, tmpB) },
		func() { c.set(x86.RAX, uint64(m.ring.size)) },
		func() { c.Mov(8, x86.RAX, tmpB) },
		func() { c.Mov(8, x86.RAX, tmpA) },
	} {
		next := c.NewLabel()
		c.Cmp(8, x86.RSI, imm(what))
		c.Jcc(x86.CondNE, next)
		emit()
		c.Jmp(done)
		c.Place(next)
	}
	c.set(x86.RAX, 0)
	c.Place(done)
	return nil
}
