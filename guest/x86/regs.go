package x86

import (
	"slices"
	"strings"
)

// Reg64 is a general register, numbered as the CPU does.
type Reg64 uint8

// The general registers.
const (
	RAX Reg64 = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
)

// Regs are the general registers of one vCPU as saved by a trap: probe handlers read
// and change them, and Emulate works on them. RIP and RFLAGS are full 64-bit values.
//
// The fields are in the order of struct kvm_regs (KVM API document, section 4.11), so
// that kvm/machine can convert a pointer into the shared kvm_run page to *Regs
// without copying; a compile-time conversion there fails if the two lists differ.
type Regs struct {
	RAX    uint64
	RBX    uint64
	RCX    uint64
	RDX    uint64
	RSI    uint64
	RDI    uint64
	RSP    uint64
	RBP    uint64
	R8     uint64
	R9     uint64
	R10    uint64
	R11    uint64
	R12    uint64
	R13    uint64
	R14    uint64
	R15    uint64
	RIP    uint64
	RFLAGS uint64
}

// fieldRegs are the general registers in the order of the fields of Regs.
var fieldRegs = [...]Reg64{RAX, RBX, RCX, RDX, RSI, RDI, RSP, RBP, R8, R9, R10, R11, R12, R13, R14, R15}

// DwarfRegs are the general registers by their numbers in debug information (System V ABI for AMD64, figure 3.36).
var DwarfRegs = [...]Reg64{RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R8, R9, R10, R11, R12, R13, R14, R15}

// DebuggerRegs are the general registers in the order of GDB and of its protocol (features/i386/64bit-core.xml).
var DebuggerRegs = [...]Reg64{RAX, RBX, RCX, RDX, RSI, RDI, RBP, RSP, R8, R9, R10, R11, R12, R13, R14, R15}

// ArgRegs are the registers of the first six integer arguments of a function (System V ABI, AMD64 supplement, 3.2.3).
var ArgRegs = [...]Reg64{RDI, RSI, RDX, RCX, R8, R9}

// Args returns the first six integer arguments of a function at its entry: ArgRegs.
func (r *Regs) Args() [len(ArgRegs)]uint64 {
	return [...]uint64{r.RDI, r.RSI, r.RDX, r.RCX, r.R8, r.R9}
}

// Values returns all registers, in the order of the fields.
func (r *Regs) Values() [18]uint64 {
	return [...]uint64{r.RAX, r.RBX, r.RCX, r.RDX, r.RSI, r.RDI, r.RSP, r.RBP, r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.RIP, r.RFLAGS}
}

// FindReg returns the index in RegNames of a register, by its name in debuggers or in
// struct pt_regs, with or without a percent sign: rdi, di, %rdi and %di are the same.
func FindReg(name string) (i int, ok bool) {
	name = strings.TrimPrefix(name, "%")
	if i := slices.Index(RegNames[:], name); i >= 0 {
		return i, true
	}
	for i, at := range PtFields {
		if PtNames[at/8] == name {
			return i, true
		}
	}
	return 0, false
}

// FindPtReg is FindReg for all of struct pt_regs: it returns the index in PtNames, which also has
// orig_ax, cs and ss.
func FindPtReg(name string) (i int, ok bool) {
	if i, ok := FindReg(name); ok {
		return PtFields[i] / 8, true
	}
	i = slices.Index(PtNames[:], strings.TrimPrefix(name, "%"))
	return max(i, 0), i >= 0
}

// RegNames are the names of the fields of Regs, in the order of Values, as used by
// debuggers and the API.
var RegNames = [18]string{"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip", "rflags"}

// Fields returns pointers to the fields, in the order of Values.
func (r *Regs) Fields() [18]*uint64 {
	return [...]*uint64{&r.RAX, &r.RBX, &r.RCX, &r.RDX, &r.RSI, &r.RDI, &r.RSP, &r.RBP, &r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15, &r.RIP, &r.RFLAGS}
}

// String returns the register's name, one of RegNames.
func (n Reg64) String() string {
	return RegNames[slices.Index(fieldRegs[:], n&15)]
}

// Memory is guest virtual memory as an emulated instruction sees it. Both methods
// transfer all of p or report an error and leave it undefined how much was
// transferred. They must fail if the interrupted code could not make the access
// itself (user code on a supervisor page, a write to a read-only page, and so on),
// since no CPU checks it for them. They get at most 8 bytes and must not keep p.
type Memory interface {
	Read(addr uint64, p []byte) error
	Write(addr uint64, p []byte) error
}
