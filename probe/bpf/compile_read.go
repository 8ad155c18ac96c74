package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// readHelper emits probe_read and its variants (destination, size, address).
// The guest's page tables decide what can be read: a load that faults is
// resumed at its fixup.
func (c *compiler) readHelper(pc int, h Helper) error {
	if !c.layout.Fixups {
		return &HostOnlyError{pc, h, needsFix}
	}
	str := h == HelperProbeReadStr || h == HelperReadKernelStr || h == HelperReadUserStr
	done := c.NewLabel()
	c.checkSize(pc, R2)
	c.set(insn.RAX, 0)
	c.Test(8, insn.RSI, insn.RSI)
	c.Jcc(insn.CondE, done)
	if c.charges {
		c.Mov(8, tmpB, insn.RSI)
		c.Shr(8, tmpB, imm(readShift))
		c.take(pc, tmpB)
	}
	c.region(pc, R1, -1, insn.RSI, true)
	if str {
		c.Call(c.copyString())
	} else {
		c.Call(c.copyGuest())
	}
	c.take(pc, tmpB)
	c.Place(done)
	return nil
}

// ifBad jumps to l when RDX is in the page that could not be read. RAX changes.
func (c *compiler) ifBad(l insn.Label) {
	c.Mov(8, insn.RAX, insn.RDX)
	c.Shr(8, insn.RAX, imm(pageShift))
	c.Cmp(8, insn.RAX, insn.At(c.blk, tmpPage))
	c.Jcc(insn.CondE, l)
}

// noteBad emits: what could not be read from RDX on ends at last, R11 = what that
// costs. RAX and R10 change.
func (c *compiler) noteBad(last insn.Mem) {
	two := c.NewLabel()
	c.Lea(8, insn.RAX, last)
	c.Shr(8, insn.RAX, imm(pageShift))
	c.Mov(8, tmpA, insn.RDX)
	c.Shr(8, tmpA, imm(pageShift))
	c.Cmp(8, insn.RAX, tmpA)
	c.Jcc(insn.CondNE, two)
	c.Mov(8, insn.At(c.blk, tmpPage), insn.RAX)
	c.Place(two)
	c.set(tmpB, costFault)
}

// guestLoad emits a load from guest memory that resumes at bad when it faults.
func (c *compiler) guestLoad(size int, dst reg64, o insn.Mem, bad insn.Label) {
	c.mayFault(bad)
	c.Movzx(size, dst, o)
}

// mayFault says that the next instruction resumes at bad when it faults.
func (c *compiler) mayFault(bad insn.Label) {
	c.fixups = append(c.fixups, struct {
		at     int
		resume insn.Label
	}{c.Len(), bad})
}

// ifOwn jumps to l when RDX is an address of the program's own memory.
func (c *compiler) ifOwn(l insn.Label) {
	c.Mov(8, insn.RAX, insn.RDX)
	c.Shr(8, insn.RAX, imm(segShift))
	c.Sub(4, insn.RAX, imm(1))
	c.Cmp(4, insn.RAX, imm(maxSegs-1))
	c.Jcc(insn.CondB, l)
}

// clearDest emits: the RSI bytes at R9 become zero, RAX -EFAULT, return. RCX
// changes, and R11 says what a read has cost.
func (c *compiler) clearDest() {
	again := c.NewLabel()
	c.Mov(8, insn.RCX, insn.RSI)
	c.Place(again)
	c.Mov(1, insn.AtIndex(tmp9, insn.RCX, 1, -1), imm(0))
	c.Sub(8, insn.RCX, imm(1))
	c.Jcc(insn.CondNE, again)
	c.result(errFault)
	c.Ret()
}

