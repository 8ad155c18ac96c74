package bpf

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// mapHelper emits map_lookup_elem, map_lookup_percpu_elem, map_update_elem and
// map_delete_elem.
func (c *compiler) mapHelper(pc int, h Helper) error {
	m, i, err := c.mapOf(pc, h)
	if err != nil {
		return err
	}
	if n := m.opCost(h); n != 0 {
		c.take(pc, imm(n))
	}
	c.region(pc, R2, int(m.spec.KeySize), 0, false)
	switch h {
	case HelperMapLookup:
		c.mapLookup(pc, m, i, blkCPU)
	case HelperLookupPerCPU:
		if !m.perCPU {
			c.Jmp(c.fault(FaultMapArg, pc, c.regs[R1], 0))
			break
		}
		c.Mov(4, x86.At(c.blk, tmpValue), x86.RDX)
		none := c.NewLabel()
		c.noElement(pc)
		c.Cmp(4, x86.RDX, imm(m.cpus))
		c.Jcc(x86.CondAE, none)
		c.mapLookup(pc, m, i, tmpValue)
		c.Place(none)
	case HelperMapUpdate:
		c.Mov(8, x86.At(c.blk, tmpSize), tmp9) // the key, while the value is checked
		c.region(pc, R3, int(m.spec.ValueSize), 0, false)
		if m.spec.ReadOnly {
			c.result(errPerm)
			break
		}
		c.Mov(8, x86.At(c.blk, tmpValue), tmp9)
		c.Mov(8, x86.At(c.blk, tmpFlags), x86.RCX)
		c.Mov(8, tmp9, x86.At(c.blk, tmpSize))
		c.mapUpdate(m, i)
	case HelperMapDelete:
		switch {
		case m.spec.ReadOnly:
			c.result(errPerm)
		case m.hashed():
			c.Mov(8, x86.RSI, tmp9)
			c.Call(c.hashDeleteRoutine(m, i))
		default:
			c.result(errInval)
		}
	}
	return nil
}

func (m *Map) hashed() bool { return hashMaps.has(m.spec.Kind) }

// mapLookup emits the lookup of the key at R9; of values for each vCPU it is that of the
// vCPU whose number the block has at cpu.
func (c *compiler) mapLookup(pc int, m *Map, i, cpu int) {
	if !m.hashed() {
		c.Mov(4, tmp9, x86.At(tmp9, 0))
		c.arrayElement(pc, i, cpu)
		return
	}
	none := c.NewLabel()
	c.Mov(8, x86.RSI, tmp9)
	c.Call(c.hashRoutine(m))
	c.Call(c.scanRoutine(m, i))
	c.Mov(4, tmp9, x86.RAX)
	c.noElement(pc)
	c.Cmp(4, tmp9, imm(-1))
	c.Jcc(x86.CondE, none)
	c.element(pc, i, cpu)
	c.Place(none)
}

// mapUpdate emits the update of the key at R9; value and flags are in the
// block's temporaries.
func (c *compiler) mapUpdate(m *Map, i int) {
	if m.hashed() {
		c.Mov(8, x86.RSI, tmp9)
		c.Call(c.hashUpdateRoutine(m, i))
		return
	}
	done := c.NewLabel()
	c.Mov(4, tmpA, x86.At(tmp9, 0))
	c.result(errInval)
	c.Cmp(8, x86.At(c.blk, tmpFlags), imm(UpdateExist))
	c.Jcc(x86.CondA, done)
	c.result(errTooBig)
	c.Cmp(4, tmpA, imm(m.spec.MaxEntries))
	c.Jcc(x86.CondAE, done)
	c.result(errExist)
	c.Cmp(8, x86.At(c.blk, tmpFlags), imm(UpdateNoExist))
	c.Jcc(x86.CondE, done)
	c.writeValue(m)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// valueAddr emits RDI = machine address of the value in slot R10 of the vCPU in
// register cpu (0 when the values are shared). RAX changes.
func (c *compiler) valueAddr(m *Map, cpu func(reg64)) {
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
func (c *compiler) writeValue(m *Map) {
	c.valueAddr(m, func(r reg64) { c.Mov(4, r, x86.At(c.blk, blkCPU)) })
	c.Mov(8, x86.RDX, x86.At(c.blk, tmpValue))
	c.copyWords(x86.RDI, x86.RDX, int(m.spec.ValueSize))
}

// maxUnrolled is how many words are copied without a loop.
const maxUnrolled = 8

// copyWords emits a copy of n bytes in whole words, the last one padded with
// zeros but not read beyond n. RAX and RCX change, and for a loop nothing else.
func (c *compiler) copyWords(dst, src reg64, n int) {
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
func (c *compiler) partWord(dst, t, src reg64, off, n int) {
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
func (c *compiler) hashRoutine(m *Map) x86.Label {
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

// words emits r = address of the state words of m.
func (c *compiler) words(m *Map, r reg64) { c.set(r, m.area.Addr+mapHeader) }

// keyAddr emits RDI = machine address of the key in slot r. R9 changes.
func (c *compiler) keyAddr(m *Map, r reg64) {
	c.Mov(4, x86.RDI, r)
	c.ImulImm(8, x86.RDI, x86.RDI, imm(m.hash.stride))
	c.set(tmp9, m.area.Addr+uint64(m.hash.keys))
	c.Add(8, x86.RDI, tmp9)
}

// compareKey emits a jump to differ unless the keys at RSI and RDI are equal.
// t changes.
func (c *compiler) compareKey(m *Map, t reg64, differ x86.Label) {
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

// scanRoutine is a routine: it walks the window of hash R8 for the key at RSI,
// as Map.hashScan does. EAX becomes the slot or -1 and R9 its state word; R10
// the first free slot or -1, R11 its word, and tmpPos its place; tmpBusy tells
// of claimed slots. RCX, RDX and RDI change.
func (c *compiler) scanRoutine(m *Map, i int) x86.Label {
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
		// The slot must still be what it was, but for an update of the value.
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
