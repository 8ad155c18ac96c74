package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// readCoder emits reads of memory by address: the program's and the guest's.
type readCoder struct {
	*coder
	maps int // of the program
}

// readHelper emits probe_read and its variants (destination, size, address). The
// guest's page tables decide whether memory can be read: a load that faults resumes
// at its fixup.
func (c *compiler) readHelper(pc int, h Helper) error {
	if !c.layout.Fixups {
		return &HostOnlyError{pc, h, needsFix}
	}
	str := h == HelperProbeReadStr || h == HelperReadKernelStr || h == HelperReadUserStr
	done := c.NewLabel()
	c.checkSize(pc, R2)
	c.set(x86.RAX, 0)
	c.Test(8, x86.RSI, x86.RSI)
	c.Jcc(x86.CondE, done)
	if c.charges {
		c.Mov(8, tmpB, x86.RSI)
		c.Shr(8, tmpB, imm(readShift))
		c.take(pc, tmpB)
	}
	c.region(pc, R1, -1, x86.RSI, true)
	if str {
		c.Call(c.reads.copyString())
	} else {
		c.Call(c.reads.copyGuest())
	}
	c.take(pc, tmpB)
	c.Place(done)
	return nil
}

// jumpIfBad jumps to l if RDX is in the page that could not be read. RAX changes.
func (c readCoder) jumpIfBad(l x86.Label) {
	c.Mov(8, x86.RAX, x86.RDX)
	c.Shr(8, x86.RAX, imm(pageShift))
	c.Cmp(8, x86.RAX, x86.At(c.blk, tmpPage))
	c.Jcc(x86.CondE, l)
}

// noteBad emits: the unreadable range from RDX on ends at last; R11 = its cost. RAX
// and R10 change.
func (c readCoder) noteBad(last x86.Mem) {
	two := c.NewLabel()
	c.Lea(8, x86.RAX, last)
	c.Shr(8, x86.RAX, imm(pageShift))
	c.Mov(8, tmpA, x86.RDX)
	c.Shr(8, tmpA, imm(pageShift))
	c.Cmp(8, x86.RAX, tmpA)
	c.Jcc(x86.CondNE, two)
	c.Mov(8, x86.At(c.blk, tmpPage), x86.RAX)
	c.Place(two)
	c.set(tmpB, costFault)
}

// jumpIfOwn jumps to l if RDX is an address of the program's own memory.
func (c readCoder) jumpIfOwn(l x86.Label) {
	c.Mov(8, x86.RAX, x86.RDX)
	c.Shr(8, x86.RAX, imm(segShift))
	c.Sub(4, x86.RAX, imm(1))
	c.Cmp(4, x86.RAX, imm(maxSegs-1))
	c.Jcc(x86.CondB, l)
}

// clearDest emits: the RSI bytes at R9 become zero, RAX -EFAULT, return. RCX changes;
// R11 is the cost of the read.
func (c readCoder) clearDest() {
	again := c.NewLabel()
	c.Mov(8, x86.RCX, x86.RSI)
	c.Place(again)
	c.Mov(1, x86.AtIndex(tmp9, x86.RCX, 1, -1), imm(0))
	c.Sub(8, x86.RCX, imm(1))
	c.Jcc(x86.CondNE, again)
	c.result(errFault)
	c.Ret()
}

// copyGuest is a routine: RSI bytes, at least one, at address RDX go to R9; RAX
// becomes 0 or -EFAULT, R11 the cost of the failure. It changes RCX, RDI, R8 and R10.
func (c readCoder) copyGuest() x86.Label {
	return c.routine("copy guest memory", func() {
		bad, free, ownMem, words, bytes, end := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.jumpIfOwn(ownMem)
		c.jumpIfBad(free)
		if c.layout.NoGuest {
			c.Jmp(bad)
		}
		c.set(x86.RCX, 0)
		c.Lea(8, tmpA, x86.At(x86.RSI, -8))
		c.Place(words)
		c.Cmp(8, x86.RCX, tmpA)
		c.Jcc(x86.CondG, bytes)
		c.guestLoad(8, x86.RAX, x86.AtIndex(x86.RDX, x86.RCX, 1, 0), bad)
		c.Mov(8, x86.AtIndex(tmp9, x86.RCX, 1, 0), x86.RAX)
		c.Add(8, x86.RCX, imm(8))
		c.Jmp(words)
		c.Place(bytes)
		c.Cmp(8, x86.RCX, x86.RSI)
		c.Jcc(x86.CondE, end)
		c.guestLoad(1, x86.RAX, x86.AtIndex(x86.RDX, x86.RCX, 1, 0), bad)
		c.Mov(1, x86.AtIndex(tmp9, x86.RCX, 1, 0), x86.RAX)
		c.Add(8, x86.RCX, imm(1))
		c.Jmp(bytes)
		c.Place(end)
		c.set(x86.RAX, 0)
		c.set(tmpB, 0)
		c.Ret()
		c.Place(ownMem)
		c.Mov(8, x86.RDI, tmp9)
		c.Mov(8, tmpB, x86.RDX)
		c.Mov(8, tmpA, x86.RSI)
		c.Call(c.translate(false))
		c.Mov(8, x86.RCX, tmp9)
		c.Mov(8, tmp9, x86.RDI)
		c.Test(8, x86.RCX, x86.RCX)
		c.Jcc(x86.CondE, free)
		c.copyBytes(tmp9, x86.RCX, x86.RSI)
		c.set(x86.RAX, 0)
		c.set(tmpB, 0)
		c.Ret()
		clear := c.NewLabel()
		c.Place(bad)
		c.noteBad(x86.AtIndex(x86.RDX, x86.RSI, 1, -1))
		c.Jmp(clear)
		c.Place(free)
		c.set(tmpB, 0)
		c.Place(clear)
		c.clearDest()
	})
}

