package x86

import "math/bits"

// emulateMove does the moves and conversions between registers.
func (i *Inst) emulateMove(e emulation, addr uint64, r *Regs) {
	rm, reg := i.RM()|i.base, i.Reg()|i.reg
	switch e {
	case emuXchg:
		size := i.operandSize()
		a, b := i.read(r, rm, size), i.read(r, reg, size)
		i.write(r, rm, size, b)
		i.write(r, reg, size, a)
	case emuXchgAcc:
		size, n := i.opSize(), i.Opcode&7|i.base
		a, b := i.read(r, 0, size), i.read(r, n, size)
		i.write(r, 0, size, b)
		i.write(r, n, size, a)
	case emuMov:
		size := i.operandSize()
		i.write(r, rm, size, i.read(r, reg, size))
	case emuMovRev:
		size := i.operandSize()
		i.write(r, reg, size, i.read(r, rm, size))
	case emuMovImm:
		i.write(r, rm, i.operandSize(), uint64(i.Imm))
	case emuMovOp:
		size := i.opSize()
		if i.Opcode < 0xb8 {
			size = 1
		}
		i.write(r, i.Opcode&7|i.base, size, uint64(i.Imm))
	case emuMovExt:
		i.write(r, reg, i.opSize(), i.extend(i.read(r, rm, i.sourceSize())))
	case emuLea:
		ea, _ := i.Addr(addr, r)
		i.write(r, reg, i.opSize(), ea)
	case emuWiden: // AL to AX, AX to EAX, EAX to RAX
		half := i.opSize() / 2
		i.write(r, 0, i.opSize(), signExtend(*r.Reg(RAX), half))
	case emuSign:
		size := i.opSize()
		i.write(r, 2, size, uint64(int64(signExtend(r.RAX, size))>>63))
	case emuBswap:
		n := i.Opcode&7 | i.base
		if i.opSize() == 8 {
			i.write(r, n, 8, bits.ReverseBytes64(*r.Reg(Reg64(n))))
		} else {
			i.write(r, n, 4, uint64(bits.ReverseBytes32(uint32(*r.Reg(Reg64(n))))))
		}
	case emuCmov:
		// Not moved, a 32-bit destination still loses its upper half.
		size, n := i.opSize(), reg
		if cond(i.Opcode&15, r.RFLAGS) {
			n = rm
		}
		i.write(r, reg, size, i.read(r, n, size))
	case emuSet:
		v := uint64(0)
		if cond(i.Opcode&15, r.RFLAGS) {
			v = 1
		}
		i.write(r, rm, 1, v)
	case emuFlag:
		switch i.Opcode {
		case 0xf5:
			r.RFLAGS ^= FlagCF
		case 0xf8:
			r.RFLAGS &^= FlagCF
		case 0xf9:
			r.RFLAGS |= FlagCF
		case 0xfc:
			r.RFLAGS &^= FlagDF
		case 0xfd:
			r.RFLAGS |= FlagDF
		}
	}
}

// sourceSize returns the size that movzx, movsx and movsxd read.
func (i *Inst) sourceSize() uint8 {
	switch {
	case i.Map == Map0: // movsxd; with a 16-bit result it reads 16 bits
		return min(4, i.opSize())
	case i.Opcode&1 == 0:
		return 1
	}
	return 2
}

// extend widens what was read: movzx is B6 and B7.
func (i *Inst) extend(v uint64) uint64 {
	if i.Map == Map0F && i.Opcode < 0xb8 {
		return v
	}
	return signExtend(v, i.sourceSize())
}

// signExtend extends the low size bytes of v.
func signExtend(v uint64, size uint8) uint64 {
	s := 64 - 8*uint(size)
	return uint64(int64(v<<s) >> s)
}
