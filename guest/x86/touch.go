package x86

// Touch is memory that an instruction transfers: Size bytes up from Addr, an
// effective address without the base of Segment.
type Touch struct {
	Addr    uint64
	Size    uint64
	Access  Access
	Segment Segment
}

// AppendTouches appends to dst all memory that the instruction transfers when it is
// executed at addr with registers r: named operand, stack, strings. Besides the
// instruction's own bytes, page faults can only come from these.
//
// ok is false if that is not all of it, or more than the CPU may touch: with vector
// indexes, masks, sizes that depend on more than r, and instructions that change
// privilege. A repeated string instruction is assumed to complete its count. r.RIP is
// ignored. Nothing is allocated if dst has room for 3.
func (i *Inst) AppendTouches(dst []Touch, addr uint64, r *Regs) (_ []Touch, ok bool) {
	switch i.Class() {
	case ClassFar, ClassIRet, ClassInterrupt, ClassSyscall, ClassTransfer, ClassVMEntry:
		return dst, false
	}
	ok = true
	if m, has := i.Mem(); has && m.Access != AccessNone {
		t := Touch{Size: uint64(m.Size), Access: m.Access, Segment: m.Segment}
		t.Addr, ok = i.Addr(addr, r)
		switch {
		case t.Size == 0 && i.bitString():
			t.Size = uint64(i.opSize())
			t.Addr += i.bitOffset(r)
		case t.Size == 0:
			ok = false
		case i.Map == Map0 && i.Opcode == 0x8f && i.legacy(Map0) && m.Base == RSP:
			t.Addr += uint64(i.stackSize()) // pop computes it after the pop
		}
		dst = append(dst, t)
	}
	if i.Enc == EVEX || i.Enc == REX2 {
		return dst, ok && i.Enc == REX2 // masks may suppress bytes
	}
	switch {
	case i.legacy(Map0):
		return i.appendTouches0(dst, r, ok)
	case i.Map == Map0F:
		return i.appendTouches0F(dst, r), ok
	case i.Map == Map0F38 && i.Opcode == 0xf8 && i.Enc == Legacy: // movdir64b, enqcmd
		to := *r.Reg(Reg64(i.Reg() | i.reg))
		if i.Prefix&PrefixAddrSize != 0 {
			to = uint64(uint32(to))
		}
		dst = append(dst, Touch{Addr: to, Size: 64, Access: Write})
	case i.Map == Map0F38 && i.Enc == VEX && (i.Opcode >= 0x2c && i.Opcode <= 0x2f || i.Opcode == 0x8c || i.Opcode == 0x8e):
		ok = false // vmaskmov, vpmaskmov
	}
	return dst, ok
}

// bitString reports whether the memory operand is a bit string that a register
// indexes: bt, bts, btr, btc.
func (i *Inst) bitString() bool {
	return i.legacy(Map0F) && (i.Opcode == 0xa3 || i.Opcode == 0xab || i.Opcode == 0xb3 || i.Opcode == 0xbb)
}

// bitOffset returns the distance from the operand's address to the word that holds
// the selected bit (SDM Vol. 2, BT).
func (i *Inst) bitOffset(r *Regs) uint64 {
	p := r.Reg(Reg64(i.Reg() | i.reg))
	if p == nil {
		return 0
	}
	size := i.opSize()
	bit := int64(signExtend(*p, size))
	words := bit >> map[uint8]uint{2: 4, 4: 5, 8: 6}[size]
	return uint64(words) * uint64(size)
}

