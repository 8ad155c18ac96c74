package insn

// Addr returns the effective address of the memory operand without segment
// base when the instruction is at addr, and false when there is none that the
// general registers give (a register operand, a vector index, a register above
// R15).
func (i *Inst) Addr(addr uint64, r *Regs) (uint64, bool) {
	if !i.HasModRM || i.Mod() == 3 || i.regOnly() || i.Enc == EVEX {
		return 0, false
	}
	if i.RIPRelative() {
		return i.RIPTarget(addr), true
	}
	ea := uint64(int64(i.Disp))
	base := i.RM()
	if i.HasSIB {
		base = i.SIB & 7
		if x := i.SIB>>3&7 | i.index; x != 4 { // 4: no index; 12 is R12
			p := r.Reg(Reg64(x))
			if p == nil {
				return 0, false
			}
			ea += *p << (i.SIB >> 6)
		}
	}
	if base != 5 || i.Mod() != 0 {
		p := r.Reg(Reg64(base | i.base))
		if p == nil {
			return 0, false
		}
		ea += *p
	}
	if i.Prefix&PrefixAddrSize != 0 {
		ea = uint64(uint32(ea))
	}
	return ea, true
}
