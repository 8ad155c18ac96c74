package x86

// MaxData is the most bytes that EmulateData loads or stores.
const MaxData = 8

// Data says what EmulateData does with memory for an instruction.
type Data uint8

// The kinds of Data.
const (
	NoData Data = iota // EmulateData rejects the instruction
	LoadsData
	StoresData
)

// data returns what EmulateData does with memory for the instruction.
func (i *Inst) data() Data {
	switch i.dataEmulation() {
	case emuNone:
		return NoData
	case emuMov, emuMovImm:
		return StoresData
	}
	return LoadsData
}

// dataEmulation selects how EmulateData runs the instruction: one whose only access to memory is a load or a store of
// 1, 2, 4 or 8 bytes, by the ModRM operand without a segment.
func (i *Inst) dataEmulation() emulation {
	if i.Enc != Legacy || i.Prefix&(PrefixLock|PrefixAddrSize) != 0 || !i.HasModRM || i.Mod() == 3 || i.Segment != SegNone ||
		i.reserved() || i.VendorDependent() || i.Class() != ClassOther {
		return emuNone
	}
	switch op := i.Opcode; i.Map {
	case Map0:
		switch {
		case op < 0x40 && op&7 < 4 && op&6 == 2:
			return emuALURev
		case op == 0x38 || op == 0x39: // cmp: the other seven also store
			return emuALU
		case (op == 0x80 || op == 0x81 || op == 0x83) && i.Reg() == 7:
			return emuALUImm
		case op == 0x84 || op == 0x85:
			return emuTest
		case op == 0x88 || op == 0x89:
			return emuMov
		case (op == 0xc6 || op == 0xc7) && i.Reg() == 0:
			return emuMovImm
		case op == 0x8a || op == 0x8b:
			return emuMovRev
		case op == 0x63:
			return emuMovExt
		case (op == 0xf6 || op == 0xf7) && i.Reg() < 2:
			return emuTestImm
		}
	case Map0F:
		switch {
		case op>>4 == 4:
			return emuCmov
		case op == 0xb6 || op == 0xb7 || op == 0xbe || op == 0xbf:
			return emuMovExt
		}
	}
	return emuNone
}

// EmulateData is Emulate for instructions that load or store data, which Emulate rejects: mov, movzx, movsx, movsxd, cmovcc, cmp, test, and
// arithmetic into a register. The access is done at once if it is aligned, as the processor does it.
//
// It ignores what Emulate ignores, and breakpoints on data.
func (i *Inst) EmulateData(addr uint64, r *Regs, m Memory) error {
	e := i.dataEmulation()
	at, ok := i.Addr(addr, r)
	if e == emuNone || !ok {
		return ErrCannotEmulate
	}
	x := emulator{i, r, m}
	size := i.dataSize(e)
	if !x.accessible(at, size) {
		return ErrCannotEmulate
	}
	switch e {
	case emuMov, emuMovImm:
		v := uint64(i.Imm)
		if e == emuMov {
			v = x.read(x.Reg()|x.reg, size)
		}
		if err := store(m, at, size, v); err != nil {
			return err
		}
	default:
		v, err := load(m, at, size)
		if err != nil {
			return err
		}
		x.applyLoaded(e, v)
	}
	r.RIP = addr + uint64(i.Len)
	r.RFLAGS &^= FlagRF
	return nil
}

// dataSize returns the size of the memory operand of an instruction that EmulateData runs.
func (i *Inst) dataSize(e emulation) uint8 {
	switch e {
	case emuMovExt:
		return i.sourceSize()
	case emuCmov:
		return i.opSize()
	}
	return i.operandSize()
}

// applyLoaded applies an instruction whose memory operand is v.
func (x *emulator) applyLoaded(e emulation, v uint64) {
	size, reg := x.operandSize(), x.Reg()|x.reg
	switch e {
	case emuMovRev:
		x.write(reg, size, v)
	case emuMovExt:
		x.write(reg, x.opSize(), x.extend(v))
	case emuCmov:
		if !cond(x.Opcode&15, x.r.RFLAGS) {
			v = x.read(reg, x.opSize())
		}
		x.write(reg, x.opSize(), v)
	case emuALURev:
		x.binary(x.Opcode>>3, reg, size, v)
	case emuALU:
		sub(x.r, v, x.read(reg, size), 0, size)
	case emuALUImm:
		sub(x.r, v, uint64(x.Imm)&mask(size), 0, size)
	case emuTest:
		setLogic(x.r, v&x.read(reg, size), size)
	case emuTestImm:
		setLogic(x.r, v&uint64(x.Imm), size)
	}
}
