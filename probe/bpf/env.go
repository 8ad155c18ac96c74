package bpf

import (
	"errors"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// ErrProbed is the error of Env.Poke for the text of a probe.
var ErrProbed = errors.New("a probed instruction is there")

// SettableReg reports whether a program may change the register with that number in
// struct pt_regs: the general registers except the stack pointer, and the status
// flags.
func SettableReg(n uint64) bool { return n < uint64(len(x86.PtRegs)) || n == x86.PtFlags/8 }

// Env is the host side of the helpers: access to the machine and the guest for a
// program that runs at an exit. One Env serves one vCPU; its methods are called on
// that vCPU's thread, take no lock that is held for long, and allocate nothing when
// they succeed. An error becomes a negative errno in the program and has no other
// effect.
type Env interface {
	// Now returns the time in nanoseconds on the clock of ktime_get_ns.
	Now() uint64
	// PIDTGID returns the current task's thread group in the upper and its
	// thread ID in the lower half.
	PIDTGID() uint64
	// Comm fills in the name of the current task, padded with zeros.
	Comm(*[16]byte)
	// UIDGID returns the current task's group in the upper and its user in the lower half.
	UIDGID() uint64
	// Task returns the address of the current task's structure in the kernel.
	Task() uint64
	// TaskLife returns the life of the task whose structure in the kernel is at an
	// address; ok is false if it is not known.
	TaskLife(task uint64) (life TaskLife, ok bool)
	// PIDNamespace returns the current task as its own PID namespace has it; ok is
	// false if it is not known.
	PIDNamespace() (in PIDNamespace, ok bool)
	// CgroupID returns the number of the cgroup that the current task is in.
	CgroupID() uint64
	// Space returns the physical address of the top-level page table in use (CR3).
	Space() uint64
	// ReadKernel and ReadUser read all of p from guest memory, or fail.
	ReadKernel(addr uint64, p []byte) error
	ReadUser(addr uint64, p []byte) error
	// Stack fills pcs with return addresses, innermost first and the first skip
	// omitted, of the guest's kernel or user stack, and returns their number.
	Stack(pcs []uint64, skip int, user bool) (int, error)
	// FileCode returns the guest image's address for the code of a file at the user
	// address addr, or addr if it has none.
	FileCode(addr uint64) uint64
	// HasBuildID reports whether a result of FileCode is in a file with a build ID.
	HasBuildID(addr uint64) bool
	// FuncIP returns the address of the probed function.
	FuncIP() uint64
	// Cookie returns the cookie of the probe.
	Cookie() uint64
	// WatchNumber returns a number of the access that a watch reports: the value
	// before (0), the value now (1), whether it was a write (2).
	WatchNumber(number uint64) uint64
	// EntryArg reads argument n, from 1, as the function's entry had it on the
	// stack: 8 bytes.
	EntryArg(n uint64, p []byte) error
	// OverrideReturn makes the probed function return v at once.
	OverrideReturn(v uint64) error
	// SetReg sets a register of the guest, by its number in struct pt_regs, to v. It
	// fails unless it is a SettableReg.
	SetReg(n, v uint64) error
	// Stop stops the vCPU at the hit when that has been handled, or, if all is set,
	// all vCPUs.
	Stop(all bool) error
	// Poke writes all of p to guest memory, or nothing. It fails with ErrProbed if a
	// probed instruction would be changed.
	Poke(addr uint64, p []byte) error
	// PokeUser is Poke for memory of the current process, with the rights of user code.
	PokeUser(addr uint64, p []byte) error
	// Trace prints a line of trace_printk. It must not keep msg.
	Trace(msg []byte)
}

// TaskLife identifies one of the tasks that have the same address one after another.
type TaskLife struct {
	ID        uint64
	PID, TGID uint32
	Gone      bool // the kernel frees it, or has
}

// PIDNamespace is a task as its own PID namespace has it: its numbers, and the device and
// inode of the namespace's file.
type PIDNamespace struct {
	PID, TGID     uint32
	Device, Inode uint64
}

// NoEnv is an Env without a guest: no memory, no task, time zero. Embed it to
// implement only some methods.
type NoEnv struct{}

var _ Env = NoEnv{}

// Now returns 0.
func (NoEnv) Now() uint64 { return 0 }

// PIDTGID returns 0.
func (NoEnv) PIDTGID() uint64 { return 0 }

// Comm does nothing.
func (NoEnv) Comm(*[16]byte) {}

// UIDGID returns 0.
func (NoEnv) UIDGID() uint64 { return 0 }

// Task returns 0.
func (NoEnv) Task() uint64 { return 0 }

// TaskLife knows none.
func (NoEnv) TaskLife(uint64) (TaskLife, bool) { return TaskLife{}, false }

// PIDNamespace knows none.
func (NoEnv) PIDNamespace() (PIDNamespace, bool) { return PIDNamespace{}, false }

// CgroupID returns 0.
func (NoEnv) CgroupID() uint64 { return 0 }

// Space returns 0.
func (NoEnv) Space() uint64 { return 0 }

// ReadKernel fails.
func (NoEnv) ReadKernel(uint64, []byte) error { return errNoGuest }

// ReadUser fails.
func (NoEnv) ReadUser(uint64, []byte) error { return errNoGuest }

// Stack fails.
func (NoEnv) Stack([]uint64, int, bool) (int, error) { return 0, errNoGuest }

// FileCode returns addr.
func (NoEnv) FileCode(addr uint64) uint64 { return addr }

// HasBuildID implements Env.
func (NoEnv) HasBuildID(uint64) bool { return false }

// FuncIP returns 0.
func (NoEnv) FuncIP() uint64 { return 0 }

// Cookie returns 0.
func (NoEnv) Cookie() uint64 { return 0 }

// WatchNumber returns 0.
func (NoEnv) WatchNumber(uint64) uint64 { return 0 }

// EntryArg fails.
func (NoEnv) EntryArg(uint64, []byte) error { return errNoGuest }

// OverrideReturn fails.
func (NoEnv) OverrideReturn(uint64) error { return errNoGuest }

// SetReg fails.
func (NoEnv) SetReg(uint64, uint64) error { return errNoGuest }

// Stop fails.
func (NoEnv) Stop(bool) error { return errNoGuest }

// Poke fails.
func (NoEnv) Poke(uint64, []byte) error { return errNoGuest }

// PokeUser fails.
func (NoEnv) PokeUser(uint64, []byte) error { return errNoGuest }

// Trace does nothing.
func (NoEnv) Trace([]byte) {}
