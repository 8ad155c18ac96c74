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
			return noReg
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
		regs[r] = noReg
		if needed>>r&1 != 0 {
			if regs[r] = take(); regs[r] == noReg {
				return false
			}
		}
	}
	if record {
		if clock && len(pool) == len(smallPool) {
			take()
		}
		if c.record = take(); c.record == noReg {
			return false
		}
	}
	c.regs, c.blk, c.small, c.frame = regs, insn.RSI, s, s.frame
	return true
}

func (c *compiler) compileSmall() {
	c.leave, c.fail = c.newLabel(), c.newLabel()
	retired := c.newLabel()
	if c.small.claims {
		c.claim()
		c.jcc(condB, retired)
		c.addShared(blkRuns, 1)
	} else {
		// The run is counted before the block is looked at: whoever retires the
		// block either sees a run that has not ended, or this sees that it is retired.
		c.addShared(blkRuns, 1)
		c.mi(false, aluCmp, at(c.blk, blkBusy), 0)
		c.jcc(condNE, retired)
	}
	c.pending = append(c.pending, func() {
		c.place(retired)
		if !c.small.claims {
			c.addShared(blkRuns, -1)
		}
		c.addShared(blkMissed, 1)
		c.movImm(insn.RAX, 0)
		c.jmp(c.fail)
	})
	for range c.p.ops {
		c.pcs = append(c.pcs, c.newLabel())
	}
	c.info.Small, c.info.Reentrant = true, !c.small.claims
	c.info.Slots = make([]int, len(c.p.ops))
	for r := R0; r <= R10; r++ {
		if c.small.entry>>r&1 != 0 {
			c.writes(c.regs[r])
		}
	}
	last := 0 // the last operation that is reached
	for pc := range c.p.ops {
		if c.small.at[pc].reached {
			last = pc
		}
	}
	for pc := range c.p.ops {
		c.place(c.pcs[pc])
		c.info.Slots[pc] = len(c.b)
		switch o := &c.p.ops[pc]; {
		case !c.small.at[pc].reached:
		case c.small.dead[pc]:
			if o.code == opCall {
				c.zeroArgs(pc)
			}
		case o.code == opExit && pc != last:
			c.jmp(c.leave)
		case o.code == opExit:
		default:
			c.smallOp(pc, o)
		}
	}
	c.place(c.leave)
	c.countReject()
	if c.small.claims {
		c.storeImm(4, at(c.blk, blkBusy), 0)
	} else {
		c.addShared(blkEnded, 1)
	}
	c.place(c.fail)
	if c.frame != 0 {
		c.lea(true, insn.RSP, at(insn.RSP, c.frame))
	}
	saved := c.saved()
	for i := len(saved) - 1; i >= 0; i-- {
		c.pop(saved[i])
	}
	c.ret()
	used := c.used // what stands out of line keeps all registers itself
	for len(c.pending) > 0 {
		f := c.pending[0]
		c.pending = c.pending[1:]
		f()
	}
	c.used = used
	body := c.x86asm
	c.x86asm = x86asm{used: used}
	c.smallHead()
	c.finish(&body)
	c.info.MachineStack = 8*(len(saved)+1) + int(c.frame) + 10*8
}

// addShared adds to a count of the block.
func (c *compiler) addShared(off, v int32) {
	if c.layout.Shared {
		c.emit(0xf0)
	}
	c.mi(true, aluAdd, at(c.blk, off), v)
}

// smallHead is what stands before a small program.
func (c *compiler) smallHead() {
	for _, r := range c.saved() {
		c.push(r)
	}
	if c.frame != 0 {
		c.lea(true, insn.RSP, at(insn.RSP, -c.frame))
	}
	init := [numRegs]uint64{R1: segPointer(segContext, 0, 0), R10: segPointer(segStack, 0, StackSize)}
	for r, v := range init {
		if c.small.entry>>r&1 != 0 {
			c.movImm(c.regs[r], v)
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
			c.loadSigned(int(o.size), c.regs[o.dst], m)
		} else {
			c.load(int(o.size), c.regs[o.dst], m)
		}
	case o.code == opStoreK:
		c.storeImm(int(o.size), c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)), int32(uint32(o.imm)))
	case o.code == opStoreX && c.small.fused[pc]:
		c.smallAdd(&c.p.ops[pc-1], o.size == 8, c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)))
	case o.code == opStoreX:
		c.store(int(o.size), c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)), c.regs[o.src])
	case o.code == opAtomic:
		c.own = c.isOwn(st.regs[o.dst])
		c.atomicAt(o, c.smallOperand(st, Reg(o.dst), int64(o.off), int(o.size)))
		c.own = false
	case o.code == opJa:
		c.jmp(c.pcs[o.off])
	case o.code == opLoadImm:
		c.movImm(c.regs[o.dst], uint64(o.imm))
	case o.code == opCall:
		c.smallCall(pc, o, st)
	default:
		c.single(o)
	}
}

// smallAdd emits the addition that an operation makes, to memory.
func (c *compiler) smallAdd(add *op, wide bool, m operand) {
	if add.code&1 != 0 { // form64X or form32X
		c.memOp(wide, []byte{0x01}, c.regs[add.src], m, false)
		return
	}
	c.mi(wide, aluAdd, m, int32(uint32(add.imm)))
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
		c.jmp(c.pcs[o.off])
	case eitherWay:
		if c.small.at[pc].regs[o.dst].kind == sMaybeRecord && c.small.nullCheck(pc) {
			c.test(true, c.record, c.record)
			c.jcc(jumpConds[o.code&^3], c.pcs[o.off])
			return
		}
		c.jump(pc, o)
	}
}

// smallOperand returns where an access of n bytes goes. R9 and R11 change.
func (c *compiler) smallOperand(st *smallState, r Reg, off int64, n int) operand {
	v := st.regs[r]
	at1 := func(base reg64, disp int64) operand { return at(base, int32(disp)) }
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
		c.lea(true, tmp9, at1(c.regs[r], -v.off))
		c.shiftImm(true, shiftRight, tmp9, elemShift)
		c.ri(false, aluAnd, tmp9, elemMask)
		c.imulImm(true, tmp9, tmp9, int32(m.stride))
		c.movImm(tmpB, base)
		c.rr(true, aluAdd, tmp9, tmpB)
		return at1(tmp9, v.off+off)
	case m.perCPU:
		c.load(8, tmp9, at(c.blk, c.p.localOff(int(v.m))))
		return at1(tmp9, int64(v.elem)*int64(m.stride)+v.off+off)
	}
	c.movImm(tmp9, base+uint64(v.elem)*uint64(m.stride)+uint64(v.off+off))
	return at(tmp9, 0)
}
