package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

// Temporaries of helpers in the run block.
const (
	tmpValue = blkTemp + 8*iota // address of a value or of data
	tmpFlags
	tmpBusy
	tmpPos
	tmpTries
	tmpSpin
	tmpSize
	tmpPage // page of guest memory that could not be read in this run

	tmpComm = tmpValue // two words
)

// helper emits a call of helper h: inline code, or calls of routines after the
// program. Arguments stay in their registers until all are checked, so that a fault
// can name the argument.
func (c *compiler) helper(pc int, h Helper) error {
	if i := helperByID[h]; i.Place == OnHost {
		return &HostOnlyError{pc, h, i.Why}
	}
	if o := &c.p.ops[pc]; o.cost != 0 {
		c.charge(pc, o)
	}
	err := c.checkTask(pc, h)
	switch {
	case err != nil:
	case c.inline[pc]:
		c.inlineCall(pc, h)
	default:
		err = c.routineCall(pc, h)
	}
	c.zeroArgs(pc)
	return err
}

// zeroArgs emits R1 to R5 = 0, as they are after a call, if needed.
func (c *compiler) zeroArgs(pc int) {
	for r := R1; r <= R5; r++ {
		if c.after[pc].regs.has(uint8(r)) {
			c.set(c.regs[r], 0)
		}
	}
}

// returnZero emits R0 = 0, if needed.
func (c *compiler) returnZero(pc int) {
	if c.after[pc].regs.has(uint8(R0)) {
		c.set(x86.RAX, 0)
	}
}

// routineCall emits a call that may change all registers that hold the program's
// arguments.
func (c *compiler) routineCall(pc int, h Helper) error {
	switch h {
	case HelperMapLookup, HelperLookupPerCPU, HelperMapUpdate, HelperMapDelete:
		return c.mapHelper(pc, h)
	case HelperGetComm:
		c.commHelper(pc)
	case HelperProbeRead, HelperReadKernel, HelperReadUser, HelperCopyFromUser, HelperProbeReadStr, HelperReadKernelStr, HelperReadUserStr:
		return c.readHelper(pc, h)
	case HelperRingOutput:
		return c.ringOutput(pc, h, R2, R3, R4)
	case HelperPerfEventOutput:
		return c.ringOutput(pc, h, R4, R5, R0)
	case HelperRingReserve:
		return c.ringReserve(pc, h)
	case HelperRingSubmit:
		c.ringEnd(pc, recData)
	case HelperRingDiscard:
		c.ringEnd(pc, recDiscarded)
	case HelperRingQuery:
		return c.ringQuery(pc, h)
	case HelperGetStack, HelperGetStackID:
		return c.stackHelper(pc, h)
	case HelperGetFuncArg:
		c.funcArg(pc)
	case HelperGetFuncRet:
		c.funcRet(pc)
	default:
		panic("BUG: helper has no code")
	}
	return nil
}

// mapOf returns the map of a call, which must be known.
func (c *compiler) mapOf(pc int, h Helper) (*Map, int, error) {
	i := c.facts[pc].call.m
	if i < 0 {
		return nil, 0, &HostOnlyError{pc, h, "its map is not the same on every path, computed, or of the wrong kind"}
	}
	return c.p.maps[i], i, nil
}

// region emits the check that the program may read, or write, n bytes at address r; n
// is a constant, or negative if register size has the number. The machine address is
// returned in R9. R10, R11 and RAX change.
func (c *compiler) region(pc int, r Reg, n int, size reg64, write bool) {
	a := c.facts[pc].call.args[r]
	if a.class == direct {
		if a.size == 0 {
			c.noteContext(a.base, 0, int64(c.p.contextSize()))
		}
		c.Lea(8, tmp9, c.memUnchecked(pc, a))
		return
	}
	c.noteMayRead(a.base)
	c.Mov(8, tmpB, c.regs[r])
	if n >= 0 {
		c.set(tmpA, uint64(n))
	} else {
		c.Mov(8, tmpA, size)
	}
	c.Call(c.reads.translate(write))
	c.Test(8, tmp9, tmp9)
	c.Jcc(x86.CondE, c.fault(FaultMemArg, pc, c.regs[r], 0))
}

// ktime emits RAX = the time by the clock of the block at blk. RDX changes.
func ktime(a *x86.Asm, blk reg64) {
	a.Rdtsc()
	a.Shl(8, x86.RDX, imm(32))
	a.Or(8, x86.RAX, x86.RDX)
	a.Sub(8, x86.RAX, x86.At(blk, blkTSC))
	a.Mul(8, x86.At(blk, blkMult))
	a.Shrd(8, x86.RAX, x86.RDX, 32)
	a.Add(8, x86.RAX, x86.At(blk, blkTime))
}

// checkSize emits the fault for sizes beyond maxRead.
func (c *compiler) checkSize(pc int, r Reg) {
	c.Cmp(8, c.regs[r], imm(maxRead))
	c.Jcc(x86.CondA, c.fault(FaultSize, pc, c.regs[r], 0))
}

// funcArg emits get_func_arg (context, n, destination).
func (c *compiler) funcArg(pc int) {
	c.region(pc, R3, 8, 0, true)
	done, found := c.NewLabel(), c.NewLabel()
	ctx := c.context(tmpB)
	for i, off := range x86.CallArgs {
		c.info.ContextReads |= 1 << (off / 8)
		next := c.NewLabel()
		c.Cmp(8, x86.RSI, imm(i))
		c.Jcc(x86.CondNE, next)
		c.Mov(8, x86.RAX, x86.At(ctx, int(off)))
		c.Jmp(found)
		c.Place(next)
	}
	c.result(errInval)
	c.Jmp(done)
	c.Place(found)
	c.Mov(8, x86.At(tmp9, 0), x86.RAX)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// funcRet emits get_func_ret (context, destination).
func (c *compiler) funcRet(pc int) {
	c.region(pc, R2, 8, 0, true)
	if !c.p.kind.AtReturn() {
		c.result(errNotSup)
		return
	}
	c.info.ContextReads |= 1 << (x86.PtAX / 8)
	c.Mov(8, x86.RAX, x86.At(c.context(tmpB), x86.PtAX))
	c.Mov(8, x86.At(tmp9, 0), x86.RAX)
	c.set(x86.RAX, 0)
}
