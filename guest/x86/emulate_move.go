package x86

import "math/bits"

// move performs the moves and conversions between registers.
func (x *emulator) move(e emulation, addr uint64) {
	rm, reg := x.RM()|x.base, x.Reg()|x.reg
	switch e {
	case emuXchg:
		size := x.operandSize()
		a, b := x.read(rm, size), x.read(reg, size)
		x.write(rm, size, b)
		x.write(reg, size, a)
	case emuXchgAcc:
		size, n := x.opSize(), x.Opcode&7|x.base
		a, b := x.read(0, size), x.read(n, size)
		x.write(0, size, b)
		x.write(n, size, a)
	case emuMov:
		size := x.operandSize()
		x.write(rm, size, x.read(reg, size))
	case emuMovRev:
		size := x.operandSize()
		x.write(reg, size, x.read(rm, size))
	case emuMovImm:
		x.write(rm, x.operandSize(), uint64(x.Imm))
	case emuMovOp:
		size := x.opSize()
		if x.Opcode < 0xb8 {
			size = 1
		}
		x.write(x.Opcode&7|x.base, size, uint64(x.Imm))
	case emuMovExt:
		x.write(reg, x.opSize(), x.extend(x.read(rm, x.sourceSize())))
	case emuLea:
		ea, _ := x.Addr(addr, x.r)
		x.write(reg, x.opSize(), ea)
	case emuWiden: // AL to AX, AX to EAX, EAX to RAX
		half := x.opSize() / 2
		x.write(0, x.opSize(), signExtend(*x.r.Reg(RAX), half))
	case emuSign:
		size := x.opSize()
		x.write(2, size, uint64(int64(signExtend(x.r.RAX, size))>>63))
	case emuBswap:
		n := x.Opcode&7 | x.base
		if x.opSize() == 8 {
			x.write(n, 8, bits.ReverseBytes64(*x.r.Reg(Reg64(n))))
		} else {
			x.write(n, 4, uint64(bits.ReverseBytes32(uint32(*x.r.Reg(Reg64(n))))))
		}
	case emuCmov:
		// Even without a move, a 32-bit destination loses its upper half.
		size, n := x.opSize(), reg
		if cond(x.Opcode&15, x.r.RFLAGS) {
			n = rm
		}
		x.write(reg, size, x.read(n, size))
	case emuSet:
		v := uint64(0)
		if cond(x.Opcode&15, x.r.RFLAGS) {
			v = 1
		}
		x.write(rm, 1, v)
	case emuFlag:
		switch x.Opcode {
		case 0xf5:
			x.r.RFLAGS ^= FlagCF
		case 0xf8:
			x.r.RFLAGS &^= FlagCF
		case 0xf9:
			x.r.RFLAGS |= FlagCF
		case 0xfc:
			x.r.RFLAGS &^= FlagDF
		case 0xfd:
			x.r.RFLAGS |= FlagDF
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

// extend widens the source value: movzx is B6 and B7.
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
