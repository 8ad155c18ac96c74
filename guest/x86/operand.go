package x86

// Mem returns the explicit memory operand of the instruction, and false if it has
// none: a register operand, or no operand at all.
//
// Size and Access are the most that the CPU may touch. They are 0 and Read|Write for
// instructions that are not in the tables: those that raise #UD, and EVEX map 4. For
// bt, bts, btr and btc with a bit number in a register the operand is only the
// beginning of the bit string.
func (i *Inst) Mem() (Mem, bool) {
	m, ok := i.operand()
	if !ok {
		return Mem{}, false
	}
	i.fill(&m)
	if i.Enc == EVEX && i.dispLen == 1 {
		m.Disp *= int64(i.dispScale(&m))
	}
	return m, true
}

// operand returns the memory operand without size, access and the scale of
// EVEX.
func (i *Inst) operand() (Mem, bool) {
	if i.legacy(Map0) && i.Opcode >= 0xa0 && i.Opcode <= 0xa3 && i.Enc == Legacy {
		m := Mem{Base: NoReg, Index: NoReg, Scale: 1, Segment: i.Segment, Disp: i.Imm}
		if i.Prefix&PrefixAddrSize != 0 {
			m.Disp = int64(uint32(i.Imm))
		}
		return m, true
	}
	if !i.HasModRM || i.Mod() == 3 || i.regOnly() {
		return Mem{}, false
	}
	m := Mem{Base: NoReg, Index: NoReg, Scale: 1, Segment: i.Segment, Disp: int64(i.Disp)}
	base := i.RM()
	if i.HasSIB {
		base = i.SIB & 7
		m.Index = Reg64(i.SIB>>3&7 | i.index)
		m.Scale = 1 << (i.SIB >> 6)
		m.Vector = i.vectorIndex()
		switch {
		case m.Vector && i.Enc == EVEX: // V4 replaces X4
			m.Index = m.Index&15 | Reg64(i.vvvv&16)
		case !m.Vector && m.Index == 4: // no index
			m.Index, m.Scale = NoReg, 1
		}
	}
	switch {
	case base != 5 || i.Mod() != 0:
		m.Base = Reg64(base | i.base)
	case !i.HasSIB:
		m.RIP = true
	}
	return m, true
}

// fill sets size and access.
func (i *Inst) fill(m *Mem) {
	s := i.memSize()
	if s == 0 {
		m.Access = Read | Write
		return
	}
	m.Access = Access(s >> sizeBits & 3)
	m.Size = i.bytes(sizeLetters[s&memGroup])
	if i.Enc == EVEX && i.evexB {
		m.Size = i.broadcastSize()
	}
}

// broadcastSize returns the size of the only element that EVEX.b makes the
// instruction read.
func (i *Inst) broadcastSize() uint16 {
	fp16 := i.Map == Map6 && i.pp == ppOpSize
	switch i.Map {
	case Map0F3A:
		if i.pp == ppNone {
			switch i.Opcode { // vrndscaleph, vgetmantph, vreduceph, vfpclassph, vcmpph
			case 0x08, 0x26, 0x56, 0x66, 0xc2:
				fp16 = true
			}
		}
	case Map5: // except conversions from other sizes
		switch {
		case i.pp == ppNone && i.Opcode == 0x5b, i.pp == ppOpSize && (i.Opcode == 0x1d || i.Opcode == 0x5a),
			i.pp == ppRepNE && i.Opcode == 0x7a:
		default:
			fp16 = true
		}
	}
	switch {
	case fp16:
		return 2
	case i.Prefix&PrefixREXW != 0:
		return 8
	}
	return 4
}

// dispScale returns N of the compressed displacement (SDM Vol. 2, 2.7.5): the
// operand's size, or the element's for compress and expand. In map 4, and if the size
// is not known, it is 1.
func (i *Inst) dispScale(m *Mem) uint16 {
	if i.Map == Map0F38 && i.pp == ppOpSize {
		w := i.Prefix&PrefixREXW != 0
		switch i.Opcode {
		case 0x62, 0x63:
			if w {
				return 2
			}
			return 1
		case 0x88, 0x89, 0x8a, 0x8b:
			if w {
				return 8
			}
			return 4
		}
	}
	return max(1, m.Size)
}

// vectorIndex reports whether the SIB byte is a VSIB (SDM Vol. 2, 2.3.12).
func (i *Inst) vectorIndex() bool {
	if i.Map != Map0F38 || i.pp != ppOpSize {
		return false
	}
	switch i.Enc {
	case VEX:
		return i.Opcode >= 0x90 && i.Opcode <= 0x93
	case EVEX:
		return i.Opcode >= 0x90 && i.Opcode <= 0x93 || i.Opcode >= 0xa0 && i.Opcode <= 0xa3 ||
			i.Opcode == 0xc6 || i.Opcode == 0xc7
	}
	return false
}

// RMReg returns the general register in ModRM.rm with its extension bit; it is one
// only with Mod 3.
func (i *Inst) RMReg() Reg64 { return Reg64(i.RM() | i.base) }

// RegReg returns the general register in ModRM.reg with its extension bit; it is not
// one if Reg is part of the opcode.
func (i *Inst) RegReg() Reg64 { return Reg64(i.Reg() | i.reg) }

// Addr returns the effective address of the memory operand, without segment base, of
// the instruction at addr. It returns false if r does not determine it: a register
// operand, a vector index, a register above R15.
func (i *Inst) Addr(addr uint64, r *Regs) (uint64, bool) {
	m, ok := i.operand()
	if !ok || m.Vector {
		return 0, false
	}
	if i.Enc == EVEX {
		m, _ = i.Mem()
	}
	if m.RIP {
		return i.RIPTarget(addr), true
	}
	ea := uint64(m.Disp)
	if m.Base != NoReg {
		p := r.Reg(m.Base)
		if p == nil {
			return 0, false
		}
		ea += *p
	}
	if m.Index != NoReg {
		p := r.Reg(m.Index)
		if p == nil {
			return 0, false
		}
		ea += *p * uint64(m.Scale)
	}
	if i.Prefix&PrefixAddrSize != 0 {
		ea = uint64(uint32(ea))
	}
	return ea, true
}
