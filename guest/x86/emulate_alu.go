package x86

import "math/bits"

// operandSize returns 1 for opcodes whose low bit is clear, else the operand size.
func (i *Inst) operandSize() uint8 {
	if i.Opcode&1 == 0 {
		return 1
	}
	return i.opSize()
}

// calculate performs arithmetic and logic between registers and immediates.
func (x *emulator) calculate(e emulation) {
	size := x.operandSize()
	rm, reg := x.RM()|x.base, x.Reg()|x.reg
	switch e {
	case emuALU:
		x.binary(x.Opcode>>3, rm, size, x.read(reg, size))
	case emuALURev:
		x.binary(x.Opcode>>3, reg, size, x.read(rm, size))
	case emuALUAcc:
		x.binary(x.Opcode>>3, 0, size, uint64(x.Imm))
	case emuALUImm:
		x.binary(x.Reg(), rm, size, uint64(x.Imm))
	case emuTest:
		setLogic(x.r, x.read(rm, size)&x.read(reg, size), size)
	case emuTestAcc:
		setLogic(x.r, x.read(0, size)&uint64(x.Imm), size)
	case emuTestImm:
		setLogic(x.r, x.read(rm, size)&uint64(x.Imm), size)
	case emuIncDec:
		cf := x.r.RFLAGS & FlagCF // unchanged (SDM Vol.
		v := x.read(rm, size)
		if x.Reg() == 0 {
			v = add(x.r, v, 1, 0, size)
		} else {
			v = sub(x.r, v, 1, 0, size)
		}
		x.r.RFLAGS = x.r.RFLAGS&^FlagCF | cf
		x.write(rm, size, v)
	case emuNot:
		x.write(rm, size, ^x.read(rm, size))
	case emuNeg:
		x.write(rm, size, sub(x.r, 0, x.read(rm, size), 0, size))
	}
}

// binary performs operation op (the order of group 1) on register n and v.
func (x *emulator) binary(op, n, size uint8, v uint64) {
	a, b := x.read(n, size), v&mask(size)
	carry := x.r.RFLAGS & FlagCF
	switch op & 7 {
	case 0: // add
		a = add(x.r, a, b, 0, size)
	case 1: // or
		a |= b
		setLogic(x.r, a, size)
	case 2: // adc
		a = add(x.r, a, b, carry, size)
	case 3: // sbb
		a = sub(x.r, a, b, carry, size)
	case 4: // and
		a &= b
		setLogic(x.r, a, size)
	case 5: // sub
		a = sub(x.r, a, b, 0, size)
	case 6: // xor
		a ^= b
		setLogic(x.r, a, size)
	default: // cmp
		sub(x.r, a, b, 0, size)
		return
	}
	x.write(n, size, a)
}

// add returns a+b+carry of the given size and sets all status flags.
func add(r *Regs, a, b, carry uint64, size uint8) uint64 {
	top := 8*uint(size) - 1
	sum := (a + b + carry) & mask(size)
	// A carry leaves a bit where both inputs have it, or where one has it and the sum
	// has lost it.
	carries := a&b | (a|b)&^sum
	setArith(r, sum, carries, a^b^sum, carries>>top&1, (a^sum)&(b^sum)>>top&1, size)
	return sum
}

// sub returns a-b-borrow of the given size and sets all status flags.
func sub(r *Regs, a, b, borrow uint64, size uint8) uint64 {
	top := 8*uint(size) - 1
	diff := (a - b - borrow) & mask(size)
	borrows := ^a&b | (^a|b)&diff
	setArith(r, diff, borrows, a^b^diff, borrows>>top&1, (a^b)&(a^diff)>>top&1, size)
	return diff
}

// setArith sets the status flags of an addition or subtraction; aux has the
// carry into bit 4 in bit 4.
func setArith(r *Regs, v, _, aux, cf, of uint64, size uint8) {
	f := r.RFLAGS &^ FlagsStatus
	f |= cf | aux&FlagAF | of<<11
	r.RFLAGS = f | resultFlags(v, size)
}

// setLogic sets the status flags of and, or, xor and test: CF and OF clear. AF
// is undefined in the manuals; CPUs of both vendors clear it.
func setLogic(r *Regs, v uint64, size uint8) {
	r.RFLAGS = r.RFLAGS&^FlagsStatus | resultFlags(v&mask(size), size)
}

// resultFlags returns PF, ZF and SF of a result.
func resultFlags(v uint64, size uint8) uint64 {
	var f uint64
	if bits.OnesCount8(uint8(v))&1 == 0 {
		f |= FlagPF
	}
	if v == 0 {
		f |= FlagZF
	}
	return f | v>>(8*uint(size)-1)&1<<7
}
