package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// In the code of a small program the context's address stays in RDI and the
// block's in RSI, as they came; RAX is R0, and R9 to R11 are for single operations.
// What else is needed gets a register of this list, whose content is kept.
var smallPool = []reg64{insn.RDX, insn.RCX, insn.R8, insn.RBX, insn.RBP, insn.R12, insn.R13, insn.R14, insn.R15}

// assign gives registers to what a small program needs. It returns false when
// there are too few.
func (c *compiler) assign(s *small) bool {
	var needed uint16 = s.entry
	var clock, record bool
	for pc := range c.p.ops {
		o := &c.p.ops[pc]
		if !s.at[pc].reached {
			continue
		}
		needed |= s.live[pc]
		if o.code == opCall && !s.dead[pc] {
			clock = clock || Helper(o.imm) == HelperKtimeGetNS
			record = record || Helper(o.imm) == HelperRingReserve
		}
	}
	pool := smallPool
	take := func() reg64 {
		if len(pool) == 0 {
			return insn.NoReg
		}
		r := pool[0]
		pool = pool[1:]
		return r
	}
	regs := c.regs
	regs[R0] = insn.RAX
	for r := R1; r <= R10; r++ {
		if r == R6 && clock && len(pool) == len(smallPool) {
			take() // the clock is read into RDX, which only what ends at a call may share
		}
		regs[r] = insn.NoReg
		if needed>>r&1 != 0 {
			if regs[r] = take(); regs[r] == insn.NoReg {
				return false
			}
		}
	}
	if record {
		if clock && len(pool) == len(smallPool) {
			take()
		}
		if c.record = take(); c.record == insn.NoReg {
			return false
		}
	}
	c.regs, c.blk, c.small, c.frame = regs, insn.RSI, s, s.frame
	return true
}

func (c *compiler) compileSmall() {
	c.leave, c.fail = c.NewLabel(), c.NewLabel()
	retired := c.NewLabel()
	if c.small.claims {
		c.claim()
		c.Jcc(insn.CondB, retired)
		c.addShared(blkRuns, 1)
	} else {
		// The run is counted before the block is looked at: whoever retires the
		// block either sees a run that has not ended, or this sees that it is retired.
		c.addShared(blkRuns, 1)
		c.Cmp(4, insn.At(c.blk, blkBusy), imm(0))
		c.Jcc(insn.CondNE, retired)
	}
	c.pending = append(c.pending, func() {
		c.Place(retired)
		if !c.small.claims {
			c.addShared(blkRuns, -1)
		}
		c.addShared(blkMissed, 1)
		c.set(insn.RAX, 0)
		c.Jmp(c.fail)
	})
	for range c.p.ops {
		c.pcs = append(c.pcs, c.NewLabel())
	}
	c.info.Small, c.info.Reentrant = true, !c.small.claims
	c.info.Slots = make([]int, len(c.p.ops))
	for r := R0; r <= R10; r++ {
		if c.small.entry>>r&1 != 0 {
			c.MarkWritten(c.regs[r])
		}
	}
	last := 0 // the last operation that is reached
	for pc := range c.p.ops {
		if c.small.at[pc].reached {
			last = pc
		}
	}
	for pc := range c.p.ops {
		c.Place(c.pcs[pc])
		c.info.Slots[pc] = c.Len()
		switch o := &c.p.ops[pc]; {
		case !c.small.at[pc].reached:
		case c.small.dead[pc]:
			if o.code == opCall {
				c.zeroArgs(pc)
			}
		case o.code == opExit && pc != last:
			c.Jmp(c.leave)
		case o.code == opExit:
		default:
			c.smallOp(pc, o)
		}
	}
	c.Place(c.leave)
	c.countAnswer()
	if c.small.claims {
		c.Mov(4, insn.At(c.blk, blkBusy), imm(0))
	}
	c.Place(c.fail)
	if c.frame != 0 {
		c.Lea(8, insn.RSP, insn.At(insn.RSP, c.frame))
	}
	c.used = c.Written() // what stands out of line keeps all registers itself
	saved := c.saved()
	for i := len(saved) - 1; i >= 0; i-- {
		c.Pop(saved[i])
	}
	c.Ret()
	for len(c.pending) > 0 {
		f := c.pending[0]
		c.pending = c.pending[1:]
		f()
	}
	body := c.Asm
	c.Asm = insn.Asm{}
	c.smallHead()
	c.finish(&body)
	c.info.MachineStack = 8*(len(saved)+1) + int(c.frame) + 10*8
}

// addShared adds to a count of the block.
func (c *compiler) addShared(off, v int) {
	if c.layout.Shared {
		c.Lock()
	}
	c.Add(8, insn.At(c.blk, off), imm(v))
}

