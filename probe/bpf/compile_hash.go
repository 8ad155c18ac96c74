package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// count emits an atomic change of the number of elements. RDI changes.
func (c *compiler) countElems(m *Map, by int32) {
	c.movImm(insn.RDI, m.area.Addr)
	c.lockAddImm(at(insn.RDI, hdrCount), by)
}

// flip emits: the state word of slot R10 becomes R9 with its state changed from
// one to the other. RDX and RDI change.
func (c *compiler) flip(m *Map, from, to int32) {
	c.mov(true, insn.RDX, tmp9)
	if from != to {
		c.ri(true, aluXor, insn.RDX, from^to)
	}
	c.words(m, insn.RDI)
	c.store(8, operand{insn.RDI, tmpA, 8, 0}, insn.RDX)
}

// swap emits the compare and swap of the state word of slot R10 from RAX to
// RDX. RDI changes; the zero flag tells.
func (c *compiler) swap(m *Map) {
	c.words(m, insn.RDI)
	c.locked(true, lockCmpxchg, operand{insn.RDI, tmpA, 8, 0}, insn.RDX)
}

// hashUpdateRoutine is a routine for one map: it sets the value of the key at
// RSI; value and flags are in the temporaries. EAX becomes the result. It is
// Map.hashUpdate, step by step.
func (c *compiler) hashUpdateRoutine(m *Map, i int) label {
	return c.routine(fmt.Sprintf("update %d", i), func() {
		try, absent, backoff := c.newLabel(), c.newLabel(), c.newLabel()
		returns := c.errnoReturns()
		c.mi(true, aluCmp, at(c.blk, tmpFlags), UpdateExist)
		c.jcc(condA, returns(errInval))
		c.callTo(c.hashRoutine(m))
		c.storeImm(4, at(c.blk, tmpTries), hashTries)
		c.place(try)
		c.mi(false, aluSub, at(c.blk, tmpTries), 1)
		c.jcc(condS, returns(errBusy))
		c.callTo(c.scanRoutine(m, i))
		c.cmpImm(false, insn.RAX, -1)
		c.jcc(condE, absent)
		c.mi(true, aluCmp, at(c.blk, tmpFlags), UpdateNoExist)
		c.jcc(condE, returns(errExist))
		c.mov(false, insn.RCX, tmp9)
		c.ri(false, aluAnd, insn.RCX, slotState)
		c.cmpImm(false, insn.RCX, slotLive)
		c.jcc(condNE, try)
		c.mov(false, tmpA, insn.RAX)
		c.mov(true, insn.RAX, tmp9)
		c.mov(true, insn.RDX, tmp9)
		c.ri(true, aluXor, insn.RDX, slotLive^slotUpdating)
		c.swap(m)
		c.jcc(condNE, try)
		c.writeValue(m)
		c.flip(m, slotLive, slotLive)
		c.movImm(insn.RAX, 0)
		c.ret()

		c.place(absent)
		c.mi(false, aluCmp, at(c.blk, tmpBusy), 0)
		c.jcc(condNE, try)
		c.mi(true, aluCmp, at(c.blk, tmpFlags), UpdateExist)
		c.jcc(condE, returns(errNoEnt))
		c.cmpImm(false, tmpA, -1)
		c.jcc(condE, returns(errTooBig))
		full := c.newLabel()
		c.movImm(insn.RDI, m.area.Addr)
		c.movImm(insn.RAX, 1)
		c.locked(true, lockXadd, at(insn.RDI, hdrCount), insn.RAX)
		c.cmpImm(true, insn.RAX, int32(m.spec.MaxEntries))
		c.jcc(condAE, full)
		// The claim: hash, next version, claimed.
		c.lea(false, insn.RAX, at(tmpB, slotVersion))
		c.ri(false, aluAnd, insn.RAX, ^slotState)
		c.ri(false, aluOr, insn.RAX, slotClaimed)
		c.mov(true, insn.RDX, insn.R8)
		c.shiftImm(true, shiftLeft, insn.RDX, 32)
		c.rr(true, aluOr, insn.RDX, insn.RAX)
		c.mov(true, insn.RAX, tmpB)
		c.swap(m)
		lost := c.newLabel()
		c.jcc(condNE, lost)
		c.keyAddr(m, tmpA)
		c.mov(true, tmp9, insn.RDX)
		c.copyWords(insn.RDI, insn.RSI, m.hash.keySize)
		c.callTo(c.rivalRoutine(m, i))
		c.test(false, insn.RAX, insn.RAX)
		c.jcc(condNE, backoff)
		if m.perCPU {
			c.zeroValues(m)
		}
		c.writeValue(m)
		c.flip(m, slotClaimed, slotLive)
		c.movImm(insn.RAX, 0)
		c.ret()

		c.place(backoff)
		c.flip(m, slotClaimed, slotGone)
		c.countElems(m, -1)
		c.cmpImm(false, insn.RAX, errAgain)
		c.jcc(condE, try)
		c.jmp(returns(errBusy))
		c.place(lost)
		c.countElems(m, -1)
		c.jmp(try)
		c.place(full)
		c.countElems(m, -1)
		c.result(errTooBig)
		c.ret()
	})
}

