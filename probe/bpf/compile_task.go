package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// commSize is the length of a task's name in the guest, zeros included.
const commSize = 16

// taskHelper emits get_current_pid_tgid and get_current_comm from what the
// guest says of its task. Where it says nothing, the numbers are 0 and the name
// is empty.
func (c *compiler) taskHelper(pc int, h Helper) error {
	t := c.layout.Task
	switch {
	case t == nil || t.Stack != nil && !c.p.kind.hasRegs():
		return &HostOnlyError{pc, h, needsTask}
	case t.Stack != nil && !c.layout.Fixups:
		return &HostOnlyError{pc, h, needsFix}
	}
	if h == HelperGetPIDTGID {
		c.pidTGID(t)
		return nil
	}
	// dst in R1, size in R2.
	done, bytes, last, zero, end := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
	c.checkSize(pc, R2)
	c.result(errInval)
	c.test(true, insn.RSI, insn.RSI)
	c.jcc(condE, done)
	c.region(pc, R1, -1, insn.RSI, true)
	c.mov(true, insn.RDI, tmp9)
	c.comm(t, tmpA, insn.RAX)
	c.store(8, at(c.blk, tmpComm), tmpA)
	c.store(8, at(c.blk, tmpComm+8), insn.RAX)
	c.lea(true, insn.RSI, operand{insn.RSI, noReg, 1, -1}) // the last byte is always zero
	c.movImm(insn.RCX, 0)
	c.place(bytes)
	c.rr(true, aluCmp, insn.RCX, insn.RSI)
	c.jcc(condAE, zero)
	c.ri(true, aluCmp, insn.RCX, commSize-1)
	c.jcc(condAE, zero)
	c.load(1, insn.RAX, operand{c.blk, insn.RCX, 1, tmpComm})
	c.store(1, operand{insn.RDI, insn.RCX, 1, 0}, insn.RAX)
	c.ri(true, aluAdd, insn.RCX, 1)
	c.jmp(bytes)
	c.place(zero)
	c.place(last)
	c.rr(true, aluCmp, insn.RCX, insn.RSI)
	c.jcc(condA, end)
	c.storeImm(1, operand{insn.RDI, insn.RCX, 1, 0}, 0)
	c.ri(true, aluAdd, insn.RCX, 1)
	c.jmp(last)
	c.place(end)
	c.movImm(insn.RAX, 0)
	c.place(done)
	return nil
}

// pidTGID emits RAX = group and thread of the current task. R9 and R11 change.
func (c *compiler) pidTGID(t *TaskProfile) {
	bad, done := c.newLabel(), c.newLabel()
	c.task(t, tmp9, bad)
	c.taskLoad(4, insn.RAX, at(tmp9, t.TGID), bad)
	c.shiftImm(true, shiftLeft, insn.RAX, 32)
	c.taskLoad(4, tmp9, at(tmp9, t.TID), bad)
	c.rr(true, aluOr, insn.RAX, tmp9)
	c.jmp(done)
	c.place(bad)
	c.movImm(insn.RAX, 0)
	c.place(done)
}

// comm emits lo, hi = the 16 bytes of the current task's name, cut at its first
// zero byte and with zeros from there on. R9, R11 and RAX change.
func (c *compiler) comm(t *TaskProfile, lo, hi reg64) {
	bad, done, long := c.newLabel(), c.newLabel(), c.newLabel()
	c.task(t, tmp9, bad)
	c.taskLoad(8, lo, at(tmp9, t.Comm), bad)
	c.taskLoad(8, hi, at(tmp9, t.Comm+8), bad)
	c.cutString(lo)
	c.jcc(condE, long) // no zero byte in it
	c.movImm(hi, 0)
	c.jmp(done)
	c.place(long)
	c.shiftImm(true, shiftLeft, hi, 8) // the name has at most 15 bytes
	c.shiftImm(true, shiftRight, hi, 8)
	c.cutString(hi)
	c.jmp(done)
	c.place(bad)
	c.movImm(lo, 0)
	c.movImm(hi, 0)
	c.place(done)
}

// cutString clears the bytes of r behind its first zero byte, and sets ZF when
// there is none. With z = (r - 0x01..) & ^r & 0x80.. the lowest bit set in z is
// the top one of the first zero byte, and z ^ (z-1) has all bits up to it; z is
// 0, and all bits stay, when no byte is zero. R9 and R11 change.
func (c *compiler) cutString(r reg64) {
	c.movImm(tmp9, 0x0101010101010101)
	c.mov(true, tmpB, r)
	c.rr(true, aluSub, tmpB, tmp9)
	c.mov(true, tmp9, r)
	c.unary(true, unaryNot, tmp9)
	c.rr(true, aluAnd, tmpB, tmp9)
	c.movImm(tmp9, 0x8080808080808080)
	c.rr(true, aluAnd, tmpB, tmp9)
	c.lea(true, tmp9, at(tmpB, -1))
	c.rr(true, aluXor, tmp9, tmpB)
	c.rr(true, aluAnd, r, tmp9)
	c.test(true, tmpB, tmpB)
}

// task emits r = address of the current task's structure, or a jump to bad. r
// is none of RSP and RBP, whose addresses raise #SS. R11 changes.
func (c *compiler) task(t *TaskProfile, r reg64, bad label) {
	s := t.Stack
	if s == nil {
		c.load(8, r, at(c.blk, blkCurrent))
		c.taskLoad(8, r, at(r, 0), bad)
		return
	}
	c.info.ContextReads |= 1 << (offSP / 8)
	c.load(8, r, at(c.context(r), offSP))
	c.movImm(tmpB, s.Mask)
	c.rr(true, aluAnd, r, tmpB)
	c.movImm(tmpB, s.Magic)
	c.mayFault(bad)
	c.memOp(true, []byte{0x39}, tmpB, at(r, s.MagicOff), false)
	c.jcc(condNE, bad)
}

// taskLoad is a load from the guest's task structure. Without fixups the
// structure is as good as the guest's own code thinks it is.
func (c *compiler) taskLoad(size int, dst reg64, o operand, bad label) {
	if c.layout.Fixups {
		c.mayFault(bad)
	}
	c.load(size, dst, o)
}
