package guest

// FrameRule says how the caller's registers follow from those at some
// instruction: the canonical frame address (CFA), which is the caller's RSP, and
// where the return address and the caller's RBP are saved (DWARF 5, 6.4). What
// DWARF has no words for is what an interrupt leaves behind, and code that changes to
// another stack (Linux, arch/x86/include/asm/orc_types.h).
type FrameRule struct {
	Base     FrameRegister // what the CFA is relative to
	Indirect bool          // the CFA is relative to the word at Base + Inner instead
	Inner    int32
	CFA      int32 // its offset

	Return int32 // where the return address is, from the CFA
	RBP    int32 // where RBP is saved, from the CFA; 0 = RBP is the caller's
	AtRBP  bool  // RBP is saved at RBP + RBP instead

	Outer bool // there is no caller

	// Trap: there is no caller either but code that was interrupted, and at Return is
	// what that pushed: RIP, CS, RFLAGS, RSP and SS (SDM Vol. 3, 6.14.2). The stack may
	// be another one. With Full the CFA is the address of all its registers, a struct
	// pt_regs (x86.Regs as Linux has it in memory).
	Trap, Full bool
}

// FrameRegister is a register that a CFA is relative to.
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

// ptRegs is where struct pt_regs (Linux, arch/x86/include/asm/ptrace.h) has the registers
// that a CFA can be relative to, and what an interrupt pushed.
var ptRegs = [frameRegisters]int32{FrameRSP: 152, FrameRBP: 32, FrameR10: 56, FrameR13: 16, FrameRDI: 112, FrameRDX: 96}

const ptRegsRIP = 128

// MaxFrame, in bytes, bounds the distance from one frame to the next on one stack: stacks are
// not larger.
const MaxFrame = 8 << 20

// Frame is one activation on a stack.
type Frame struct {
	PC    uint64
	Exact bool // PC is the next instruction to run, not one behind a call
	User  bool // it runs at CPL3

	// Known registers. RSP and RBP always are.
	Regs  [frameRegisters]uint64
	Known bool // the others
}

// At returns the address by which the rule is found: a call may be the last
// instruction of its function.
func (f *Frame) At() GVA {
	if f.Exact {
		return GVA(f.PC)
	}
	return GVA(f.PC - 1)
}

// Caller goes from f to its caller, or to the code that was interrupted, by the rule
// for f.At(). It returns false, with f of no more use, where there is none or the stack
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
	// Stacks grow down, so that callers on the same one are above.
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
			if f.Regs[reg], ok = word(cfa + uint64(ptRegs[reg])); !ok {
				return false
			}
		}
	}
	f.User = cs&3 == 3
	return true
}
