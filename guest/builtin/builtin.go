package builtin

import (
	_ "embed"
	"slices"
)

//go:embed builtin.elf
var image []byte

// ELF returns a copy of the built-in guest: a static ELF64 with symbols and
// DWARF and BTF that follows the boot contract. src and build.sh are its sources;
// build.sh builds it again.
func ELF() []byte { return slices.Clone(image) }

// MinRAM is the smallest memory, in bytes, that the built-in guest fits into with
// up to 16 vCPUs, MinRAMMax with guest.MaxVCPUs. With less it says so on the
// console and exits with code ExitBoot.
const (
	MinRAM    = 8 << 20
	MinRAMMax = 16 << 20
)

// Options are the words of the command line that the built-in guest knows,
// with what they do. It ignores others.
var Options = []struct{ Name, Text string }{
	{"rounds=N", "end with exit code 0 (or ExitFailed) when each vCPU has done N kernel and N user rounds, after a line `result cpu=K sum=...` per vCPU that depends on N only"},
	{"busy", "do not sleep between rounds (rounds= implies it)"},
	{"quiet", "print results and failures only, after the first line"},
	{"nouser", "start no user tasks"},
	{"idle", "start no workload: only the timer, the scheduler and the call service"},
	{"bench", "like idle, and a user task per vCPU that serves user_bench_mailbox"},
	{"int3", "execute an int3 of the guest's own in each round, at CPL0 and at CPL3; foreign_bp_count counts them"},
	{"alias", "map the user program twice in the second address space, and call user_hot at its second address too"},
	{"crash=HOW", "end badly at boot: triple, panic, pf, gp, ud or df at CPL0, user (a page fault at CPL3), hang or hlt with interrupts off, exit (code 3), selfcheck (report a failure and continue)"},
}

// MailboxFault is the offset of the u64 after the call service's result
// (guest.MailboxRet): 0 when the function returned, 0x100 + vector when an
// exception ended it, 0x200 when it ended its task (the result is then the
// task's exit code).
const MailboxFault = 0x58

// Exit codes of the built-in guest, as it writes them to the exit port.
const (
	// ExitOK ends a workload of rounds=N without a failed self-check.
	ExitOK = 0
	// ExitFailed ends a workload of rounds=N after a failed self-check.
	ExitFailed = 1
	// ExitPanic follows a panic, whose registers are on the console.
	ExitPanic = 101
	// ExitBoot means that the guest cannot start on what the boot-info block says;
	// the console has the reason.
	ExitBoot = 102
)

// The guest profile: who runs on a vCPU is found from the interrupted RSP
// alone, at CPL0 and at CPL3. Every stack of the guest is StackSize bytes,
// aligned to that, and begins with a struct stack_info (src/include/abi.h): at
// RSP &^ (StackSize - 1) the u64 StackMagic, and after it the fields below.
// Stacks that belong to no task, or to one that is gone, have no magic.
const (
	StackSize  = 8192
	StackMagic = 0x314b434154535047 // "GPSTACK1"

	StackInfoTask = 8  // u64: kernel address of the task structure
	StackInfoCPU  = 16 // u32: vCPU number
	StackInfoPID  = 20 // u32
	StackInfoTGID = 24 // u32
	StackInfoComm = 32 // 16 bytes, padded with NULs
)

// noteName and noteSources identify the ELF note that holds the hash of the
// sources, 64 hexadecimal digits.
const (
	noteName    = "guestprobe"
	noteSources = 1
)
