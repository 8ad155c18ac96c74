package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// count emits an atomic change of the number of elements. RDI changes.
func (c *compiler) countElems(m *Map, by int) {
	c.set(insn.RDI, m.area.Addr)
	c.Lock().Add(8, insn.At(insn.RDI, hdrCount), imm(by))
}

// flip emits: the state word of slot R10 becomes R9 with its state changed from
// one to the other. RDX and RDI change.
func (c *compiler) flip(m *Map, from, to int) {
	c.Mov(8, insn.RDX, tmp9)
	if from != to {
		c.Xor(8, insn.RDX, imm(from^to))
	}
	c.words(m, insn.RDI)
	c.Mov(8, insn.AtIndex(insn.RDI, tmpA, 8, 0), insn.RDX)
}

// swap emits the compare and swap of the state word of slot R10 from RAX to
// RDX. RDI changes; the zero flag tells.
func (c *compiler) swap(m *Map) {
	c.words(m, insn.RDI)
	c.Lock().Cmpxchg(8, insn.AtIndex(insn.RDI, tmpA, 8, 0), insn.RDX)
}

// hashUpdateRoutine is a routine for one map: it sets the value of the key at
// RSI; value and flags are in the temporaries. EAX becomes the result. It is
// Map.hashUpdate, step by step.
func (c *compiler) hashUpdateRoutine(m *Map, i int) insn.Label {
	return c.routine(fmt.Sprintf("update %d", i), func() {
		try, again, absent, backoff := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		returns := c.errnoReturns()
		c.Cmp(8, insn.At(c.blk, tmpFlags), imm(UpdateExist))
		c.Jcc(insn.CondA, returns(errInval))
		c.Call(c.hashRoutine(m))
		c.Mov(4, insn.At(c.blk, tmpTries), imm(guestTries))
		c.Place(try)
		c.Sub(4, insn.At(c.blk, tmpTries), imm(1))
		c.Jcc(insn.CondS, returns(errBusy))
		c.Call(c.scanRoutine(m, i))
		c.Cmp(4, insn.RAX, imm(-1))
		c.Jcc(insn.CondE, absent)
		c.Cmp(8, insn.At(c.blk, tmpFlags), imm(UpdateNoExist))
		c.Jcc(insn.CondE, returns(errExist))
		c.Mov(4, insn.RCX, tmp9)
		c.And(4, insn.RCX, imm(slotState))
		c.Cmp(4, insn.RCX, imm(slotLive))
		c.Jcc(insn.CondNE, again)
		c.Mov(4, tmpA, insn.RAX)
		c.Mov(8, insn.RAX, tmp9)
		c.Mov(8, insn.RDX, tmp9)
		c.Xor(8, insn.RDX, imm(slotLive^slotUpdating))
		c.swap(m)
		c.Jcc(insn.CondNE, again)
		c.writeValue(m)
		c.flip(m, slotLive, slotLive)
		c.set(insn.RAX, 0)
		c.Ret()

		c.Place(absent)
		c.Cmp(4, insn.At(c.blk, tmpBusy), imm(0))
		c.Jcc(insn.CondNE, again)
		c.Cmp(8, insn.At(c.blk, tmpFlags), imm(UpdateExist))
		c.Jcc(insn.CondE, returns(errNoEnt))
		c.Cmp(4, tmpA, imm(-1))
		c.Jcc(insn.CondE, returns(errTooBig))
		full := c.NewLabel()
		c.set(insn.RDI, m.area.Addr)
		c.set(insn.RAX, 1)
		c.Lock().Xadd(8, insn.At(insn.RDI, hdrCount), insn.RAX)
		c.Cmp(8, insn.RAX, imm(m.spec.MaxEntries))
		c.Jcc(insn.CondAE, full)
		// The claim: hash, next version, claimed.
		c.Lea(4, insn.RAX, insn.At(tmpB, slotVersion))
		c.And(4, insn.RAX, imm(^slotState))
		c.Or(4, insn.RAX, imm(slotClaimed))
		c.Mov(8, insn.RDX, insn.R8)
		c.Shl(8, insn.RDX, imm(32))
		c.Or(8, insn.RDX, insn.RAX)
		c.Mov(8, insn.RAX, tmpB)
		c.swap(m)
		lost := c.NewLabel()
		c.Jcc(insn.CondNE, lost)
		c.keyAddr(m, tmpA)
		c.Mov(8, tmp9, insn.RDX)
		c.copyWords(insn.RDI, insn.RSI, m.hash.keySize)
		c.Call(c.rivalRoutine(m, i))
		c.Test(4, insn.RAX, insn.RAX)
		c.Jcc(insn.CondNE, backoff)
		if m.perCPU {
			c.zeroValues(m)
		}
		c.writeValue(m)
		c.flip(m, slotClaimed, slotLive)
		c.set(insn.RAX, 0)
		c.Ret()

		c.Place(backoff)
		c.flip(m, slotClaimed, slotGone)
		c.countElems(m, -1)
		c.Cmp(4, insn.RAX, imm(errAgain))
		c.Jcc(insn.CondE, again)
		c.Jmp(returns(errBusy))
		c.Place(lost)
		c.countElems(m, -1)
		c.Jmp(again)
		c.Place(full)
		c.countElems(m, -1)
		c.result(errTooBig)
		c.Ret()
		c.Place(again)
		c.Pause()
		c.Jmp(try)
	})
}

