package x86

// Target returns the target of a direct near branch (jmp, jcc, loop, jrcxz, call,
// xbegin's abort) at addr, and false for any other instruction. A VendorDependent one
// truncates the target to 16 bits.
func (i *Inst) Target(addr uint64) (uint64, bool) {
	switch i.Class() {
	case ClassJump, ClassCondJump, ClassLoop, ClassCall, ClassTransaction:
	default:
		return 0, false
	}
	if i.Enc == REX2 && i.Opcode == 0xa1 {
		return uint64(i.Imm), true // jmpabs
	}
	t := addr + uint64(i.Len) + uint64(i.Imm)
	if i.stackSize() == 2 {
		t = uint64(uint16(t))
	}
	return t, true
}

// VendorDependent reports whether AMD and Intel read the instruction
// differently: a near branch with the operand size prefix and without REX.W is
// 16 bits wide on AMD (APM Vol. 3, JMP near) and 64 on Intel (SDM Vol. 2,
// JMP); for jmp rel, call rel and jcc rel even the length differs.
func (i *Inst) VendorDependent() bool {
	if i.stackSize() != 2 {
		return false
	}
	switch i.Class() {
	case ClassJump, ClassCondJump, ClassLoop, ClassCall, ClassRet, ClassJumpInd, ClassCallInd, ClassTransaction:
		return true
	}
	return false
}

// Falls reports whether execution can continue at the next instruction: false for
// unconditional jumps and returns.
func (i *Inst) Falls() bool {
	switch i.Class() {
	case ClassJump, ClassRet, ClassJumpInd, ClassIRet, ClassUndefined:
		return false
	case ClassFar: // far calls return
		return i.Opcode == 0xff && i.Reg() == 3
	}
	return true
}
