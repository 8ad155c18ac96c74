package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// hashCoder emits operations on hash maps, which are routines, and on the values of maps.
type hashCoder struct{ *coder }

// countElems emits an atomic change of the number of elements. RDI changes.
func (c hashCoder) countElems(m *Map, by int) {
	c.set(x86.RDI, m.area.Addr)
	c.Lock().Add(8, x86.At(x86.RDI, hdrCount), imm(by))
}

// flipState emits: the state word of slot R10 becomes R9 with its state changed from
// one to the other. RDX and RDI change.
func (c hashCoder) flipState(m *Map, from, to int) {
	c.Mov(8, x86.RDX, tmp9)
	if from != to {
		c.Xor(8, x86.RDX, imm(from^to))
	}
	c.words(m, x86.RDI)
	c.Mov(8, x86.AtIndex(x86.RDI, tmpA, 8, 0), x86.RDX)
}

// swap emits the compare and swap of the state word of slot R10 from RAX to RDX. RDI
// changes; the zero flag is the result.
func (c hashCoder) swap(m *Map) {
	c.words(m, x86.RDI)
	c.Lock().Cmpxchg(8, x86.AtIndex(x86.RDI, tmpA, 8, 0), x86.RDX)
}

// updateRoutine is a routine for one map: it sets the value of the key at
// RSI; value and flags are in the temporaries. EAX becomes the result. It is
// Map.hashUpdate, step by step.
func (c hashCoder) updateRoutine(m *Map, i int) x86.Label {
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

// zeroValues emits: the values of all vCPUs in slot R10 become zero. RAX, RCX
// and RDI change.
func (c hashCoder) zeroValues(m *Map) {
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
func (c hashCoder) rivalRoutine(m *Map, i int) x86.Label {
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

// deleteRoutine is a routine for one map: it deletes the key at RSI. EAX
// becomes the result. It is Map.hashDelete.
func (c hashCoder) deleteRoutine(m *Map, i int) x86.Label {
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

// valueAddr emits RDI = machine address of the value in slot R10 of the vCPU in
// register cpu (0 when the values are shared). RAX changes.
func (c hashCoder) valueAddr(m *Map, cpu func(reg64)) {
	c.Mov(4, x86.RDI, tmpA)
	if m.perCPU {
		cpu(x86.RAX)
		c.ImulImm(4, x86.RAX, x86.RAX, imm(m.entries))
		c.Add(4, x86.RDI, x86.RAX)
	}
	c.ImulImm(8, x86.RDI, x86.RDI, imm(m.stride))
	c.set(x86.RAX, m.area.Addr+uint64(m.values))
	c.Add(8, x86.RDI, x86.RAX)
}

// writeValue emits the copy of the value at tmpValue into slot R10. RAX, RCX,
// RDX and RDI change.
func (c hashCoder) writeValue(m *Map) {
	c.valueAddr(m, func(r reg64) { c.Mov(4, r, x86.At(c.blk, blkCPU)) })
	c.Mov(8, x86.RDX, x86.At(c.blk, tmpValue))
	c.copyWords(x86.RDI, x86.RDX, int(m.spec.ValueSize))
}

// copyWords emits a copy of n bytes in whole words, the last one padded with zeros
// but not read beyond n. RAX and RCX change, and for a loop no other register.
func (c hashCoder) copyWords(dst, src reg64, n int) {
	words := n / 8
	if words <= maxUnrolled {
		for i := range words {
			c.Mov(8, x86.RAX, x86.At(src, int(8*i)))
			c.Mov(8, x86.At(dst, int(8*i)), x86.RAX)
		}
	} else {
		again := c.NewLabel()
		c.set(x86.RCX, 0)
		c.Place(again)
		c.Mov(8, x86.RAX, x86.AtIndex(src, x86.RCX, 8, 0))
		c.Mov(8, x86.AtIndex(dst, x86.RCX, 8, 0), x86.RAX)
		c.Add(8, x86.RCX, imm(1))
		c.Cmp(8, x86.RCX, imm(words))
		c.Jcc(x86.CondNE, again)
	}
	if n%8 != 0 {
		c.partWord(x86.RAX, x86.RCX, src, 8*words, n%8)
		c.Mov(8, x86.At(dst, int(8*words)), x86.RAX)
	}
}

// partWord emits dst = the n < 8 bytes at src + off, padded with zeros. t
// changes.
func (c hashCoder) partWord(dst, t, src reg64, off, n int) {
	first, shift := true, byte(0)
	for _, size := range []int{4, 2, 1} {
		if n&size == 0 {
			continue
		}
		if first {
			c.Movzx(size, dst, x86.At(src, int(off)))
		} else {
			c.Movzx(size, t, x86.At(src, int(off)))
			c.Shl(8, t, imm(shift))
			c.Or(8, dst, t)
		}
		first = false
		off += size
		shift += byte(8 * size)
	}
}

// hashRoutine is a routine: R8 becomes the hash of the key at RSI, as hashOf
// makes it. RAX, RCX and RDX change.
func (c hashCoder) hashRoutine(m *Map) x86.Label {
	n := m.hash.keySize
	return c.routine(fmt.Sprintf("hash of %d bytes", n), func() {
		step := func() {
			c.Xor(8, x86.R8, x86.RAX)
			c.Imul(8, x86.R8, x86.RDX)
			c.Mov(8, x86.RAX, x86.R8)
			c.Shr(8, x86.RAX, imm(32))
			c.Xor(8, x86.R8, x86.RAX)
		}
		h := uint64(n)
		h *= hashMul
		c.set(x86.R8, h)
		c.set(x86.RDX, hashMul)
		for i := range n / 8 {
			c.Mov(8, x86.RAX, x86.At(x86.RSI, int(8*i)))
			step()
		}
		if n%8 != 0 {
			c.partWord(x86.RAX, x86.RCX, x86.RSI, n&^7, n%8)
			step()
		}
		c.Imul(8, x86.R8, x86.RDX)
		c.Shr(8, x86.R8, imm(32))
		c.Ret()
	})
}

// keyAddr emits RDI = machine address of the key in slot r. R9 changes.
func (c hashCoder) keyAddr(m *Map, r reg64) {
	c.Mov(4, x86.RDI, r)
	c.ImulImm(8, x86.RDI, x86.RDI, imm(m.hash.stride))
	c.set(tmp9, m.area.Addr+uint64(m.hash.keys))
	c.Add(8, x86.RDI, tmp9)
}

// compareKey emits a jump to differ unless the keys at RSI and RDI are equal.
// t changes.
func (c hashCoder) compareKey(m *Map, t reg64, differ x86.Label) {
	off := 0
	for _, size := range []int{8, 4, 2, 1} {
		for m.hash.keySize-off >= size {
			c.Movzx(size, t, x86.At(x86.RSI, off))
			c.Cmp(size, t, x86.At(x86.RDI, off))
			c.Jcc(x86.CondNE, differ)
			off += size
		}
	}
}

// scanRoutine is a routine: it walks the window of hash R8 for the key at RSI, as
// Map.hashScan does. EAX becomes the slot or -1 and R9 its state word; R10 the first
// free slot or -1, R11 its word, and tmpPos its place; tmpBusy says whether a slot is
// claimed. RCX, RDX and RDI change.
func (c hashCoder) scanRoutine(m *Map, i int) x86.Label {
	return c.routine(fmt.Sprintf("scan %d", i), func() {
		loop, next, claimed, free, empty, none := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.set(tmpA, 1<<32-1)
		c.set(x86.RCX, 0)
		c.Mov(4, x86.At(c.blk, tmpBusy), imm(0))
		c.Place(loop)
		c.Lea(4, x86.RAX, x86.AtIndex(x86.R8, x86.RCX, 1, 0))
		c.And(4, x86.RAX, imm(m.hash.mask))
		c.words(m, x86.RDI)
		word := x86.AtIndex(x86.RDI, x86.RAX, 8, 0)
		c.Mov(8, x86.RDX, word)
		c.Mov(4, tmp9, x86.RDX)
		c.And(4, tmp9, imm(slotState))
		c.Jcc(x86.CondE, empty)
		c.Cmp(4, tmp9, imm(slotGone))
		c.Jcc(x86.CondE, free)
		c.Jcc(x86.CondA, next)
		c.Mov(8, x86.RDI, x86.RDX)
		c.Shr(8, x86.RDI, imm(32))
		c.Cmp(4, x86.RDI, x86.R8)
		c.Jcc(x86.CondNE, next)
		c.Cmp(4, tmp9, imm(slotClaimed))
		c.Jcc(x86.CondE, claimed)
		c.keyAddr(m, x86.RAX)
		c.compareKey(m, tmp9, next)
		// The slot must still have the same contents, except that its value may be
		// being updated.
		c.words(m, x86.RDI)
		c.Mov(8, x86.RDI, word)
		c.Mov(8, tmp9, x86.RDI)
		c.Xor(8, tmp9, x86.RDX)
		c.And(8, tmp9, imm(^slotState))
		c.Jcc(x86.CondNE, claimed)
		c.And(4, x86.RDI, imm(slotState))
		c.Sub(4, x86.RDI, imm(slotLive))
		c.Cmp(4, x86.RDI, imm(slotUpdating-slotLive))
		c.Jcc(x86.CondA, claimed)
		c.Mov(8, tmp9, x86.RDX)
		c.Ret()
		c.Place(claimed)
		c.Mov(4, x86.At(c.blk, tmpBusy), imm(1))
		c.Place(next)
		c.Add(4, x86.RCX, imm(1))
		c.Cmp(4, x86.RCX, imm(hashWindow))
		c.Jcc(x86.CondNE, loop)
		c.Place(none)
		c.set(x86.RAX, 1<<32-1)
		c.Ret()
		keep := func(then x86.Label) {
			c.Cmp(4, tmpA, imm(-1))
			c.Jcc(x86.CondNE, then)
			c.Mov(4, tmpA, x86.RAX)
			c.Mov(8, tmpB, x86.RDX)
			c.Mov(4, x86.At(c.blk, tmpPos), x86.RCX)
			c.Jmp(then)
		}
		c.Place(free)
		keep(next)
		c.Place(empty)
		keep(none)
	})
}
