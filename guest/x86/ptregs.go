package x86

// Offsets in struct pt_regs of x86-64 Linux (arch/x86/include/asm/ptrace.h),
// which is the context of handlers and programs, and its size in bytes.
const (
	PtR15 = 8 * iota
	PtR14
	PtR13
	PtR12
	PtBP
	PtBX
	PtR11
	PtR10
	PtR9
	PtR8
	PtAX
	PtCX
	PtDX
	PtSI
	PtDI
	PtOrigAX
	PtIP
	PtCS
	PtFlags
	PtSP
	PtSS

	PtRegsSize
)

// PtRegs are the general registers at the start of struct pt_regs, in its order.
var PtRegs = [...]Reg64{PtR15 / 8: R15, PtR14 / 8: R14, PtR13 / 8: R13, PtR12 / 8: R12, PtBP / 8: RBP, PtBX / 8: RBX,
	PtR11 / 8: R11, PtR10 / 8: R10, PtR9 / 8: R9, PtR8 / 8: R8, PtAX / 8: RAX, PtCX / 8: RCX, PtDX / 8: RDX, PtSI / 8: RSI, PtDI / 8: RDI}

// PtNames are the kernel's names of the fields of struct pt_regs, in its order.
var PtNames = [PtRegsSize / 8]string{"r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
	"orig_ax", "ip", "cs", "flags", "sp", "ss"}

// PtReg returns the offset of a general register in struct pt_regs.
func PtReg(r Reg64) int {
	if r == RSP {
		return PtSP
	}
	for i, x := range PtRegs {
		if x == r {
			return 8 * i
		}
	}
	panic("BUG: no such register in struct pt_regs")
}

// CallArgs are the offsets in struct pt_regs of the first six integer arguments of a
// function at its entry: ArgRegs.
var CallArgs = func() (at [len(ArgRegs)]int) {
	for i, r := range ArgRegs {
		at[i] = PtReg(r)
	}
	return at
}()

// PtFields are the offsets in struct pt_regs of the fields of Regs, in the order of
// Values.
var PtFields = func() (at [len(RegNames)]int) {
	for i, r := range fieldRegs {
		at[i] = PtReg(r)
	}
	at[len(fieldRegs)], at[len(fieldRegs)+1] = PtIP, PtFlags
	return at
}()
