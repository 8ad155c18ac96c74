package bpf

import "github.com/guestprobe/guestprobe/guest/x86"

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
		c.emitNoElement(pc)
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
			c.Call(c.hashes.deleteRoutine(m, i))
		default:
			c.result(errInval)
		}
	}
	return nil
}

func (m *Map) hashed() bool { return (hashMaps | 1<<TaskStorage).has(m.spec.Kind) }

// mapLookup emits the lookup of the key at R9; if each vCPU has its own values, for
// the vCPU whose number is in the block at cpu.
func (c *compiler) mapLookup(pc int, m *Map, i, cpu int) {
	if !m.hashed() {
		c.Mov(4, tmp9, x86.At(tmp9, 0))
		c.arrayElement(pc, i, cpu)
		return
	}
	none := c.NewLabel()
	c.Mov(8, x86.RSI, tmp9)
	c.Call(c.hashes.hashRoutine(m))
	c.Call(c.hashes.scanRoutine(m, i))
	c.Mov(4, tmp9, x86.RAX)
	c.emitNoElement(pc)
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
		c.Call(c.hashes.updateRoutine(m, i))
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
	c.hashes.writeValue(m)
	c.set(x86.RAX, 0)
	c.Place(done)
}

// maxUnrolled is the most words that are copied without a loop.
const maxUnrolled = 8
