package bpf

import "github.com/guestprobe/guestprobe/probe/insn"

// Temporaries of helpers in the run block.
const (
	tmpValue = blkTemp + 8*iota // address of a value or of data
	tmpFlags
	tmpBusy
	tmpPos
	tmpTries
	tmpSpin
	tmpSize

	tmpComm = tmpValue // two words
)

// helper emits a call of helper h: code in line, or calls of routines behind
// the program. Arguments stay in their registers until all are checked, so that
// a fault can tell which one it was.
func (c *compiler) helper(pc int, h Helper) error {
	if i := helperByID[h]; i.Place == OnHost {
		return &HostOnlyError{pc, h, i.Why}
	}
	var err error
	switch h {
	case HelperMapLookup, HelperMapUpdate, HelperMapDelete:
		err = c.mapHelper(pc, h)
	case HelperKtimeGetNS:
		c.ktime()
	case HelperGetCPU:
		c.load(4, insn.RAX, at(c.blk, blkCPU))
	case HelperGetPIDTGID, HelperGetComm:
		err = c.taskHelper(pc, h)
	case HelperProbeRead, HelperReadKernel, HelperReadUser, HelperProbeReadStr, HelperReadKernelStr, HelperReadUserStr:
		err = c.readHelper(pc, h)
	case HelperRingOutput:
		err = c.ringOutput(pc, h, R1, R2, R3, R4)
	case HelperPerfEventOutput:
		err = c.ringOutput(pc, h, R2, R4, R5, R0)
	case HelperRingReserve:
		err = c.ringReserve(pc, h)
	case HelperRingSubmit:
		c.ringEnd(pc, recData)
	case HelperRingDiscard:
		c.ringEnd(pc, recDiscarded)
	case HelperRingQuery:
		err = c.ringQuery(pc, h)
	case HelperGetFuncIP:
		c.load(8, insn.RAX, at(c.blk, blkFuncIP))
	case HelperGetFuncArg:
		c.funcArg(pc)
	case HelperGetFuncRet:
		c.funcRet(pc)
	case HelperGetFuncArgCnt:
		c.movImm(insn.RAX, uint64(len(funcArgs)))
	default:
		panic("BUG: helper has no code")
	}
	if err != nil {
		return err
	}
	for r := R1; r <= R5; r++ {
		c.movImm(c.regs[r], 0)
	}
	return nil
}

// mapOf returns the map that an argument certainly is.
func (c *compiler) mapOf(pc int, h Helper, r Reg, kinds MapKinds) (*Map, int, error) {
	k := c.known[pc][r]
	if k.kind != aMap {
		return nil, 0, &HostOnlyError{pc, h, "its map is not the same on every path, or computed"}
	}
	m := c.p.maps[k.off]
	if !kinds.has(m.spec.Kind) {
		return nil, 0, &HostOnlyError{pc, h, "its map is of the wrong kind, which the interpreter reports when it comes there"}
	}
	return m, int(k.off), nil
}

// region emits the check that the program may read, or write, n bytes at
// address r, with n a constant or, when it is negative, in register size. The
// machine address comes back in R9. R10, R11 and RAX change.
func (c *compiler) region(pc int, r Reg, n int, size reg64, write bool) {
	if k := c.known[pc][r]; k.kind == inFrame && n >= 0 {
		if m, ok := c.inBounds(pc, k, 0, n, write); ok {
			c.lea(true, tmp9, m)
			return
		}
	}
	c.writes(c.regs[r])
	c.mayRead(c.known[pc][r])
	c.mov(true, tmpB, c.regs[r])
	if n >= 0 {
		c.movImm(tmpA, uint64(n))
	} else {
		c.mov(true, tmpA, size)
	}
	c.callTo(c.translate(write))
	c.test(true, tmp9, tmp9)
	c.jcc(condE, c.fault(FaultMemArg, pc, c.regs[r], 0))
}

