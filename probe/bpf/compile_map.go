package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// mapHelper emits map_lookup_elem, map_update_elem and map_delete_elem.
func (c *compiler) mapHelper(pc int, h Helper) error {
	m, i, err := c.mapOf(pc, h, R1, keyedMaps)
	if err != nil {
		return err
	}
	c.region(pc, R2, int(m.spec.KeySize), 0, false)
	switch h {
	case HelperMapLookup:
		c.mapLookup(m, i)
	case HelperMapUpdate:
		c.store(8, at(c.blk, tmpSize), tmp9) // the key, while the value is checked
		c.region(pc, R3, int(m.spec.ValueSize), 0, false)
		if m.spec.ReadOnly {
			c.result(errPerm)
			break
		}
		c.store(8, at(c.blk, tmpValue), tmp9)
		c.store(8, at(c.blk, tmpFlags), insn.RCX)
		c.load(8, tmp9, at(c.blk, tmpSize))
		c.mapUpdate(m, i)
	case HelperMapDelete:
		switch {
		case m.spec.ReadOnly:
			c.result(errPerm)
		case m.hashed():
			c.mov(true, insn.RSI, tmp9)
			c.callTo(c.hashDeleteRoutine(m, i))
		default:
			c.result(errInval)
		}
	}
	return nil
}

func (m *Map) hashed() bool { return m.spec.Kind == Hash || m.spec.Kind == PerCPUHash }

// mapLookup emits the lookup of the key at R9.
func (c *compiler) mapLookup(m *Map, i int) {
	none, done := c.newLabel(), c.newLabel()
	if m.hashed() {
		c.mov(true, insn.RSI, tmp9)
		c.callTo(c.hashRoutine(m))
		c.callTo(c.scanRoutine(m, i))
		c.cmpImm(false, insn.RAX, -1)
		c.jcc(condE, none)
	} else {
		c.load(4, insn.RAX, at(tmp9, 0))
		c.cmpImm(false, insn.RAX, int32(m.spec.MaxEntries))
		c.jcc(condAE, none)
	}
	if m.perCPU {
		c.load(4, tmp9, at(c.blk, blkCPU))
		c.imulImm(false, tmp9, tmp9, int32(m.entries))
		c.rr(false, aluAdd, insn.RAX, tmp9)
	}
	c.shiftImm(true, shiftLeft, insn.RAX, elemShift)
	c.movImm(tmp9, segPointer(segMaps+i, 0, 0))
	c.rr(true, aluOr, insn.RAX, tmp9)
	c.jmp(done)
	c.place(none)
	c.movImm(insn.RAX, 0)
	c.place(done)
}

// mapUpdate emits the update of the key at R9; value and flags are in the
// block's temporaries.
func (c *compiler) mapUpdate(m *Map, i int) {
	if m.hashed() {
		c.mov(true, insn.RSI, tmp9)
		c.callTo(c.hashUpdateRoutine(m, i))
		return
	}
	done := c.newLabel()
	c.load(4, tmpA, at(tmp9, 0))
	c.result(errInval)
	c.mi(true, aluCmp, at(c.blk, tmpFlags), UpdateExist)
	c.jcc(condA, done)
	c.result(errTooBig)
	c.cmpImm(false, tmpA, int32(m.spec.MaxEntries))
	c.jcc(condAE, done)
	c.result(errExist)
	c.mi(true, aluCmp, at(c.blk, tmpFlags), UpdateNoExist)
	c.jcc(condE, done)
	c.writeValue(m)
	c.movImm(insn.RAX, 0)
	c.place(done)
}

// valueAddr emits RDI = machine address of the value in slot R10 of the vCPU in
// register cpu (0 when the values are shared). RAX changes.
func (c *compiler) valueAddr(m *Map, cpu func(reg64)) {
	c.mov(false, insn.RDI, tmpA)
	if m.perCPU {
		cpu(insn.RAX)
		c.imulImm(false, insn.RAX, insn.RAX, int32(m.entries))
		c.rr(false, aluAdd, insn.RDI, insn.RAX)
	}
	c.imulImm(true, insn.RDI, insn.RDI, int32(m.stride))
	c.movImm(insn.RAX, m.area.Addr+uint64(m.values))
	c.rr(true, aluAdd, insn.RDI, insn.RAX)
}

