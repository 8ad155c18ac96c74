package event

import (
	"fmt"
	"strings"

	"github.com/guestprobe/guestprobe/guest/x86"
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
	// Sum is the number Of plus Offset, of a variable that code has not in one place.
	Sum struct {
		Offset int64
		Of     Fetch
	}
	// Access is one of the numbers of a watch's access, which its events have before
	// the arguments.
	Access struct{ Which WatchedNumber }
	// Deref is what stands in memory at Of plus Offset. @X is a Deref of X.
	// User says that the address was meant to be a user-space one; guest
	// memory is read with the rights of the interrupted code either way.
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
func (Sum) isFetch()          {}
func (Access) isFetch()       {}
func (Deref) isFetch()        {}

// Reg is a register of struct pt_regs (arch/x86/include/asm/ptrace.h).
type Reg uint8

// The registers.
const (
	RegR15    Reg = x86.PtR15 / 8
	RegR14    Reg = x86.PtR14 / 8
	RegR13    Reg = x86.PtR13 / 8
	RegR12    Reg = x86.PtR12 / 8
	RegBP     Reg = x86.PtBP / 8
	RegBX     Reg = x86.PtBX / 8
	RegR11    Reg = x86.PtR11 / 8
	RegR10    Reg = x86.PtR10 / 8
	RegR9     Reg = x86.PtR9 / 8
	RegR8     Reg = x86.PtR8 / 8
	RegAX     Reg = x86.PtAX / 8
	RegCX     Reg = x86.PtCX / 8
	RegDX     Reg = x86.PtDX / 8
	RegSI     Reg = x86.PtSI / 8
	RegDI     Reg = x86.PtDI / 8
	RegOrigAX Reg = x86.PtOrigAX / 8 // -1 at a breakpoint, as in the kernel
	RegIP     Reg = x86.PtIP / 8     // one past the probed address in a pre handler, as in the kernel
	RegCS     Reg = x86.PtCS / 8     // the selector of this privilege level by the boot contract
	RegFlags  Reg = x86.PtFlags / 8
	RegSP     Reg = x86.PtSP / 8
	RegSS     Reg = x86.PtSS / 8 // likewise
	numRegs       = x86.PtRegsSize / 8
)

// String returns the register's name in the language, without the percent.
func (r Reg) String() string {
	if r < numRegs {
		return x86.PtNames[r]
	}
	return fmt.Sprintf("Reg(%d)", uint8(r))
}

// regByName finds a register of pt_regs by the kernel's name or the processor's: di or rdi,
// not edi.
func regByName(name string) (Reg, bool) {
	if strings.HasPrefix(name, "%") {
		return 0, false
	}
	i, ok := x86.FindPtReg(name)
	return Reg(i), ok
}

// ArgRegs are the registers of the first six integer arguments.
var ArgRegs = func() (regs [len(x86.ArgRegs)]Reg) {
	for i, r := range x86.ArgRegs {
		regs[i] = RegOf(r)
	}
	return regs
}()

// RegOf returns the register of struct pt_regs for a general register.
func RegOf(r x86.Reg64) Reg { return Reg(x86.PtReg(r) / 8) }

// splitOffset splits SYM+OFF and SYM-OFF.
func splitOffset(s string) (symbol string, offset int64, ok bool) {
	i := strings.IndexAny(s, "+-")
	if i < 0 {
		return s, 0, true
	}
	offset, ok = parseInt(s[i:])
	return s[:i], offset, ok
}
