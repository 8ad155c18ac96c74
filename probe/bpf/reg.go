package bpf

import "github.com/cilium/ebpf/asm"

// Reg is a register of the eBPF machine.
type Reg = asm.Register

// The registers (RFC 9669, section 2.1): R0 holds results, R1 to R5 arguments, R6 to R9
// are kept by calls, R10 is the read-only frame pointer.
const (
	R0  = asm.R0
	R1  = asm.R1
	R2  = asm.R2
	R3  = asm.R3
	R4  = asm.R4
	R5  = asm.R5
	R6  = asm.R6
	R7  = asm.R7
	R8  = asm.R8
	R9  = asm.R9
	R10 = asm.R10

	numRegs = 11
)