// errnoReturns gives out labels of code that returns an errno, each emitted
// once.
func (c *compiler) errnoReturns() func(int) label {
	return func(e int) label {
		return c.routine(fmt.Sprintf("return %d", e), func() {
			c.result(e)
			c.ret()
		})
	}
}

// zeroValues emits: the values of all vCPUs in slot R10 become zero. RAX, RCX
// and RDI change.
func (c *compiler) zeroValues(m *Map) {
	again, words := c.newLabel(), c.newLabel()
	c.movImm(insn.RCX, 0)
	c.place(again)
	c.valueAddr(m, func(r reg64) { c.mov(false, r, insn.RCX) })
	c.movImm(insn.RAX, uint64(m.stride))
	c.place(words)
	c.storeImm(8, operand{insn.RDI, insn.RAX, 1, -8}, 0)
	c.ri(true, aluSub, insn.RAX, 8)
	c.jcc(condNE, words)
	c.ri(false, aluAdd, insn.RCX, 1)
	c.cmpImm(false, insn.RCX, int32(m.cpus))
	c.jcc(condNE, again)
}

// rivalRoutine is a routine: it looks for another claim of the key at RSI with
// hash R8, as Map.hashRival does. EAX becomes 0, errAgain or errBusy. RCX, RDX,
// RDI and R11 change.
func (c *compiler) rivalRoutine(m *Map, i int) label {
	return c.routine(fmt.Sprintf("rival %d", i), func() {
		loop, look, next, present, clear, again, busy := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
		c.movImm(insn.RCX, 0)
		c.place(loop)
		c.rm(false, aluCmp, insn.RCX, at(c.blk, tmpPos))
		c.jcc(condE, next)
		c.lea(false, insn.RDX, operand{insn.R8, insn.RCX, 1, 0})
		c.ri(false, aluAnd, insn.RDX, int32(m.hash.mask))
		c.storeImm(4, at(c.blk, tmpSpin), hashSpins)
		c.place(look)
		c.words(m, insn.RDI)
		c.load(8, insn.RAX, operand{insn.RDI, insn.RDX, 8, 0})
		c.mov(false, insn.RDI, insn.RAX)
		c.ri(false, aluAnd, insn.RDI, slotState)
		c.jcc(condE, clear)
		c.shiftImm(true, shiftRight, insn.RAX, 32)
		c.rr(false, aluCmp, insn.RAX, insn.R8)
		c.jcc(condNE, next)
		c.cmpImm(false, insn.RDI, slotClaimed)
		c.jcc(condNE, present)
		c.rm(false, aluCmp, insn.RCX, at(c.blk, tmpPos))
		c.jcc(condB, again)
		c.mi(false, aluSub, at(c.blk, tmpSpin), 1)
		c.jcc(condS, busy)
		c.jmp(look)
		c.place(present)
		c.cmpImm(false, insn.RDI, slotUpdating)
		c.jcc(condA, next)
		c.mov(true, tmpB, tmp9) // keyAddr needs R9
		c.keyAddr(m, insn.RDX)
		c.mov(true, tmp9, tmpB)
		c.compareKey(m, tmpB, next)
		c.place(again)
		c.movImm(insn.RAX, errAgain)
		c.ret()
		c.place(next)
		c.ri(false, aluAdd, insn.RCX, 1)
		c.cmpImm(false, insn.RCX, hashWindow)
		c.jcc(condNE, loop)
		c.place(clear)
		c.movImm(insn.RAX, 0)
		c.ret()
		c.place(busy)
		c.movImm(insn.RAX, errBusy)
		c.ret()
	})
}

// hashDeleteRoutine is a routine for one map: it deletes the key at RSI. EAX
// becomes the result. It is Map.hashDelete.
func (c *compiler) hashDeleteRoutine(m *Map, i int) label {
	return c.routine(fmt.Sprintf("delete %d", i), func() {
		try, found := c.newLabel(), c.newLabel()
		returns := c.errnoReturns()
		c.callTo(c.hashRoutine(m))
		c.storeImm(4, at(c.blk, tmpTries), hashTries)
		c.place(try)
		c.mi(false, aluSub, at(c.blk, tmpTries), 1)
		c.jcc(condS, returns(errBusy))
		c.callTo(c.scanRoutine(m, i))
		c.cmpImm(false, insn.RAX, -1)
		c.jcc(condNE, found)
		c.mi(false, aluCmp, at(c.blk, tmpBusy), 0)
		c.jcc(condNE, try)
		c.jmp(returns(errNoEnt))
		c.place(found)
		c.mov(false, insn.RCX, tmp9)
		c.ri(false, aluAnd, insn.RCX, slotState)
		c.cmpImm(false, insn.RCX, slotLive)
		c.jcc(condNE, try)
		c.mov(false, tmpA, insn.RAX)
		c.mov(true, insn.RAX, tmp9)
		c.mov(true, insn.RDX, tmp9)
		c.ri(true, aluXor, insn.RDX, slotLive^slotGone)
		c.swap(m)
		c.jcc(condNE, try)
		c.countElems(m, -1)
		c.movImm(insn.RAX, 0)
		c.ret()
	})
}