// translate is a routine: R9 becomes the machine address of the R10 bytes at
// the program's address R11, or 0. RAX, R10 and R11 change.
func (c *compiler) translate(write bool) label {
	name, limit := "read", int32(segLoadLen)
	if write {
		name, limit = "write", segStorLen
	}
	return c.routine(name, func() {
		bad := c.newLabel()
		c.mov(true, insn.RAX, tmpB)
		c.shiftImm(true, shiftRight, insn.RAX, segShift)
		c.ri(false, aluCmp, insn.RAX, int32(segMaps+len(c.p.maps)))
		c.jcc(condAE, bad)
		c.shiftImm(false, shiftLeft, insn.RAX, 6)
		c.rr(true, aluAdd, insn.RAX, c.blk)
		e := at(insn.RAX, blkSegs)
		c.mov(true, tmp9, tmpB)
		c.shiftImm(true, shiftRight, tmp9, elemShift)
		c.ri(false, aluAnd, tmp9, elemMask)
		c.rm(false, aluCmp, tmp9, e.plus(segCount))
		c.jcc(condAE, bad)
		c.imulMem(tmp9, e.plus(segStride))
		c.ri(false, aluAnd, tmpB, offMask)
		c.ri(true, aluCmp, tmpA, offMask)
		c.jcc(condA, bad)
		c.rr(true, aluAdd, tmpA, tmpB)
		c.rm(false, aluCmp, tmpA, e.plus(limit))
		c.jcc(condA, bad)
		c.rm(true, aluAdd, tmp9, e.plus(segBase))
		c.rr(true, aluAdd, tmp9, tmpB)
		c.ret()
		c.place(bad)
		c.movImm(tmp9, 0)
		c.ret()
	})
}

// result sets R0 to an errno.
func (c *compiler) result(e int) { c.movImm(insn.RAX, errno(e)) }

// ktime emits ktime_get_ns.
func (c *compiler) ktime() {
	c.emit(0x0f, 0x31) // rdtsc
	c.writes(insn.RAX)
	c.shiftImm(true, shiftLeft, insn.RDX, 32)
	c.rr(true, aluOr, insn.RAX, insn.RDX)
	c.rm(true, aluSub, insn.RAX, at(c.blk, blkTSC))
	c.memOp(true, []byte{0xf7}, unaryMul, at(c.blk, blkMult), false)
	c.emit(0x48, 0x0f, 0xac, 0xd0, 32) // shrd $32, %rdx, %rax
	c.rm(true, aluAdd, insn.RAX, at(c.blk, blkTime))
}

// checkSize emits the fault for sizes beyond maxRead.
func (c *compiler) checkSize(pc int, r Reg) {
	c.cmpImm(true, c.regs[r], maxRead)
	c.jcc(condA, c.fault(FaultSize, pc, c.regs[r], 0))
}

// funcArg emits get_func_arg (context, n, destination).
func (c *compiler) funcArg(pc int) {
	c.region(pc, R3, 8, 0, true)
	done, found := c.newLabel(), c.newLabel()
	ctx := c.context(tmpB)
	for i, off := range funcArgs {
		c.info.ContextReads |= 1 << (off / 8)
		next := c.newLabel()
		c.cmpImm(true, insn.RSI, int32(i))
		c.jcc(condNE, next)
		c.load(8, insn.RAX, at(ctx, int32(off)))
		c.jmp(found)
		c.place(next)
	}
	c.result(errInval)
	c.jmp(done)
	c.place(found)
	c.store(8, at(tmp9, 0), insn.RAX)
	c.movImm(insn.RAX, 0)
	c.place(done)
}

// funcRet emits get_func_ret (context, destination).
func (c *compiler) funcRet(pc int) {
	c.region(pc, R2, 8, 0, true)
	if c.p.kind != Kretprobe {
		c.result(errNotSup)
		return
	}
	c.info.ContextReads |= 1 << (offAX / 8)
	c.load(8, insn.RAX, at(c.context(tmpB), offAX))
	c.store(8, at(tmp9, 0), insn.RAX)
	c.movImm(insn.RAX, 0)
}