// writeValue emits the copy of the value at tmpValue into slot R10. RAX, RCX,
// RDX and RDI change.
func (c *compiler) writeValue(m *Map) {
	c.valueAddr(m, func(r reg64) { c.load(4, r, at(c.blk, blkCPU)) })
	c.load(8, insn.RDX, at(c.blk, tmpValue))
	c.copyWords(insn.RDI, insn.RDX, int(m.spec.ValueSize))
}

// maxUnrolled is how many words are copied without a loop.
const maxUnrolled = 8

// copyWords emits a copy of n bytes in whole words, the last one padded with
// zeros but not read beyond n. RAX and RCX change, and for a loop nothing else.
func (c *compiler) copyWords(dst, src reg64, n int) {
	words := n / 8
	if words <= maxUnrolled {
		for i := range words {
			c.load(8, insn.RAX, at(src, int32(8*i)))
			c.store(8, at(dst, int32(8*i)), insn.RAX)
		}
	} else {
		again := c.newLabel()
		c.movImm(insn.RCX, 0)
		c.place(again)
		c.load(8, insn.RAX, operand{src, insn.RCX, 8, 0})
		c.store(8, operand{dst, insn.RCX, 8, 0}, insn.RAX)
		c.ri(true, aluAdd, insn.RCX, 1)
		c.ri(true, aluCmp, insn.RCX, int32(words))
		c.jcc(condNE, again)
	}
	if n%8 != 0 {
		c.partWord(insn.RAX, insn.RCX, src, 8*words, n%8)
		c.store(8, at(dst, int32(8*words)), insn.RAX)
	}
}

// partWord emits dst = the n < 8 bytes at src + off, padded with zeros. t
// changes.
func (c *compiler) partWord(dst, t, src reg64, off, n int) {
	first, shift := true, byte(0)
	for _, size := range []int{4, 2, 1} {
		if n&size == 0 {
			continue
		}
		if first {
			c.load(size, dst, at(src, int32(off)))
		} else {
			c.load(size, t, at(src, int32(off)))
			c.shiftImm(true, shiftLeft, t, shift)
			c.rr(true, aluOr, dst, t)
		}
		first = false
		off += size
		shift += byte(8 * size)
	}
}

// hashRoutine is a routine: R8 becomes the hash of the key at RSI, as hashOf
// makes it. RAX, RCX and RDX change.
func (c *compiler) hashRoutine(m *Map) label {
	n := m.hash.keySize
	return c.routine(fmt.Sprintf("hash of %d bytes", n), func() {
		step := func() {
			c.rr(true, aluXor, insn.R8, insn.RAX)
			c.imul(true, insn.R8, insn.RDX)
			c.mov(true, insn.RAX, insn.R8)
			c.shiftImm(true, shiftRight, insn.RAX, 32)
			c.rr(true, aluXor, insn.R8, insn.RAX)
		}
		h := uint64(n)
		h *= hashMul
		c.movImm(insn.R8, h)
		c.movImm(insn.RDX, hashMul)
		for i := range n / 8 {
			c.load(8, insn.RAX, at(insn.RSI, int32(8*i)))
			step()
		}
		if n%8 != 0 {
			c.partWord(insn.RAX, insn.RCX, insn.RSI, n&^7, n%8)
			step()
		}
		c.imul(true, insn.R8, insn.RDX)
		c.shiftImm(true, shiftRight, insn.R8, 32)
		c.ret()
	})
}

// words emits r = address of the state words of m.
func (c *compiler) words(m *Map, r reg64) { c.movImm(r, m.area.Addr+mapHeader) }

// keyAddr emits RDI = machine address of the key in slot r. R9 changes.
func (c *compiler) keyAddr(m *Map, r reg64) {
	c.mov(false, insn.RDI, r)
	c.imulImm(true, insn.RDI, insn.RDI, int32(m.hash.stride))
	c.movImm(tmp9, m.area.Addr+uint64(m.hash.keys))
	c.rr(true, aluAdd, insn.RDI, tmp9)
}

