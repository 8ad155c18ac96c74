package probe

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Regs are the saved general registers of a vCPU.
type Regs = insn.Regs

// Target is the guest as the engine needs it. kvm/machine implements it
// over KVM, probetest.Fake in plain Go.
type Target interface {
	// NumCPU returns the number of vCPUs, fixed for the life of the target.
	NumCPU() int

	// ReadMemory and WriteMemory access guest virtual memory through the page
	// tables at root; root 0 stands for the kernel's tables that the guest was
	// booted with. They transfer all of p or fail. They take no lock and
	// allocate nothing when they succeed: the hit path uses them. WriteMemory
	// is for data (a handler's write, an emulated push); text goes through
	// World.PatchText.
	ReadMemory(root guest.GPA, addr guest.GVA, p []byte) error
	WriteMemory(root guest.GPA, addr guest.GVA, p []byte) error

	// Stop brings every vCPU out of guest mode and between two hits, runs f,
	// and lets them go on, whatever f returned. It must not be called from a
	// handler: that vCPU could never come to rest (ErrInHandler).
	Stop(f func(World) error) error

	// AllocExec returns size bytes of guest memory that the guest can execute
	// at the privilege of the text at near and whose every byte is within
	// rel32 reach of near (arithmetic modulo 2^64). It is never given back:
	// the engine reuses what it has. WriteExec fills it; at that time no vCPU
	// executes there.
	AllocExec(near guest.GVA, size int) (guest.GVA, error)
	WriteExec(addr guest.GVA, p []byte) error

	// Symbols returns the names of the guest's current image.
	Symbols() Symbols
}

// Symbols is what the engine asks of an image.
type Symbols interface {
	// Lookup returns the one symbol of that name, guest.ErrSymbolNotFound, or
	// a *guest.AmbiguousSymbolError.
	Lookup(name string) (guest.Symbol, error)
	// Find returns the symbol whose extent holds addr. The extent of a
	// function without a size ends at the next symbol.
	Find(addr guest.GVA) (guest.Symbol, bool)
	// IsText reports whether addr is in an executable segment.
	IsText(addr guest.GVA) bool
	// Code returns the n bytes that the image itself has at addr, unpatched;
	// fewer where the segment ends.
	Code(addr guest.GVA, n int) []byte
	// Blacklisted returns why nothing in the symbol at addr may be probed
	// (its section, or an entry of the image's blacklist), or "".
	Blacklisted(addr guest.GVA) string
}

// World is a stopped target: every vCPU is out of guest mode. It is valid only
// inside the function that Stop runs.
type World interface {
	// PatchText replaces the bytes old at addr by new (of the same length), or
	// changes nothing and fails with *guest.TextMismatchError when it finds
	// something else there.
	PatchText(addr guest.GVA, old, new []byte) error
	// CPU returns the saved state of vCPU i, which may be changed.
	CPU(i int) State
}

// State is the saved state of one vCPU at a trap or while the world is
// stopped.
type State struct {
	Regs *Regs     // changes take effect when the vCPU goes on
	Root guest.GPA // its page tables
	CPL  uint8     // 0 or 3
}

// TrapKind says what the machine reported.
type TrapKind uint8

// The kinds of trap. The zero value is invalid.
const (
	TrapBreakpoint TrapKind = iota + 1 // int3; Regs.RIP is at it, not behind
	TrapStep                           // single step done
	TrapFault                          // the guest's own exception, before the guest's handler sees it
	TrapWatch                          // data or execute breakpoint of the debug registers
	TrapDetour                         // out to Ways.DetourPort; Regs.RIP is at it or behind it, as the host likes
)

// Trap is one event that the machine reports to the engine.
type Trap struct {
	Kind   TrapKind
	Vector uint8     // TrapFault: exception vector (SDM Vol. 3, 6.3.1)
	Code   uint32    // TrapFault: error code, 0 where the vector has none
	CR2    guest.GVA // TrapFault with vector 14
	DR6    uint64    // TrapWatch, TrapStep: as SDM Vol. 3, 18.2.3
}

// Action says what the machine does with a vCPU after Engine.Hit.
type Action uint8

// The actions.
const (
	// NotOurs: the engine knows nothing of the trap; it goes to the guest
	// (#BP with RIP behind the int3, a fault as it was, with Regs as they are).
	NotOurs Action = iota
	// Resume: run on with the registers as they are now.
	Resume
	// Inject: deliver Verdict.Fault to the guest at the registers as they are.
	Inject
	// StepInPlace: with every other vCPU stopped, put the original bytes of
	// the site back, execute exactly one instruction, put the site back, and
	// call Engine.Stepped.
	StepInPlace
)

// Verdict is the engine's answer to a trap.
type Verdict struct {
	Action Action
	Fault  Trap // for Inject: Vector, Code and CR2 as in TrapFault; DR6 with vector 1

	// Shadow says that an emulated sti has just set IF: no interrupt may be
	// delivered before the next guest instruction has run (SDM Vol. 3, 6.8.3),
	// or "sti; hlt" could sleep through its wakeup.
	Shadow bool
}
