package x86

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

// Regs are the general registers of one vCPU as a trap saved them: what a
// probe handler reads and changes, and what Emulate works on. RIP and RFLAGS
// are full 64-bit values.
//
// The fields stand in the order of struct kvm_regs (KVM API document, section
// 4.11), so that kvm/machine can convert a pointer into the shared
// kvm_run page to *Regs without copying anything; a compile-time conversion
// there fails when the two lists drift apart.
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

// All returns all registers, in the order of the fields.
func (r *Regs) All() [18]uint64 {
	return [...]uint64{r.RAX, r.RBX, r.RCX, r.RDX, r.RSI, r.RDI, r.RSP, r.RBP, r.R8, r.R9, r.R10, r.R11, r.R12, r.R13, r.R14, r.R15, r.RIP, r.RFLAGS}
}

// RegNames are the names of the fields of Regs, in the order of All, as debuggers and the API have them.
var RegNames = [18]string{"rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rsp", "rbp", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip", "rflags"}

// Fields returns pointers to the fields, in the order of All.
func (r *Regs) Fields() [18]*uint64 {
	return [...]*uint64{&r.RAX, &r.RBX, &r.RCX, &r.RDX, &r.RSI, &r.RDI, &r.RSP, &r.RBP, &r.R8, &r.R9, &r.R10, &r.R11, &r.R12, &r.R13, &r.R14, &r.R15, &r.RIP, &r.RFLAGS}
}

// String returns the register's name, one of RegNames.
func (n Reg64) String() string {
	// The fields of Regs come in another order than the processor's numbers.
	return RegNames[[...]int{RAX: 0, RCX: 2, RDX: 3, RBX: 1, RSP: 6, RBP: 7, RSI: 4, RDI: 5, R8: 8, R9: 9, R10: 10, R11: 11, R12: 12, R13: 13, R14: 14, R15: 15}[n&15]]
}

// Memory is guest virtual memory as an emulated instruction sees it. Both
// methods transfer all of p or report an error and leave it undefined how much
// was transferred. They must fail where the interrupted code could not make the
// access itself (user code on a supervisor page, a write to a read-only page,
// and so on), since no CPU checks it for them. They are given at most 8 bytes
// and must not keep p.
type Memory interface {
	Read(addr uint64, p []byte) error
	Write(addr uint64, p []byte) error
}