// copyBytes emits a copy of n bytes from src to dst, in words and then bytes.
// R10, R11 and RAX change; dst, src and n keep their values.
func (c readCoder) copyBytes(dst, src, n reg64) {
	words, bytes, end := c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.set(tmpB, 0)
	c.Lea(8, tmpA, x86.At(n, -8))
	c.Place(words)
	c.Cmp(8, tmpB, tmpA)
	c.Jcc(x86.CondG, bytes)
	c.Mov(8, x86.RAX, x86.AtIndex(src, tmpB, 1, 0))
	c.Mov(8, x86.AtIndex(dst, tmpB, 1, 0), x86.RAX)
	c.Add(8, tmpB, imm(8))
	c.Jmp(words)
	c.Place(bytes)
	c.Cmp(8, tmpB, n)
	c.Jcc(x86.CondE, end)
	c.Movzx(1, x86.RAX, x86.AtIndex(src, tmpB, 1, 0))
	c.Mov(1, x86.AtIndex(dst, tmpB, 1, 0), x86.RAX)
	c.Add(8, tmpB, imm(1))
	c.Jmp(bytes)
	c.Place(end)
}

// copyString is a routine: the string at address RDX goes to the RSI bytes, at least
// one, at R9; RAX becomes its length with the final zero, or -EFAULT, R11 the cost of
// the failure. It changes RCX, RDI and R10.
func (c readCoder) copyString() x86.Label {
	return c.routine("copy string", func() {
		bad, free, ownMem, again, ownAgain, stored, full := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.Mov(8, x86.RDI, tmp9)
		c.set(x86.RCX, 0)
		c.jumpIfOwn(ownMem)
		c.jumpIfBad(free)
		if c.layout.NoGuest {
			c.Jmp(bad)
		}
		next := func(again, stored x86.Label) {
			c.Mov(1, x86.AtIndex(x86.RDI, x86.RCX, 1, 0), x86.RAX)
			c.Add(8, x86.RCX, imm(1))
			c.Test(4, x86.RAX, x86.RAX)
			c.Jcc(x86.CondE, stored)
			c.Cmp(8, x86.RCX, x86.RSI)
			c.Jcc(x86.CondNE, again)
			c.Jmp(full)
		}
		c.Place(again)
		c.guestLoad(1, x86.RAX, x86.AtIndex(x86.RDX, x86.RCX, 1, 0), bad)
		next(again, stored)
		c.Place(ownMem)
		c.Place(ownAgain)
		c.Lea(8, tmpB, x86.AtIndex(x86.RDX, x86.RCX, 1, 0))
		c.set(tmpA, 1)
		c.Call(c.translate(false))
		c.Test(8, tmp9, tmp9)
		c.Jcc(x86.CondE, free)
		c.Movzx(1, x86.RAX, x86.At(tmp9, 0))
		next(ownAgain, stored)
		c.Place(full)
		c.Mov(1, x86.AtIndex(x86.RDI, x86.RCX, 1, -1), imm(0))
		c.Place(stored)
		c.Mov(8, x86.RAX, x86.RCX)
		c.set(tmpB, 0)
		c.Ret()
		clear := c.NewLabel()
		c.Place(bad)
		c.noteBad(x86.AtIndex(x86.RDX, x86.RCX, 1, 0))
		c.Jmp(clear)
		c.Place(free)
		c.set(tmpB, 0)
		c.Place(clear)
		c.Mov(8, tmp9, x86.RDI)
		c.clearDest()
	})
}

// translate is a routine: R9 becomes the machine address of the R10 bytes at
// the program's address R11, or 0. RAX, R10 and R11 change.
func (c readCoder) translate(write bool) x86.Label {
	name, limit := "read", segLoadLen
	if write {
		name, limit = "write", segStorLen
	}
	return c.routine(name, func() {
		bad := c.NewLabel()
		c.Mov(8, x86.RAX, tmpB)
		c.Shr(8, x86.RAX, imm(segShift))
		c.Cmp(4, x86.RAX, imm(segMaps+c.maps))
		c.Jcc(x86.CondAE, bad)
		c.Shl(4, x86.RAX, imm(6))
		c.Add(8, x86.RAX, c.blk)
		e := x86.At(x86.RAX, blkSegs)
		c.Mov(8, tmp9, tmpB)
		c.Shr(8, tmp9, imm(elemShift))
		c.And(4, tmp9, imm(elemMask))
		c.Cmp(4, tmp9, e.Plus(segCount))
		c.Jcc(x86.CondAE, bad)
		c.Imul(8, tmp9, e.Plus(segStride))
		c.And(4, tmpB, imm(offMask))
		c.Cmp(8, tmpA, imm(offMask))
		c.Jcc(x86.CondA, bad)
		c.Add(8, tmpA, tmpB)
		c.Cmp(4, tmpA, e.Plus(limit))
		c.Jcc(x86.CondA, bad)
		c.Add(8, tmp9, e.Plus(segBase))
		c.Add(8, tmp9, tmpB)
		c.Ret()
		c.Place(bad)
		c.set(tmp9, 0)
		c.Ret()
	})
}
