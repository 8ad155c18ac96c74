package x86

import "math/bits"

// operandSize returns 1 for the opcodes whose low bit is clear, else the
// operand size.
func (i *Inst) operandSize() uint8 {
	if i.Opcode&1 == 0 {
		return 1
	}
	return i.opSize()
}

// emulateALU does arithmetic and logic between registers and immediates.
func (i *Inst) emulateALU(e emulation, r *Regs) {
	size := i.operandSize()
	rm, reg := i.RM()|i.base, i.Reg()|i.reg
	switch e {
	case emuALU:
		i.binary(r, i.Opcode>>3, rm, size, i.read(r, reg, size))
	case emuALURev:
		i.binary(r, i.Opcode>>3, reg, size, i.read(r, rm, size))
	case emuALUAcc:
		i.binary(r, i.Opcode>>3, 0, size, uint64(i.Imm))
	case emuALUImm:
		i.binary(r, i.Reg(), rm, size, uint64(i.Imm))
	case emuTest:
		setLogic(r, i.read(r, rm, size)&i.read(r, reg, size), size)
	case emuTestAcc:
		setLogic(r, i.read(r, 0, size)&uint64(i.Imm), size)
	case emuTestImm:
		setLogic(r, i.read(r, rm, size)&uint64(i.Imm), size)
	case emuIncDec:
		cf := r.RFLAGS & FlagCF // left alone (SDM Vol. 2, INC)
		v := i.read(r, rm, size)
		if i.Reg() == 0 {
			v = add(r, v, 1, 0, size)
		} else {
			v = sub(r, v, 1, 0, size)
		}
		r.RFLAGS = r.RFLAGS&^FlagCF | cf
		i.write(r, rm, size, v)
	case emuNot:
		i.write(r, rm, size, ^i.read(r, rm, size))
	case emuNeg:
		i.write(r, rm, size, sub(r, 0, i.read(r, rm, size), 0, size))
	}
}

// binary does operation op (the order of group 1) on register n and v.
func (i *Inst) binary(r *Regs, op, n, size uint8, v uint64) {
	a, b := i.read(r, n, size), v&mask(size)
	carry := r.RFLAGS & FlagCF
	switch op & 7 {
	case 0: // add
		a = add(r, a, b, 0, size)
	case 1: // or
		a |= b
		setLogic(r, a, size)
	case 2: // adc
		a = add(r, a, b, carry, size)
	case 3: // sbb
		a = sub(r, a, b, carry, size)
	case 4: // and
		a &= b
		setLogic(r, a, size)
	case 5: // sub
		a = sub(r, a, b, 0, size)
	case 6: // xor
		a ^= b
		setLogic(r, a, size)
	default: // cmp
		sub(r, a, b, 0, size)
		return
	}
	i.write(r, n, size, a)
}

// add returns a+b+carry of the given size and sets all status flags.
func add(r *Regs, a, b, carry uint64, size uint8) uint64 {
	top := 8*uint(size) - 1
	sum := (a + b + carry) & mask(size)
	// A carry leaves a bit where both inputs have it, or one has it and the
	// sum has lost it.
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
