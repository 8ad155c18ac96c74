package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// commSize is the length of a task's name in the guest, zeros included.
const commSize = 16

// taskCoder emits reads of the guest's current task.
type taskCoder struct{ *coder }

// checkTask returns an error for a call that needs the current task, if that is not
// known.
func (c *compiler) checkTask(pc int, h Helper) error {
	t := c.layout.Task
	if h == HelperGetUIDGID || h == HelperGetCgroupID {
		if t == nil || t.Stack != nil || !c.layout.Fixups || !t.Knows(h) {
			return &HostOnlyError{pc, h, needsTypes}
		}
		return nil
	}
	switch {
	case h != HelperGetPIDTGID && h != HelperGetComm && h != HelperGetTask && h != HelperGetTaskBTF:
	case t == nil || t.Stack != nil && !c.p.kind.hasRegs():
		return &HostOnlyError{pc, h, needsTask}
	case t.Stack != nil && !c.layout.Fixups:
		return &HostOnlyError{pc, h, needsFix}
	}
	return nil
}

// commHelper emits get_current_comm (destination, size) from the guest's data on its
// task. Without such data the name is empty.
func (c *compiler) commHelper(pc int) {
	done, bytes, last, zero, end := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.checkSize(pc, R2)
	c.result(errInval)
	c.Test(8, x86.RSI, x86.RSI)
	c.Jcc(x86.CondE, done)
	c.region(pc, R1, -1, x86.RSI, true)
	c.Mov(8, x86.RDI, tmp9)
	c.tasks.comm(c.layout.Task, tmpA, x86.RAX)
	c.Mov(8, x86.At(c.blk, tmpComm), tmpA)
	c.Mov(8, x86.At(c.blk, tmpComm+8), x86.RAX)
	c.Lea(8, x86.RSI, x86.AtIndex(x86.RSI, x86.NoReg, 1, -1)) // the last byte is always zero
	c.set(x86.RCX, 0)
	c.Place(bytes)
	c.Cmp(8, x86.RCX, x86.RSI)
	c.Jcc(x86.CondAE, zero)
	c.Cmp(8, x86.RCX, imm(commSize-1))
	c.Jcc(x86.CondAE, zero)
	c.Movzx(1, x86.RAX, x86.AtIndex(c.blk, x86.RCX, 1, tmpComm))
	c.Mov(1, x86.AtIndex(x86.RDI, x86.RCX, 1, 0), x86.RAX)
	c.Add(8, x86.RCX, imm(1))
	c.Jmp(bytes)
	c.Place(zero)
	c.Place(last)
	c.Cmp(8, x86.RCX, x86.RSI)
	c.Jcc(x86.CondA, end)
	c.Mov(1, x86.AtIndex(x86.RDI, x86.RCX, 1, 0), imm(0))
	c.Add(8, x86.RCX, imm(1))
	c.Jmp(last)
	c.Place(end)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// taskAddress emits RAX = address of the current task's structure. R9 and R11 change.
func (c taskCoder) taskAddress(t *TaskProfile) {
	bad, done := c.NewLabel(), c.NewLabel()
	c.task(t, tmp9, bad)
	c.Mov(8, x86.RAX, tmp9)
	c.Jmp(done)
	c.Place(bad)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// pidTGID emits RAX = group and thread of the current task. R9 and R11 change.
func (c taskCoder) pidTGID(t *TaskProfile) {
	bad, done := c.NewLabel(), c.NewLabel()
	c.task(t, tmp9, bad)
	c.taskLoad(4, x86.RAX, x86.At(tmp9, int(t.TGID)), bad)
	c.Shl(8, x86.RAX, imm(32))
	c.taskLoad(4, tmp9, x86.At(tmp9, int(t.TID)), bad)
	c.Or(8, x86.RAX, tmp9)
	c.Jmp(done)
	c.Place(bad)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// number returns where the result of a helper is, or nil.
func (t *TaskProfile) number(h Helper) *TaskNumber {
	if h == HelperGetUIDGID {
		return t.Owner
	}
	return t.Cgroup
}

// number emits RAX = a number of the current task. R9 and R11 change.
func (c taskCoder) number(t *TaskProfile, n *TaskNumber) {
	bad, done := c.NewLabel(), c.NewLabel()
	c.task(t, tmp9, bad)
	for _, off := range n.Follow {
		c.guestLoad(8, tmp9, x86.At(tmp9, int(off)), bad)
	}
	if n.Split {
		c.guestLoad(4, x86.RAX, x86.At(tmp9, int(n.High)), bad)
		c.Shl(8, x86.RAX, imm(32))
		c.guestLoad(4, tmp9, x86.At(tmp9, int(n.Off)), bad)
		c.Or(8, x86.RAX, tmp9)
	} else {
		c.guestLoad(8, x86.RAX, x86.At(tmp9, int(n.Off)), bad)
	}
	c.Jmp(done)
	c.Place(bad)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// comm emits lo, hi = the 16 bytes of the current task's name, cut at its first
// zero byte and with zeros from there on. R9, R11 and RAX change.
func (c taskCoder) comm(t *TaskProfile, lo, hi reg64) {
	bad, done, long := c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.task(t, tmp9, bad)
	c.taskLoad(8, lo, x86.At(tmp9, int(t.Comm)), bad)
	c.taskLoad(8, hi, x86.At(tmp9, int(t.Comm)+8), bad)
	c.cutString(lo)
	c.Jcc(x86.CondE, long) // no zero byte in it
	c.set(hi, 0)
	c.Jmp(done)
	c.Place(long)
	c.Shl(8, hi, imm(8)) // the name has at most 15 bytes
	c.Shr(8, hi, imm(8))
	c.cutString(hi)
	c.Jmp(done)
	c.Place(bad)
	c.set(lo, 0)
	c.set(hi, 0)
	c.Place(done)
}

// cutString clears the bytes of r after its first zero byte, and sets ZF if r has
// none. With z = (r - 0x01..) & ^r & 0x80.. the lowest bit set in z is the top one of
// the first zero byte, and z ^ (z-1) has all bits up to it; if no byte is zero, z is
// 0 and all bits stay. R9 and R11 change.
func (c taskCoder) cutString(r reg64) {
	c.set(tmp9, 0x0101010101010101)
	c.Mov(8, tmpB, r)
	c.Sub(8, tmpB, tmp9)
	c.Mov(8, tmp9, r)
	c.Not(8, tmp9)
	c.And(8, tmpB, tmp9)
	c.set(tmp9, 0x8080808080808080)
	c.And(8, tmpB, tmp9)
	c.Lea(8, tmp9, x86.At(tmpB, -1))
	c.Xor(8, tmp9, tmpB)
	c.And(8, r, tmp9)
	c.Test(8, tmpB, tmpB)
}

// task emits r = address of the current task's structure, or a jump to bad. r must
// not be RSP or RBP, whose addresses raise #SS. R11 changes.
func (c taskCoder) task(t *TaskProfile, r reg64, bad x86.Label) {
	s := t.Stack
	if s == nil {
		c.Mov(8, r, x86.AtGS(int(t.Current)))
		return
	}
	c.info.ContextReads |= 1 << (x86.PtSP / 8)
	c.Mov(8, r, x86.At(c.context(r), x86.PtSP))
	c.set(tmpB, s.Mask)
	c.And(8, r, tmpB)
	c.set(tmpB, s.Magic)
	c.addFixup(bad)
	c.Cmp(8, x86.At(r, int(s.MagicOff)), tmpB)
	c.Jcc(x86.CondNE, bad)
}

// taskLoad is a load from the guest's task structure, which is always mapped if the
// kernel itself points to it.
func (c taskCoder) taskLoad(size int, dst reg64, o x86.Mem, bad x86.Label) {
	if c.layout.Task.Stack != nil {
		c.addFixup(bad)
	}
	c.Movzx(size, dst, o)
}
