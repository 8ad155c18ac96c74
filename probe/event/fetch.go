package event

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/probe"
)

// Fetch is a fetch expression: where a value comes from. It is one of the
// types below; a consumer switches over them.
type Fetch interface{ isFetch() }

// The fetch expressions.
type (
	// Register is %REG.
	Register struct{ Reg Reg }
	// StackPointer is $stack.
	StackPointer struct{}
	// StackSlot is $stackN: the Nth 8-byte word above the stack pointer.
	StackSlot struct{ N int }
	// FuncArg is $argN: the Nth integer argument by the System V ABI, N from
	// 1, as it was at the function's entry, in a return probe too.
	FuncArg struct{ N int }
	// RetVal is $retval: RAX at the return.
	RetVal struct{}
	// Comm is $comm: the name of the running task.
	Comm struct{}
	// Immediate is \NUM.
	Immediate struct{ Value uint64 }
	// Literal is \"TEXT".
	Literal struct{ Text string }
	// SymbolAddr is the address of a symbol plus an offset: what @SYM+OFF
	// reads at. Name is as written, with its offset if that is not a number.
	SymbolAddr struct {
		Name   string
		Offset int64
	}
	// Deref is what stands in memory at Of plus Offset. @X is a Deref of X.
	// User says that the address was meant to be a user-space one; guest
	// memory is read through the page tables of the interrupted code either
	// way.
	Deref struct {
		Offset int64
		User   bool
		Of     Fetch
	}
)

func (Register) isFetch()     {}
func (StackPointer) isFetch() {}
func (StackSlot) isFetch()    {}
func (FuncArg) isFetch()      {}
func (RetVal) isFetch()       {}
func (Comm) isFetch()         {}
func (Immediate) isFetch()    {}
func (Literal) isFetch()      {}
func (SymbolAddr) isFetch()   {}
func (Deref) isFetch()        {}

// Reg is a register of struct pt_regs (arch/x86/include/asm/ptrace.h).
type Reg uint8

// The registers.
const (
	RegR15 Reg = iota
	RegR14
	RegR13
	RegR12
	RegBP
	RegBX
	RegR11
	RegR10
	RegR9
	RegR8
	RegAX
	RegCX
	RegDX
	RegSI
	RegDI
	RegOrigAX // -1 at a breakpoint, as in the kernel
	RegIP     // one behind the probed address in a pre handler, as in the kernel
	RegCS     // the selector that the boot contract gives this privilege level
	RegFlags
	RegSP
	RegSS // likewise
	numRegs
)

var regNames = [numRegs]string{
	"r15", "r14", "r13", "r12", "bp", "bx", "r11", "r10", "r9", "r8", "ax", "cx", "dx", "si", "di",
	"orig_ax", "ip", "cs", "flags", "sp", "ss",
}

// String returns the register's name in the language, without the percent.
func (r Reg) String() string {
	if r < numRegs {
		return regNames[r]
	}
	return fmt.Sprintf("Reg(%d)", uint8(r))
}

// regByName finds a register: those of pt_regs only, so neither rax nor eax.
func regByName(name string) (Reg, bool) {
	for r, n := range regNames {
		if n == name {
			return Reg(r), true
		}
	}
	return 0, false
}

// argRegs are the registers of the first six integer arguments (System V ABI,
// AMD64 supplement, 3.2.3).
var argRegs = [...]Reg{RegDI, RegSI, RegDX, RegCX, RegR8, RegR9}

// value returns the register's value. cpl stands in for the segment
// registers, which a probe context does not have: 0x08 and 0x10, 0x23 and 0x1b
// are those of the table that a guest is booted with.
func (r Reg) value(regs *probe.Regs, cpl uint8) uint64 {
	switch r {
	case RegR15:
		return regs.R15
	case RegR14:
		return regs.R14
	case RegR13:
		return regs.R13
	case RegR12:
		return regs.R12
	case RegBP:
		return regs.RBP
	case RegBX:
		return regs.RBX
	case RegR11:
		return regs.R11
	case RegR10:
		return regs.R10
	case RegR9:
		return regs.R9
	case RegR8:
		return regs.R8
	case RegAX:
		return regs.RAX
	case RegCX:
		return regs.RCX
	case RegDX:
		return regs.RDX
	case RegSI:
		return regs.RSI
	case RegDI:
		return regs.RDI
	case RegOrigAX:
		return ^uint64(0)
	case RegIP:
		return regs.RIP
	case RegCS:
		if cpl == 0 {
			return 0x08
		}
		return 0x23
	case RegFlags:
		return regs.RFLAGS
	case RegSP:
		return regs.RSP
	case RegSS:
		if cpl == 0 {
			return 0x10
		}
		return 0x1b
	}
	return 0
}

// split cuts SYM+OFF and SYM-OFF.
func splitOffset(s string) (symbol string, offset int64, ok bool) {
	i := strings.IndexAny(s, "+-")
	if i < 0 {
		return s, 0, true
	}
	offset, ok = parseInt(s[i:])
	return s[:i], offset, ok
}
