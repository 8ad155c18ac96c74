package x86

// Class is the effect of an instruction on control flow, interrupts and privilege,
// which decides how a probe on it can be run.
type Class uint8

// The classes.
const (
	ClassOther         Class = iota // continues at the next instruction, unless it faults
	ClassNop                        // changes nothing but RIP: nop forms, prefetches, endbr
	ClassJump                       // near direct jump
	ClassCondJump                   // jcc
	ClassLoop                       // loop, loope, loopne, jrcxz
	ClassCall                       // near direct call
	ClassRet                        // near return
	ClassJumpInd                    // near jump through register or memory
	ClassCallInd                    // near call through register or memory
	ClassFar                        // far jump, call, return
	ClassIRet                       // iret
	ClassInterrupt                  // int3, int n, int1
	ClassUndefined                  // ud0, ud1, ud2
	ClassSyscall                    // syscall
	ClassTransfer                   // sysenter, sysexit, sysret, rsm, getsec, skinit, enclu, uiret ...
	ClassVMEntry                    // vmlaunch, vmresume, vmrun, seamcall
	ClassWait                       // hlt, mwait, mwaitx, umwait, tpause
	ClassInterruptFlag              // cli, sti, pushf, popf
	ClassLoadSS                     // mov ss: delays interrupts and debug traps
	ClassTransaction                // xbegin
)

var classNames = [...]string{
	"other", "nop", "jump", "cond_jump", "loop", "call", "ret", "jump_indirect", "call_indirect", "far", "iret",
	"interrupt", "undefined", "syscall", "transfer", "vm_entry", "wait", "interrupt_flag", "load_ss", "transaction",
}

// String returns the class as in "guestprobe disas".
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return "invalid"
}

// Class returns the class of the instruction.
func (i *Inst) Class() Class {
	switch {
	case i.legacy(Map0):
		return i.class0()
	case i.legacy(Map0F):
		return i.class0F()
	}
	return ClassOther
}

// class0 classifies the one-byte map.
func (i *Inst) class0() Class {
	switch op := i.Opcode; {
	case op>>4 == 7:
		return ClassCondJump
	case op >= 0xe0 && op <= 0xe3:
		return ClassLoop
	}
	switch i.Opcode {
	case 0x8e:
		if i.Reg() == 2 {
			return ClassLoadSS
		}
	case 0x90: // with REX.B it is xchg r8, rax
		if i.base == 0 {
			return ClassNop
		}
	case 0xa1:
		if i.Enc == REX2 {
			return ClassJump // jmpabs
		}
	case 0x9c, 0x9d, 0xfa, 0xfb:
		return ClassInterruptFlag
	case 0xc2, 0xc3:
		return ClassRet
	case 0xc7:
		if i.ModRM == 0xf8 {
			return ClassTransaction
		}
	case 0xca, 0xcb:
		return ClassFar
	case 0xcc, 0xcd, 0xf1:
		return ClassInterrupt
	case 0xcf:
		return ClassIRet
	case 0xe8:
		return ClassCall
	case 0xe9, 0xeb:
		return ClassJump
	case 0xf4:
		return ClassWait
	case 0xff:
		switch i.Reg() {
		case 2:
			return ClassCallInd
		case 3, 5:
			return ClassFar
		case 4:
			return ClassJumpInd
		}
	}
	return ClassOther
}

// class0F classifies the 0F map.
func (i *Inst) class0F() Class {
	switch op := i.Opcode; {
	case op>>4 == 8:
		return ClassCondJump
	case op >= 0x18 && op <= 0x1f:
		return i.classHint()
	}
	switch i.Opcode {
	case 0x01:
		return i.class0F01()
	case 0x05:
		return ClassSyscall
	case 0x07, 0x34, 0x35, 0x37, 0xaa: // sysret, sysenter, sysexit, getsec, rsm
		return ClassTransfer
	case 0x0b, 0xb9, 0xff:
		return ClassUndefined
	case 0x0d:
		if i.Mod() != 3 {
			return ClassNop // prefetch, prefetchw
		}
	case 0xae:
		// umwait (F2) and tpause (66) are group 15 /6 with a register.
		if i.Mod() == 3 && i.Reg() == 6 && (i.pp == ppRepNE || i.pp == ppOpSize) {
			return ClassWait
		}
	}
	return ClassOther
}

// classHint classifies 0F 18 to 0F 1F, the hint nops (SDM Vol. 2, table A-3 and NOP;
// APM Vol. 3, NOP). Some have been given a meaning: those are left to the CPU, which
// knows whether it supports it.
func (i *Inst) classHint() Class {
	switch i.Opcode {
	case 0x1a, 0x1b: // MPX
		return ClassOther
	case 0x1c: // cldemote is a hint; others are nops
		return ClassNop
	case 0x1e:
		if i.pp == ppRep && i.ModRM != 0xfa && i.ModRM != 0xfb && i.Mod() == 3 {
			return ClassOther // rdssp (reg 1), and possible later ones
		}
	}
	return ClassNop
}

// IsEndbr reports whether the instruction is endbr64 or endbr32.
func (i *Inst) IsEndbr() bool {
	return i.legacy(Map0F) && i.Opcode == 0x1e && i.pp == ppRep && (i.ModRM == 0xfa || i.ModRM == 0xfb)
}

// class0F01 classifies group 7 with a register operand (SDM Vol. 2, table A-6;
// APM Vol. 3, table A-8). With memory it is sgdt and the like.
func (i *Inst) class0F01() Class {
	if i.Mod() != 3 {
		return ClassOther
	}
	switch i.ModRM {
	case 0xc0, 0xd7: // enclv, enclu
		return ClassTransfer
	case 0xc2, 0xc3, 0xd8: // vmlaunch, vmresume, vmrun
		return ClassVMEntry
	case 0xc9, 0xfb: // mwait, mwaitx
		return ClassWait
	case 0xca: // clac; eretu (F3), erets (F2)
		if i.pp == ppRep || i.pp == ppRepNE {
			return ClassTransfer
		}
	case 0xcd: // seamret
		if i.pp == ppOpSize {
			return ClassTransfer
		}
	case 0xcf: // encls; seamcall (66)
		if i.pp == ppOpSize {
			return ClassVMEntry
		}
		return ClassTransfer
	case 0xde: // skinit
		return ClassTransfer
	case 0xec: // uiret
		if i.pp == ppRep {
			return ClassTransfer
		}
	}
	return ClassOther
}

// Repeats reports whether it is a string instruction with a prefix that repeats it
// (SDM Vol. 2, REP): interrupts, and the traps of TF, occur between iterations.
func (i *Inst) Repeats() bool {
	switch op := i.Opcode; {
	case !i.legacy(Map0) || i.Prefix&(PrefixRep|PrefixRepNE) == 0:
		return false
	default:
		return op >= 0x6c && op <= 0x6f || op >= 0xa4 && op <= 0xa7 || op >= 0xaa && op <= 0xaf
	}
}