// appendTouches0 adds the implicit operands of instructions of the one-byte map.
func (i *Inst) appendTouches0(dst []Touch, r *Regs, ok bool) ([]Touch, bool) {
	stack := uint64(i.stackSize())
	switch op := i.Opcode; {
	case op >= 0x50 && op <= 0x57, op == 0x68, op == 0x6a, op == 0x9c, op == 0xe8, op == 0xff && (i.Reg() == 2 || i.Reg() == 6):
		dst = append(dst, Touch{Addr: r.RSP - stack, Size: stack, Access: Write})
	case op >= 0x58 && op <= 0x5f, op == 0x8f, op == 0x9d, op == 0xc2, op == 0xc3:
		dst = append(dst, Touch{Addr: r.RSP, Size: stack, Access: Read})
	case op == 0xc9:
		dst = append(dst, Touch{Addr: r.RBP, Size: stack, Access: Read})
	case op == 0xc8: // with a nesting level it also copies frame pointers
		dst = append(dst, Touch{Addr: r.RSP - stack, Size: stack, Access: Write})
		ok = ok && i.raw[i.immOff+2]&31 == 0
	case op == 0xd7:
		a := r.RBX + r.RAX&0xff
		if i.Prefix&PrefixAddrSize != 0 {
			a = uint64(uint32(a))
		}
		dst = append(dst, Touch{a, 1, Read, i.Segment})
	case op >= 0x6c && op <= 0x6f, op >= 0xa4 && op <= 0xa7, op >= 0xaa && op <= 0xaf:
		dst = i.touchString(dst, r)
	}
	return dst, ok
}

// touchString adds the operands of ins, outs, movs, cmps, stos, lods, scas.
func (i *Inst) touchString(dst []Touch, r *Regs) []Touch {
	size := uint64(i.operandSize())
	if i.Opcode < 0x70 { // ports are 32 bits at most
		size = min(4, size)
	}
	width := uint8(8)
	if i.Prefix&PrefixAddrSize != 0 {
		width = 4
	}
	count := uint64(1)
	if i.Prefix&(PrefixRep|PrefixRepNE) != 0 {
		count = r.RCX & mask(width)
	}
	if count == 0 {
		return dst
	}
	touch := func(at uint64, a Access, seg Segment) {
		at &= mask(width)
		if r.RFLAGS&FlagDF != 0 {
			at = (at - (count-1)*size) & mask(width)
		}
		dst = append(dst, Touch{at, count * size, a, seg})
	}
	switch i.Opcode &^ 1 {
	case 0x6e, 0xac:
		touch(r.RSI, Read, i.Segment)
	case 0xa4:
		touch(r.RSI, Read, i.Segment)
		touch(r.RDI, Write, SegNone)
	case 0xa6:
		touch(r.RSI, Read, i.Segment)
		touch(r.RDI, Read, SegNone)
	case 0x6c, 0xaa:
		touch(r.RDI, Write, SegNone)
	case 0xae:
		touch(r.RDI, Read, SegNone)
	}
	return dst
}

// appendTouches0F adds the implicit operands of instructions of the 0F map.
func (i *Inst) appendTouches0F(dst []Touch, r *Regs) []Touch {
	rax := r.RAX
	if i.Prefix&PrefixAddrSize != 0 {
		rax = uint64(uint32(rax))
	}
	switch {
	case i.Enc == Legacy && (i.Opcode == 0xa0 || i.Opcode == 0xa8): // push fs, gs
		n := uint64(i.stackSize())
		dst = append(dst, Touch{Addr: r.RSP - n, Size: n, Access: Write})
	case i.Enc == Legacy && (i.Opcode == 0xa1 || i.Opcode == 0xa9): // pop fs, gs
		dst = append(dst, Touch{Addr: r.RSP, Size: uint64(i.stackSize()), Access: Read})
	case i.Opcode == 0xf7 && i.Mod() == 3: // maskmovq, maskmovdqu: at most these
		n := uint64(16)
		if i.pp == ppNone {
			n = 8
		}
		a := r.RDI
		if i.Prefix&PrefixAddrSize != 0 {
			a = uint64(uint32(a))
		}
		dst = append(dst, Touch{a, n, Write, i.Segment})
	case i.Enc == Legacy && i.Opcode == 0x01 && (i.ModRM == 0xc8 || i.ModRM == 0xfa): // monitor, monitorx
		dst = append(dst, Touch{rax, 1, Read, i.Segment})
	case i.Enc == Legacy && i.Opcode == 0x01 && i.ModRM == 0xfc: // clzero: the cache line
		dst = append(dst, Touch{rax &^ 63, 64, Write, i.Segment})
	}
	return dst
}
