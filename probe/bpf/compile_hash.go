package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// count emits an atomic change of the number of elements. RDI changes.
func (c *compiler) countElems(m *Map, by int) {
	c.set(x86.RDI, m.area.Addr)
	c.Lock().Add(8, x86.At(x86.RDI, hdrCount), imm(by))
}

// flipState emits: the state word of slot R10 becomes R9 with its state changed from
// one to the other. RDX and RDI change.
func (c *compiler) flipState(m *Map, from, to int) {
	c.Mov(8, x86.RDX, tmp9)
	if from != to {
		c.Xor(8, x86.RDX, imm(from^to))
	}
	c.words(m, x86.RDI)
	c.Mov(8, x86.AtIndex(x86.RDI, tmpA, 8, 0), x86.RDX)
}

// swap emits the compare and swap of the state word of slot R10 from RAX to
// RDX. RDI changes; the zero flag tells.
func (c *compiler) swap(m *Map) {
	c.words(m, x86.RDI)
	c.Lock().Cmpxchg(8, x86.AtIndex(x86.RDI, tmpA, 8, 0), x86.RDX)
}

// hashUpdateRoutine is a routine for one map: it sets the value of the key at
// RSI; value and flags are in the temporaries. EAX becomes the result. It is
// Map.hashUpdate, step by step.
func (c *compiler) hashUpdateRoutine(m *Map, i int) x86.Label {
	return c.routine(fmt.Sprintf("update %d", i), func() {
		try, again, absent, backoff := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		returns := c.errnoReturns()
		c.Cmp(8, x86.At(c.blk, tmpFlags), imm(UpdateExist))
		c.Jcc(x86.CondA, returns(errInval))
		c.Call(c.hashRoutine(m))
		c.Mov(4, x86.At(c.blk, tmpTries), imm(guestTries))
		c.Place(try)
		c.Sub(4, x86.At(c.blk, tmpTries), imm(1))
		c.Jcc(x86.CondS, returns(errBusy))
		c.Call(c.scanRoutine(m, i))
		c.Cmp(4, x86.RAX, imm(-1))
		c.Jcc(x86.CondE, absent)
		c.Cmp(8, x86.At(c.blk, tmpFlags), imm(UpdateNoExist))
		c.Jcc(x86.CondE, returns(errExist))
		c.Mov(4, x86.RCX, tmp9)
		c.And(4, x86.RCX, imm(slotState))
		c.Cmp(4, x86.RCX, imm(slotLive))
		c.Jcc(x86.CondNE, again)
		c.Mov(4, tmpA, x86.RAX)
		c.Mov(8, x86.RAX, tmp9)
		c.Mov(8, x86.RDX, tmp9)
		c.Xor(8, x86.RDX, imm(slotLive^slotUpdating))
		c.swap(m)
		c.Jcc(x86.CondNE, again)
		c.writeValue(m)
		c.flipState(m, slotLive, slotLive)
		c.set(x86.RAX, 0)
		c.Ret()

		c.Place(absent)
		c.Cmp(4, x86.At(c.blk, tmpBusy), imm(0))
		c.Jcc(x86.CondNE, again)
		c.Cmp(8, x86.At(c.blk, tmpFlags), imm(UpdateExist))
		c.Jcc(x86.CondE, returns(errNoEnt))
		c.Cmp(4, tmpA, imm(-1))
		c.Jcc(x86.CondE, returns(errTooBig))
		full := c.NewLabel()
		c.set(x86.RDI, m.area.Addr)
		c.set(x86.RAX, 1)
		c.Lock().Xadd(8, x86.At(x86.RDI, hdrCount), x86.RAX)
		c.Cmp(8, x86.RAX, imm(m.spec.MaxEntries))
		c.Jcc(x86.CondAE, full)
		// The claim: hash, next version, claimed.
		c.Lea(4, x86.RAX, x86.At(tmpB, slotVersion))
		c.And(4, x86.RAX, imm(^slotState))
		c.Or(4, x86.RAX, imm(slotClaimed))
		c.Mov(8, x86.RDX, x86.R8)
		c.Shl(8, x86.RDX, imm(32))
		c.Or(8, x86.RDX, x86.RAX)
		c.Mov(8, x86.RAX, tmpB)
		c.swap(m)
		lost := c.NewLabel()
		c.Jcc(x86.CondNE, lost)
		c.keyAddr(m, tmpA)
		c.Mov(8, tmp9, x86.RDX)
		c.copyWords(x86.RDI, x86.RSI, m.hash.keySize)
		c.Call(c.rivalRoutine(m, i))
		c.Test(4, x86.RAX, x86.RAX)
		c.Jcc(x86.CondNE, backoff)
		if m.perCPU {
			c.zeroValues(m)
		}
		c.writeValue(m)
		c.flipState(m, slotClaimed, slotLive)
		c.set(x86.RAX, 0)
		c.Ret()

		c.Place(backoff)
		c.flipState(m, slotClaimed, slotGone)
		c.countElems(m, -1)
		c.Cmp(4, x86.RAX, imm(errAgain))
		c.Jcc(x86.CondE, again)
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
func (c *compiler) errnoReturns() func(int) x86.Label {
	return func(e int) x86.Label {
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
	c.set(x86.RCX, 0)
	c.Place(again)
	c.valueAddr(m, func(r reg64) { c.Mov(4, r, x86.RCX) })
	c.set(x86.RAX, uint64(m.stride))
	c.Place(words)
	c.Mov(8, x86.AtIndex(x86.RDI, x86.RAX, 1, -8), imm(0))
	c.Sub(8, x86.RAX, imm(8))
	c.Jcc(x86.CondNE, words)
	c.Add(4, x86.RCX, imm(1))
	c.Cmp(4, x86.RCX, imm(m.cpus))
	c.Jcc(x86.CondNE, again)
}

// rivalRoutine is a routine: it looks for another claim of the key at RSI with
// hash R8, as Map.hashRival does. EAX becomes 0, errAgain or errBusy. RCX, RDX,
// RDI and R11 change.
func (c *compiler) rivalRoutine(m *Map, i int) x86.Label {
	return c.routine(fmt.Sprintf("rival %d", i), func() {
		loop, look, next, present, clear, again, busy := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.set(x86.RCX, 0)
		c.Place(loop)
		c.Cmp(4, x86.RCX, x86.At(c.blk, tmpPos))
		c.Jcc(x86.CondE, next)
		c.Lea(4, x86.RDX, x86.AtIndex(x86.R8, x86.RCX, 1, 0))
		c.And(4, x86.RDX, imm(m.hash.mask))
		c.Mov(4, x86.At(c.blk, tmpSpin), imm(guestTries))
		c.Place(look)
		c.words(m, x86.RDI)
		c.Mov(8, x86.RAX, x86.AtIndex(x86.RDI, x86.RDX, 8, 0))
		c.Mov(4, x86.RDI, x86.RAX)
		c.And(4, x86.RDI, imm(slotState))
		c.Jcc(x86.CondE, clear)
		c.Shr(8, x86.RAX, imm(32))
		c.Cmp(4, x86.RAX, x86.R8)
		c.Jcc(x86.CondNE, next)
		c.Cmp(4, x86.RDI, imm(slotClaimed))
		c.Jcc(x86.CondNE, present)
		c.Cmp(4, x86.RCX, x86.At(c.blk, tmpPos))
		c.Jcc(x86.CondB, again)
		c.Sub(4, x86.At(c.blk, tmpSpin), imm(1))
		c.Jcc(x86.CondS, busy)
		c.Pause()
		c.Jmp(look)
		c.Place(present)
		c.Cmp(4, x86.RDI, imm(slotUpdating))
		c.Jcc(x86.CondA, next)
		c.Mov(8, tmpB, tmp9) // keyAddr needs R9
		c.keyAddr(m, x86.RDX)
		c.Mov(8, tmp9, tmpB)
		c.compareKey(m, tmpB, next)
		c.Place(again)
		c.set(x86.RAX, errAgain)
		c.Ret()
		c.Place(next)
		c.Add(4, x86.RCX, imm(1))
		c.Cmp(4, x86.RCX, imm(hashWindow))
		c.Jcc(x86.CondNE, loop)
		c.Place(clear)
		c.set(x86.RAX, 0)
		c.Ret()
		c.Place(busy)
		c.set(x86.RAX, errBusy)
		c.Ret()
	})
}

// hashDeleteRoutine is a routine for one map: it deletes the key at RSI. EAX
// becomes the result. It is Map.hashDelete.
func (c *compiler) hashDeleteRoutine(m *Map, i int) x86.Label {
	return c.routine(fmt.Sprintf("delete %d", i), func() {
		try, again, found := c.NewLabel(), c.NewLabel(), c.NewLabel()
		returns := c.errnoReturns()
		c.Call(c.hashRoutine(m))
		c.Mov(4, x86.At(c.blk, tmpTries), imm(guestTries))
		c.Place(try)
		c.Sub(4, x86.At(c.blk, tmpTries), imm(1))
		c.Jcc(x86.CondS, returns(errBusy))
		c.Call(c.scanRoutine(m, i))
		c.Cmp(4, x86.RAX, imm(-1))
		c.Jcc(x86.CondNE, found)
		c.Cmp(4, x86.At(c.blk, tmpBusy), imm(0))
		c.Jcc(x86.CondNE, again)
		c.Jmp(returns(errNoEnt))
		c.Place(found)
		c.Mov(4, x86.RCX, tmp9)
		c.And(4, x86.RCX, imm(slotState))
		c.Cmp(4, x86.RCX, imm(slotLive))
		c.Jcc(x86.CondNE, again)
		c.Mov(4, tmpA, x86.RAX)
		c.Mov(8, x86.RAX, tmp9)
		c.Mov(8, x86.RDX, tmp9)
		c.Xor(8, x86.RDX, imm(slotLive^slotGone))
		c.swap(m)
		c.Jcc(x86.CondNE, again)
		c.countElems(m, -1)
		c.set(x86.RAX, 0)
		c.Ret()
		c.Place(again)
		c.Pause()
		c.Jmp(try)
	})
}
