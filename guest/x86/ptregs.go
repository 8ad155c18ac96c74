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

// PtReg returns where a general register stands in struct pt_regs.
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

// CallArgs is where in struct pt_regs the first six integer arguments of a
// function stand when it is entered (System V ABI, AMD64 supplement, 3.2.3).
var CallArgs = [6]int{PtDI, PtSI, PtDX, PtCX, PtR8, PtR9}
