package flow

import (
	"encoding/binary"
	"slices"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// Bounds of the search for a jump table.
const (
	maxTable  = 4096 // entries
	tableBack = 16   // instructions before the jump in which its parts are sought
)

// jumpTable returns where the indirect jump at index k leads, ascending and
// each once, or nil when its table is not found. It knows the forms that gcc,
// clang and Go emit for a switch:
//
//	cmp $n, %i; ja default; ... jmp *table(,%i,8)
//	cmp $n, %i; ja default; ... lea table(%rip), %b; jmp *(%b,%i,8)
//	cmp $n, %i; ja default; ... lea table(%rip), %b; movslq (%b,%i,4), %t; add %b, %t; jmp *%t
//
// Without the comparison there is no size, and so no table. A table with an
// entry that leads elsewhere than to an instruction of this function is none.
func (f *Func) jumpTable(k int) []uint64 {
	if f.in.Read == nil {
		return nil
	}
	j := &f.insts[k]
	m, mem := j.Mem()
	if mem {
		if m.RIP || m.Vector || m.Index == insn.NoReg || m.Scale != 8 || m.Segment != insn.SegNone {
			return nil
		}
		table := uint64(m.Disp)
		if m.Base != insn.NoReg {
			lea, ok := f.loaded(k, m.Base)
			if !ok {
				return nil
			}
			table += lea
		}
		n, ok := f.tableSize(k, m.Index)
		if !ok {
			return nil
		}
		return f.readTable(table, n, 8)
	}
	return f.relativeTable(k, j.RMReg())
}

// relativeTable finds the table of offsets for a jump through register t.
func (f *Func) relativeTable(k int, t insn.Reg64) []uint64 {
	base := insn.NoReg // the other register of the sum
	low := max(0, k-tableBack)
	for at := k - 1; at >= low; at-- {
		i := &f.insts[at]
		if !i.Falls() {
			return nil
		}
		switch {
		case base == insn.NoReg && isAdd(&i.Inst, t):
			base = otherOperand(&i.Inst, t)
		case base != insn.NoReg && i.Enc == insn.Legacy && i.Map == insn.Map0 && i.Opcode == 0x63:
			m, ok := i.Mem()
			if !ok || m.Scale != 4 || m.RIP || m.Index == insn.NoReg || m.Disp != 0 || m.Segment != insn.SegNone {
				continue
			}
			if m.Base != base && m.Base != t {
				return nil
			}
			table, ok := f.loaded(at, m.Base)
			if !ok {
				return nil
			}
			n, ok := f.tableSize(at, m.Index)
			if !ok {
				return nil
			}
			return f.readTable(table, n, 4)
		}
	}
	return nil
}

// loaded returns the address that a lea relative to RIP before index k puts
// into register r.
func (f *Func) loaded(k int, r insn.Reg64) (uint64, bool) {
	for at := k - 1; at >= max(0, k-tableBack); at-- {
		i := &f.insts[at]
		if i.Enc == insn.Legacy && i.Map == insn.Map0 && i.Opcode == 0x8d && i.RegReg() == r {
			if !i.RIPRelative() {
				return 0, false
			}
			return i.RIPTarget(f.in.Addr + uint64(i.Off)), true
		}
	}
	return 0, false
}

// tableSize returns the number of entries that the comparison of register r
// before index k allows, or of the register that r was copied from.
func (f *Func) tableSize(k int, r insn.Reg64) (int, bool) {
	for at := k - 1; at >= max(0, k-tableBack); at-- {
		i := &f.insts[at]
		if i.Enc != insn.Legacy || i.Map != insn.Map0 {
			continue
		}
		if from, ok := copied(&i.Inst, r); ok {
			r = from
			continue
		}
		limit := i.Imm
		switch i.Opcode {
		case 0x3c, 0x3d: // cmp $imm, %al, %eax
			if r != insn.RAX {
				continue
			}
		case 0x80, 0x81, 0x83: // cmp $imm, r
			if i.Reg() != 7 || i.Mod() != 3 || i.RMReg() != r {
				continue
			}
		default:
			continue
		}
		// ja: up to and including the limit; jae: below it.
		for ja := at + 1; ja < k; ja++ {
			b := &f.insts[ja]
			if b.Class() != insn.ClassCondJump {
				continue
			}
			switch b.Opcode & 0xf {
			case 0x7:
				limit++
			case 0x3:
			default:
				return 0, false
			}
			return int(limit), limit > 0 && limit <= maxTable
		}
		return 0, false
	}
	return 0, false
}

// readTable reads n entries of size bytes at addr: addresses, or offsets from
// addr.
func (f *Func) readTable(addr uint64, n, size int) []uint64 {
	b := f.in.Read(addr, n*size)
	if len(b) < n*size {
		return nil
	}
	out := make([]uint64, 0, n)
	for ; n > 0; n, b = n-1, b[size:] {
		t := addr
		if size == 8 {
			t = binary.LittleEndian.Uint64(b)
		} else {
			t += uint64(int64(int32(binary.LittleEndian.Uint32(b))))
		}
		if !f.inside(t) {
			return nil
		}
		if _, ok := f.Index(int(t - f.in.Addr)); !ok {
			return nil
		}
		out = append(out, t)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// copied returns the register that a mov of 32 or 64 bits copies to register r,
// which may be r itself: compilers clear the upper half so.
func copied(i *insn.Inst, r insn.Reg64) (insn.Reg64, bool) {
	switch {
	case i.Mod() != 3 || i.Has(insn.PrefixOpSize):
	case i.Opcode == 0x89 && i.RMReg() == r:
		return i.RegReg(), true
	case i.Opcode == 0x8b && i.RegReg() == r:
		return i.RMReg(), true
	}
	return 0, false
}

// isAdd reports whether i is a 64-bit add of a register to register t.
func isAdd(i *insn.Inst, t insn.Reg64) bool {
	if i.Enc != insn.Legacy || i.Map != insn.Map0 || i.Mod() != 3 || !i.Has(insn.PrefixREXW) {
		return false
	}
	return i.Opcode == 0x01 && i.RMReg() == t || i.Opcode == 0x03 && i.RegReg() == t
}

// otherOperand returns the register that isAdd's add adds.
func otherOperand(i *insn.Inst, t insn.Reg64) insn.Reg64 {
	if i.Opcode == 0x01 {
		return i.RegReg()
	}
	return i.RMReg()
}