// errnoReturns gives out labels of code that returns an errno, each emitted
// once.
func (c *compiler) errnoReturns() func(int) insn.Label {
	return func(e int) insn.Label {
		return c.routine(fmt.Sprintf("return %d", e), func() {
			c.result(e)
			c.Ret()
		})
	}
}

// zeroValues emits: the values of all vCPUs in slot R10 become zero. RAX, RCX
// and RDI change.
func (c *compiler) zeroValues(m *Map) {
	again, words := c.NewLabel(), c.NewLabel()
	c.set(insn.RCX, 0)
	c.Place(again)
	c.valueAddr(m, func(r reg64) { c.Mov(4, r, insn.RCX) })
	c.set(insn.RAX, uint64(m.stride))
	c.Place(words)
	c.Mov(8, insn.AtIndex(insn.RDI, insn.RAX, 1, -8), imm(0))
	c.Sub(8, insn.RAX, imm(8))
	c.Jcc(insn.CondNE, words)
	c.Add(4, insn.RCX, imm(1))
	c.Cmp(4, insn.RCX, imm(m.cpus))
	c.Jcc(insn.CondNE, again)
}

// rivalRoutine is a routine: it looks for another claim of the key at RSI with
// hash R8, as Map.hashRival does. EAX becomes 0, errAgain or errBusy. RCX, RDX,
// RDI and R11 change.
func (c *compiler) rivalRoutine(m *Map, i int) insn.Label {
	return c.routine(fmt.Sprintf("rival %d", i), func() {
		loop, look, next, present, clear, again, busy := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.set(insn.RCX, 0)
		c.Place(loop)
		c.Cmp(4, insn.RCX, insn.At(c.blk, tmpPos))
		c.Jcc(insn.CondE, next)
		c.Lea(4, insn.RDX, insn.AtIndex(insn.R8, insn.RCX, 1, 0))
		c.And(4, insn.RDX, imm(m.hash.mask))
		c.Mov(4, insn.At(c.blk, tmpSpin), imm(guestTries))
		c.Place(look)
		c.words(m, insn.RDI)
		c.Mov(8, insn.RAX, insn.AtIndex(insn.RDI, insn.RDX, 8, 0))
		c.Mov(4, insn.RDI, insn.RAX)
		c.And(4, insn.RDI, imm(slotState))
		c.Jcc(insn.CondE, clear)
		c.Shr(8, insn.RAX, imm(32))
		c.Cmp(4, insn.RAX, insn.R8)
		c.Jcc(insn.CondNE, next)
		c.Cmp(4, insn.RDI, imm(slotClaimed))
		c.Jcc(insn.CondNE, present)
		c.Cmp(4, insn.RCX, insn.At(c.blk, tmpPos))
		c.Jcc(insn.CondB, again)
		c.Sub(4, insn.At(c.blk, tmpSpin), imm(1))
		c.Jcc(insn.CondS, busy)
		c.Pause()
		c.Jmp(look)
		c.Place(present)
		c.Cmp(4, insn.RDI, imm(slotUpdating))
		c.Jcc(insn.CondA, next)
		c.Mov(8, tmpB, tmp9) // keyAddr needs R9
		c.keyAddr(m, insn.RDX)
		c.Mov(8, tmp9, tmpB)
		c.compareKey(m, tmpB, next)
		c.Place(again)
		c.set(insn.RAX, errAgain)
		c.Ret()
		c.Place(next)
		c.Add(4, insn.RCX, imm(1))
		c.Cmp(4, insn.RCX, imm(hashWindow))
		c.Jcc(insn.CondNE, loop)
		c.Place(clear)
		c.set(insn.RAX, 0)
		c.Ret()
		c.Place(busy)
		c.set(insn.RAX, errBusy)
		c.Ret()
	})
}

// hashDeleteRoutine is a routine for one map: it deletes the key at RSI. EAX
// becomes the result. It is Map.hashDelete.
func (c *compiler) hashDeleteRoutine(m *Map, i int) insn.Label {
	return c.routine(fmt.Sprintf("delete %d", i), func() {
		try, again, found := c.NewLabel(), c.NewLabel(), c.NewLabel()
		returns := c.errnoReturns()
		c.Call(c.hashRoutine(m))
		c.Mov(4, insn.At(c.blk, tmpTries), imm(guestTries))
		c.Place(try)
		c.Sub(4, insn.At(c.blk, tmpTries), imm(1))
		c.Jcc(insn.CondS, returns(errBusy))
		c.Call(c.scanRoutine(m, i))
		c.Cmp(4, insn.RAX, imm(-1))
		c.Jcc(insn.CondNE, found)
		c.Cmp(4, insn.At(c.blk, tmpBusy), imm(0))
		c.Jcc(insn.CondNE, again)
		c.Jmp(returns(errNoEnt))
		c.Place(found)
		c.Mov(4, insn.RCX, tmp9)
		c.And(4, insn.RCX, imm(slotState))
		c.Cmp(4, insn.RCX, imm(slotLive))
		c.Jcc(insn.CondNE, again)
		c.Mov(4, tmpA, insn.RAX)
		c.Mov(8, insn.RAX, tmp9)
		c.Mov(8, insn.RDX, tmp9)
		c.Xor(8, insn.RDX, imm(slotLive^slotGone))
		c.swap(m)
		c.Jcc(insn.CondNE, again)
		c.countElems(m, -1)
		c.set(insn.RAX, 0)
		c.Ret()
		c.Place(again)
		c.Pause()
		c.Jmp(try)
	})
}
