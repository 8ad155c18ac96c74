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

// String returns the register's name in the language, without the percent.
func (r Reg) String() string {
	if r < numRegs {
		return x86.PtNames[r]
	}
	return fmt.Sprintf("Reg(%d)", uint8(r))
}

// regByName finds a register: those of pt_regs only, so neither rax nor eax.
func regByName(name string) (Reg, bool) {
	for r, n := range x86.PtNames {
		if n == name {
			return Reg(r), true
		}
	}
	return 0, false
}

// ArgRegs are the registers of the first six integer arguments (System V ABI,
// AMD64 supplement, 3.2.3).
var ArgRegs = [...]Reg{RegDI, RegSI, RegDX, RegCX, RegR8, RegR9}

// splitOffset cuts SYM+OFF and SYM-OFF.
func splitOffset(s string) (symbol string, offset int64, ok bool) {
	i := strings.IndexAny(s, "+-")
	if i < 0 {
		return s, 0, true
	}
	offset, ok = parseInt(s[i:])
	return s[:i], offset, ok
}
