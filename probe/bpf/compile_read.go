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
	done := c.newLabel()
	c.checkSize(pc, R2)
	c.movImm(insn.RAX, 0)
	c.test(true, insn.RSI, insn.RSI)
	c.jcc(condE, done)
	c.region(pc, R1, -1, insn.RSI, true)
	if str {
		c.callTo(c.copyString())
	} else {
		c.callTo(c.copyGuest())
	}
	c.place(done)
	return nil
}

// guestLoad emits a load from guest memory that resumes at bad when it faults.
func (c *compiler) guestLoad(size int, dst reg64, o operand, bad label) {
	c.mayFault(bad)
	c.load(size, dst, o)
}

// mayFault says that the next instruction resumes at bad when it faults.
func (c *compiler) mayFault(bad label) {
	c.fixups = append(c.fixups, struct {
		at     int
		resume label
	}{len(c.b), bad})
}

// ifOwn jumps to l when RDX is an address of the program's own memory.
func (c *compiler) ifOwn(l label) {
	c.mov(true, insn.RAX, insn.RDX)
	c.shiftImm(true, shiftRight, insn.RAX, segShift)
	c.ri(false, aluSub, insn.RAX, 1)
	c.ri(false, aluCmp, insn.RAX, maxSegs-1)
	c.jcc(condB, l)
}

// clearDest emits: the RSI bytes at R9 become zero, RAX -EFAULT, return. RCX
// changes.
func (c *compiler) clearDest() {
	again := c.newLabel()
	c.mov(true, insn.RCX, insn.RSI)
	c.place(again)
	c.storeImm(1, operand{tmp9, insn.RCX, 1, -1}, 0)
	c.ri(true, aluSub, insn.RCX, 1)
	c.jcc(condNE, again)
	c.result(errFault)
	c.ret()
}

// copyGuest is a routine: RSI bytes, at least one, at address RDX go to R9; RAX
// becomes 0 or -EFAULT. It changes RCX, RDI, R8, R10 and R11.
func (c *compiler) copyGuest() label {
	return c.routine("copy guest memory", func() {
		bad, ownMem, words, bytes, end := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
		c.ifOwn(ownMem)
		if c.layout.NoGuest {
			c.jmp(bad)
		}
		c.movImm(insn.RCX, 0)
		c.lea(true, tmpA, at(insn.RSI, -8))
		c.place(words)
		c.rr(true, aluCmp, insn.RCX, tmpA)
		c.jcc(condG, bytes)
		c.guestLoad(8, insn.RAX, operand{insn.RDX, insn.RCX, 1, 0}, bad)
		c.store(8, operand{tmp9, insn.RCX, 1, 0}, insn.RAX)
		c.ri(true, aluAdd, insn.RCX, 8)
		c.jmp(words)
		c.place(bytes)
		c.rr(true, aluCmp, insn.RCX, insn.RSI)
		c.jcc(condE, end)
		c.guestLoad(1, insn.RAX, operand{insn.RDX, insn.RCX, 1, 0}, bad)
		c.store(1, operand{tmp9, insn.RCX, 1, 0}, insn.RAX)
		c.ri(true, aluAdd, insn.RCX, 1)
		c.jmp(bytes)
		c.place(end)
		c.movImm(insn.RAX, 0)
		c.ret()
		c.place(ownMem)
		c.mov(true, insn.RDI, tmp9)
		c.mov(true, tmpB, insn.RDX)
		c.mov(true, tmpA, insn.RSI)
		c.callTo(c.translate(false))
		c.mov(true, insn.RCX, tmp9)
		c.mov(true, tmp9, insn.RDI)
		c.test(true, insn.RCX, insn.RCX)
		c.jcc(condE, bad)
		c.copyBytes(tmp9, insn.RCX, insn.RSI)
		c.movImm(insn.RAX, 0)
		c.ret()
		c.place(bad)
		c.clearDest()
	})
}

// copyBytes emits a copy of n bytes from src to dst, in words and then bytes.
// R10, R11 and RAX change; dst, src and n keep their values.
func (c *compiler) copyBytes(dst, src, n reg64) {
	words, bytes, end := c.newLabel(), c.newLabel(), c.newLabel()
	c.movImm(tmpB, 0)
	c.lea(true, tmpA, at(n, -8))
	c.place(words)
	c.rr(true, aluCmp, tmpB, tmpA)
	c.jcc(condG, bytes)
	c.load(8, insn.RAX, operand{src, tmpB, 1, 0})
	c.store(8, operand{dst, tmpB, 1, 0}, insn.RAX)
	c.ri(true, aluAdd, tmpB, 8)
	c.jmp(words)
	c.place(bytes)
	c.rr(true, aluCmp, tmpB, n)
	c.jcc(condE, end)
	c.load(1, insn.RAX, operand{src, tmpB, 1, 0})
	c.store(1, operand{dst, tmpB, 1, 0}, insn.RAX)
	c.ri(true, aluAdd, tmpB, 1)
	c.jmp(bytes)
	c.place(end)
}

// copyString is a routine: the string at address RDX goes to the RSI bytes, at
// least one, at R9; RAX becomes its length with the final zero, or -EFAULT. It
// changes RCX, RDI, R10 and R11.
func (c *compiler) copyString() label {
	return c.routine("copy string", func() {
		bad, ownMem, again, ownAgain, stored, full := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
		c.mov(true, insn.RDI, tmp9)
		c.movImm(insn.RCX, 0)
		c.ifOwn(ownMem)
		if c.layout.NoGuest {
			c.jmp(bad)
		}
		next := func(again, stored label) {
			c.store(1, operand{insn.RDI, insn.RCX, 1, 0}, insn.RAX)
			c.ri(true, aluAdd, insn.RCX, 1)
			c.test(false, insn.RAX, insn.RAX)
			c.jcc(condE, stored)
			c.rr(true, aluCmp, insn.RCX, insn.RSI)
			c.jcc(condNE, again)
			c.jmp(full)
		}
		c.place(again)
		c.guestLoad(1, insn.RAX, operand{insn.RDX, insn.RCX, 1, 0}, bad)
		next(again, stored)
		c.place(ownMem)
		c.place(ownAgain)
		c.lea(true, tmpB, operand{insn.RDX, insn.RCX, 1, 0})
		c.movImm(tmpA, 1)
		c.callTo(c.translate(false))
		c.test(true, tmp9, tmp9)
		c.jcc(condE, bad)
		c.load(1, insn.RAX, at(tmp9, 0))
		next(ownAgain, stored)
		c.place(full)
		c.storeImm(1, operand{insn.RDI, insn.RCX, 1, -1}, 0)
		c.place(stored)
		c.mov(true, insn.RAX, insn.RCX)
		c.ret()
		c.place(bad)
		c.mov(true, tmp9, insn.RDI)
		c.clearDest()
	})
}