// smallHead is what stands before a small program.
func (c *compiler) smallHead() {
	for _, r := range c.saved() {
		c.Push(r)
	}
	if c.frame != 0 {
		c.Lea(8, insn.RSP, insn.At(insn.RSP, -c.frame))
	}
	init := [numRegs]uint64{R1: segPointer(segContext, 0, 0), R10: segPointer(segStack, 0, StackSize)}
	for r, v := range init {
		if c.small.entry>>r&1 != 0 {
			c.set(c.regs[r], v)
		}
	}
}

// smallOp emits one operation of a small program.
func (c *compiler) smallOp(pc int, o *op) {
	st := &c.small.at[pc]
	switch {
	case o.code >= opAdd && o.code < opJeq:
		c.alu(o)
	case o.code >= opJeq && o.code < opSingles:
		c.smallJump(pc, o)
	case o.code >= opLoad8 && o.code <= opLoads32:
		m := c.smallOperand(st, Reg(o.src), int64(o.off), int(o.size))
		if o.code >= opLoads8 {
			c.Movsx(8, int(o.size), c.regs[o.dst], m)
		} else {
			c.Movzx(int(o.size), c.regs[o.dst], m)
		}
	case o.code == opStoreK:
		c.Mov(int(o.size), c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)), imm(o.imm))
	case o.code == opStoreX && c.small.fused[pc]:
		c.smallAdd(&c.p.ops[pc-1], int(o.size), c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)))
	case o.code == opStoreX:
		c.Mov(int(o.size), c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)), c.regs[o.src])
	case o.code == opAtomic:
		c.own = c.isOwn(st.regs[o.dst])
		c.atomicAt(o, c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)))
		c.own = false
	case o.code == opJa:
		c.Jmp(c.pcs[o.off])
	case o.code == opLoadImm:
		c.set(c.regs[o.dst], uint64(o.imm))
	case o.code == opCall:
		c.smallCall(pc, o, st)
	default:
		c.single(o)
	}
}

// smallAdd emits the addition that an operation makes, to memory.
func (c *compiler) smallAdd(add *op, size int, m insn.Mem) {
	if add.code&1 != 0 { // form64X or form32X
		c.Add(size, m, c.regs[add.src])
		return
	}
	c.Add(size, m, imm(add.imm))
}

// isOwn reports whether only this vCPU's programs write there: then one
// instruction is atomic without a lock, because what comes in between comes
// between instructions.
func (c *compiler) isOwn(v smallValue) bool {
	return v.kind == sValue && v.elem >= 0 && c.p.maps[v.m].perCPU && !c.layout.Shared
}

// smallJump emits a conditional jump, or what is left of one that always goes
// the same way.
func (c *compiler) smallJump(pc int, o *op) {
	switch c.small.jumps[pc] {
	case alwaysTaken:
		c.Jmp(c.pcs[o.off])
	case eitherWay:
		if c.small.at[pc].regs[o.dst].kind == sMaybeRecord && c.small.nullCheck(pc) {
			c.Test(8, c.record, c.record)
			c.Jcc(jumpConds[o.code&^3], c.pcs[o.off])
			return
		}
		c.jump(pc, o)
	}
}

// smallOperand returns where an access of n bytes goes. R9 and R11 change.
func (c *compiler) smallOperand(st *smallState, r Reg, off int64, n int) insn.Mem {
	v := st.regs[r]
	at1 := func(base reg64, disp int64) insn.Mem { return insn.At(base, int(disp)) }
	switch v.kind {
	case sContext:
		for i := (v.off + off) / 8; i <= (v.off+off+int64(n)-1)/8; i++ {
			c.info.ContextReads |= 1 << i
		}
		return at1(insn.RDI, v.off+off)
	case sFrame:
		return at1(insn.RSP, int64(c.frame)+v.off+off)
	case sRecord:
		return at1(c.record, v.off+off)
	case sValue:
	default:
		panic("BUG: access to no known place in a small program")
	}
	m := c.p.maps[v.m]
	base := m.area.Addr + uint64(m.values)
	switch {
	case v.elem < 0:
		c.Lea(8, tmp9, at1(c.regs[r], -v.off))
		c.Shr(8, tmp9, imm(elemShift))
		c.And(4, tmp9, imm(elemMask))
		c.ImulImm(8, tmp9, tmp9, imm(m.stride))
		c.set(tmpB, base)
		c.Add(8, tmp9, tmpB)
		return at1(tmp9, v.off+off)
	case m.perCPU:
		c.Mov(8, tmp9, insn.At(c.blk, c.p.localOff(int(v.m))))
		return at1(tmp9, int64(v.elem)*int64(m.stride)+v.off+off)
	}
	c.set(tmp9, base+uint64(v.elem)*uint64(m.stride)+uint64(v.off+off))
	return insn.At(tmp9, 0)
}