// compareKey emits a jump to differ unless the keys at RSI and RDI are equal.
// t changes.
func (c *compiler) compareKey(m *Map, t reg64, differ label) {
	off := 0
	for _, size := range []int{8, 4, 2, 1} {
		for m.hash.keySize-off >= size {
			c.load(size, t, at(insn.RSI, int32(off)))
			switch size {
			case 8, 4:
				c.memOp(size == 8, []byte{0x3b}, t, at(insn.RDI, int32(off)), false)
			case 2:
				c.emit(0x66)
				c.memOp(false, []byte{0x3b}, t, at(insn.RDI, int32(off)), false)
			case 1:
				c.memOp(false, []byte{0x3a}, t, at(insn.RDI, int32(off)), true)
			}
			c.jcc(condNE, differ)
			off += size
		}
	}
}

// scanRoutine is a routine: it walks the window of hash R8 for the key at RSI,
// as Map.hashScan does. EAX becomes the slot or -1 and R9 its state word; R10
// the first free slot or -1, R11 its word, and tmpPos its place; tmpBusy tells
// of claimed slots. RCX, RDX and RDI change.
func (c *compiler) scanRoutine(m *Map, i int) label {
	return c.routine(fmt.Sprintf("scan %d", i), func() {
		loop, next, claimed, free, empty, none := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
		c.movImm(tmpA, 1<<32-1)
		c.movImm(insn.RCX, 0)
		c.storeImm(4, at(c.blk, tmpBusy), 0)
		c.place(loop)
		c.lea(false, insn.RAX, operand{insn.R8, insn.RCX, 1, 0})
		c.ri(false, aluAnd, insn.RAX, int32(m.hash.mask))
		c.words(m, insn.RDI)
		word := operand{insn.RDI, insn.RAX, 8, 0}
		c.load(8, insn.RDX, word)
		c.mov(false, tmp9, insn.RDX)
		c.ri(false, aluAnd, tmp9, slotState)
		c.jcc(condE, empty)
		c.cmpImm(false, tmp9, slotGone)
		c.jcc(condE, free)
		c.jcc(condA, next)
		c.mov(true, insn.RDI, insn.RDX)
		c.shiftImm(true, shiftRight, insn.RDI, 32)
		c.rr(false, aluCmp, insn.RDI, insn.R8)
		c.jcc(condNE, next)
		c.cmpImm(false, tmp9, slotClaimed)
		c.jcc(condE, claimed)
		c.keyAddr(m, insn.RAX)
		c.compareKey(m, tmp9, next)
		// The slot must still be what it was, but for an update of the value.
		c.words(m, insn.RDI)
		c.load(8, insn.RDI, word)
		c.mov(true, tmp9, insn.RDI)
		c.rr(true, aluXor, tmp9, insn.RDX)
		c.ri(true, aluAnd, tmp9, ^slotState)
		c.jcc(condNE, claimed)
		c.ri(false, aluAnd, insn.RDI, slotState)
		c.ri(false, aluSub, insn.RDI, slotLive)
		c.cmpImm(false, insn.RDI, slotUpdating-slotLive)
		c.jcc(condA, claimed)
		c.mov(true, tmp9, insn.RDX)
		c.ret()
		c.place(claimed)
		c.storeImm(4, at(c.blk, tmpBusy), 1)
		c.place(next)
		c.ri(false, aluAdd, insn.RCX, 1)
		c.cmpImm(false, insn.RCX, hashWindow)
		c.jcc(condNE, loop)
		c.place(none)
		c.movImm(insn.RAX, 1<<32-1)
		c.ret()
		keep := func(then label) {
			c.cmpImm(false, tmpA, -1)
			c.jcc(condNE, then)
			c.mov(false, tmpA, insn.RAX)
			c.mov(true, tmpB, insn.RDX)
			c.store(4, at(c.blk, tmpPos), insn.RCX)
			c.jmp(then)
		}
		c.place(free)
		keep(next)
		c.place(empty)
		keep(none)
	})
}
