package probe

import "github.com/guestprobe/guestprobe/guest"

// UserMemory is what a Target adds to access guest memory with no more rights
// than code at CPL3 has. The engine uses it for the memory operands of an
// emulated user instruction: without it a user task could reach supervisor
// memory through a probed push. Where a Target has no UserMemory, no
// instruction that touches memory is emulated at CPL3.
//
// Like Target.ReadMemory and WriteMemory, the methods transfer all of p or
// fail, take no lock, and allocate only to fail. The errors of all four should
// wrap a *guest.PageFaultError: from it the engine makes the exception that the
// processor would have raised.
type UserMemory interface {
	ReadUser(root guest.GPA, addr guest.GVA, p []byte) error
	WriteUser(root guest.GPA, addr guest.GVA, p []byte) error
}

// GuestCaller is what a Target adds when a handler may call a guest function
// on its own vCPU: CallGuest saves all registers of the vCPU, runs the function
// at addr with the arguments in RDI, RSI, RDX, RCX, R8 and R9 (System V ABI)
// at CPL0 on the interrupted stack (below its red zone), restores the registers
// and returns the function's RAX. Probes that are hit meanwhile reach
// Engine.Hit in the ordinary way and count as missed.
type GuestCaller interface {
	CallGuest(cpu int, addr guest.GVA, args []uint64) (uint64, error)
}

// ThreadChecker is what a Target adds when it can tell whether the caller is on
// a vCPU's own thread, and so inside a handler. The engine asks it before it
// takes its lock, so that a handler that registers or unregisters gets
// ErrInHandler at once; without it only Stop can refuse.
type ThreadChecker interface {
	OnVCPU() bool
}