// copyGuest is a routine: RSI bytes, at least one, at address RDX go to R9; RAX
// becomes 0 or -EFAULT, R11 what it costs that it failed. It changes RCX, RDI, R8 and R10.
func (c *compiler) copyGuest() insn.Label {
	return c.routine("copy guest memory", func() {
		bad, free, ownMem, words, bytes, end := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.ifOwn(ownMem)
		c.ifBad(free)
		if c.layout.NoGuest {
			c.Jmp(bad)
		}
		c.set(insn.RCX, 0)
		c.Lea(8, tmpA, insn.At(insn.RSI, -8))
		c.Place(words)
		c.Cmp(8, insn.RCX, tmpA)
		c.Jcc(insn.CondG, bytes)
		c.guestLoad(8, insn.RAX, insn.AtIndex(insn.RDX, insn.RCX, 1, 0), bad)
		c.Mov(8, insn.AtIndex(tmp9, insn.RCX, 1, 0), insn.RAX)
		c.Add(8, insn.RCX, imm(8))
		c.Jmp(words)
		c.Place(bytes)
		c.Cmp(8, insn.RCX, insn.RSI)
		c.Jcc(insn.CondE, end)
		c.guestLoad(1, insn.RAX, insn.AtIndex(insn.RDX, insn.RCX, 1, 0), bad)
		c.Mov(1, insn.AtIndex(tmp9, insn.RCX, 1, 0), insn.RAX)
		c.Add(8, insn.RCX, imm(1))
		c.Jmp(bytes)
		c.Place(end)
		c.set(insn.RAX, 0)
		c.set(tmpB, 0)
		c.Ret()
		c.Place(ownMem)
		c.Mov(8, insn.RDI, tmp9)
		c.Mov(8, tmpB, insn.RDX)
		c.Mov(8, tmpA, insn.RSI)
		c.Call(c.translate(false))
		c.Mov(8, insn.RCX, tmp9)
		c.Mov(8, tmp9, insn.RDI)
		c.Test(8, insn.RCX, insn.RCX)
		c.Jcc(insn.CondE, free)
		c.copyBytes(tmp9, insn.RCX, insn.RSI)
		c.set(insn.RAX, 0)
		c.set(tmpB, 0)
		c.Ret()
		clear := c.NewLabel()
		c.Place(bad)
		c.noteBad(insn.AtIndex(insn.RDX, insn.RSI, 1, -1))
		c.Jmp(clear)
		c.Place(free)
		c.set(tmpB, 0)
		c.Place(clear)
		c.clearDest()
	})
}

// copyBytes emits a copy of n bytes from src to dst, in words and then bytes.
// R10, R11 and RAX change; dst, src and n keep their values.
func (c *compiler) copyBytes(dst, src, n reg64) {
	words, bytes, end := c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.set(tmpB, 0)
	c.Lea(8, tmpA, insn.At(n, -8))
	c.Place(words)
	c.Cmp(8, tmpB, tmpA)
	c.Jcc(insn.CondG, bytes)
	c.Mov(8, insn.RAX, insn.AtIndex(src, tmpB, 1, 0))
	c.Mov(8, insn.AtIndex(dst, tmpB, 1, 0), insn.RAX)
	c.Add(8, tmpB, imm(8))
	c.Jmp(words)
	c.Place(bytes)
	c.Cmp(8, tmpB, n)
	c.Jcc(insn.CondE, end)
	c.Movzx(1, insn.RAX, insn.AtIndex(src, tmpB, 1, 0))
	c.Mov(1, insn.AtIndex(dst, tmpB, 1, 0), insn.RAX)
	c.Add(8, tmpB, imm(1))
	c.Jmp(bytes)
	c.Place(end)
}

// copyString is a routine: the string at address RDX goes to the RSI bytes, at
// least one, at R9; RAX becomes its length with the final zero, or -EFAULT, R11
// what it costs that it failed. It changes RCX, RDI and R10.
func (c *compiler) copyString() insn.Label {
	return c.routine("copy string", func() {
		bad, free, ownMem, again, ownAgain, stored, full := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.Mov(8, insn.RDI, tmp9)
		c.set(insn.RCX, 0)
		c.ifOwn(ownMem)
		c.ifBad(free)
		if c.layout.NoGuest {
			c.Jmp(bad)
		}
		next := func(again, stored insn.Label) {
			c.Mov(1, insn.AtIndex(insn.RDI, insn.RCX, 1, 0), insn.RAX)
			c.Add(8, insn.RCX, imm(1))
			c.Test(4, insn.RAX, insn.RAX)
			c.Jcc(insn.CondE, stored)
			c.Cmp(8, insn.RCX, insn.RSI)
			c.Jcc(insn.CondNE, again)
			c.Jmp(full)
		}
		c.Place(again)
		c.guestLoad(1, insn.RAX, insn.AtIndex(insn.RDX, insn.RCX, 1, 0), bad)
		next(again, stored)
		c.Place(ownMem)
		c.Place(ownAgain)
		c.Lea(8, tmpB, insn.AtIndex(insn.RDX, insn.RCX, 1, 0))
		c.set(tmpA, 1)
		c.Call(c.translate(false))
		c.Test(8, tmp9, tmp9)
		c.Jcc(insn.CondE, free)
		c.Movzx(1, insn.RAX, insn.At(tmp9, 0))
		next(ownAgain, stored)
		c.Place(full)
		c.Mov(1, insn.AtIndex(insn.RDI, insn.RCX, 1, -1), imm(0))
		c.Place(stored)
		c.Mov(8, insn.RAX, insn.RCX)
		c.set(tmpB, 0)
		c.Ret()
		clear := c.NewLabel()
		c.Place(bad)
		c.noteBad(insn.AtIndex(insn.RDX, insn.RCX, 1, 0))
		c.Jmp(clear)
		c.Place(free)
		c.set(tmpB, 0)
		c.Place(clear)
		c.Mov(8, tmp9, insn.RDI)
		c.clearDest()
	})
}
