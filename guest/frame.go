package guest

import "github.com/guestprobe/guestprobe/guest/x86"

// FrameRule says how the caller's registers follow from those at some instruction:
// the canonical frame address (CFA), which is the caller's RSP, and the places of the
// saved return address and the caller's RBP (DWARF 5, 6.4). It also describes frames
// that DWARF cannot: frames of interrupts, and of code that switches to another stack
// (Linux, arch/x86/include/asm/orc_types.h).
type FrameRule struct {
	Base     FrameRegister // the base of the CFA
	Indirect bool          // the CFA is relative to the word at Base + Inner instead
	Inner    int32
	CFA      int32 // its offset

	Return int32 // offset of the return address from the CFA
	RBP    int32 // offset of the saved RBP from the CFA; 0 = RBP is the caller's
	AtRBP  bool  // RBP is saved at RBP + RBP instead

	Outer bool // there is no caller

	// Trap: instead of a caller there is code that was interrupted, and at Return is
	// the frame pushed by the interrupt: RIP, CS, RFLAGS, RSP and SS (SDM Vol. 3,
	// 6.14.2). The stack may be another one. With Full the CFA is the address of all
	// its registers, a struct pt_regs (x86.Regs in Linux's memory layout).
	Trap, Full bool
}

// FrameRegister is a possible base register of a CFA.
type FrameRegister uint8

// The registers.
const (
	FrameRSP FrameRegister = iota
	FrameRBP
	FrameR10
	FrameR13
	FrameRDI
	FrameRDX
	frameRegisters
)

var frameRegs = [frameRegisters]x86.Reg64{FrameRSP: x86.RSP, FrameRBP: x86.RBP, FrameR10: x86.R10, FrameR13: x86.R13, FrameRDI: x86.RDI, FrameRDX: x86.RDX}

// GeneralReg returns the register as a general one; ok is false if it is not one.
func (r FrameRegister) GeneralReg() (g x86.Reg64, ok bool) {
	if r >= frameRegisters {
		return 0, false
	}
	return frameRegs[r], true
}

// MaxFrame, in bytes, bounds the distance from one frame to the next on one stack: stacks are
// not larger.
const MaxFrame = 8 << 20

// Frame is one activation on a stack.
type Frame struct {
	PC    uint64
	Exact bool // PC is the next instruction to run, not the one after a call
	User  bool // it runs at CPL3

	// Known registers. RSP and RBP always are.
	Regs  [frameRegisters]uint64
	Known bool // the others
}

// RuleAddr returns the address for looking up the rule: a call may be the last
// instruction of its function.
func (f *Frame) RuleAddr() GVA {
	if f.Exact {
		return GVA(f.PC)
	}
	return GVA(f.PC - 1)
}

// Caller replaces f by its caller, or by the code that was interrupted, using the
// rule for f.At(). It returns false, with f invalid, if f has no caller or the stack
// makes no sense. word reads a word of the stack with the rights of f. It allocates
// nothing.
func (f *Frame) Caller(r FrameRule, word func(addr uint64) (uint64, bool)) bool {
	if r.Outer || r.Base > FrameRBP && !f.Known {
		return false
	}
	sp, ok := f.Regs[FrameRSP], true
	cfa := f.Regs[r.Base]
	if r.Indirect {
		if cfa, ok = word(cfa + uint64(int64(r.Inner))); !ok {
			return false
		}
	}
	cfa += uint64(int64(r.CFA))
	if cfa%8 != 0 {
		return false
	}
	// Stacks grow down, so callers on the same stack are above.
	if !r.Trap && !r.Indirect && (cfa <= sp || cfa-sp > MaxFrame) {
		return false
	}
	at := cfa + uint64(int64(r.Return))
	if f.PC, ok = word(at); !ok {
		return false
	}
	if r.RBP != 0 || r.AtRBP {
		saved := cfa
		if r.AtRBP {
			saved = f.Regs[FrameRBP]
		}
		if f.Regs[FrameRBP], ok = word(saved + uint64(int64(r.RBP))); !ok {
			return false
		}
	}
	f.Exact = r.Trap
	if !r.Trap {
		f.Regs[FrameRSP], f.Known = cfa, false
		return true
	}
	cs, ok := word(at + 8)
	if !ok {
		return false
	}
	if f.Regs[FrameRSP], ok = word(at + 24); !ok {
		return false
	}
	if r.Full {
		f.Known = true
		for reg := FrameR10; reg < frameRegisters; reg++ {
			if f.Regs[reg], ok = word(cfa + uint64(x86.PtReg(frameRegs[reg]))); !ok {
				return false
			}
		}
	}
	f.User = cs&3 == 3
	return true
}
