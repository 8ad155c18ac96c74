package gdb

import (
	"context"
	"errors"
	"io"
)

// Target is a guest as a debugger sees it. Serve calls one method at a time. Between the
// return of Attach and Resume, and behind the return of Wait, the guest stands still.
type Target interface {
	// Attach stops the guest. Detach takes out what Insert has put in, and unless pause says
	// so or the guest stood still at Attach and was not resumed since, has the guest go on.
	Attach() error
	Detach(pause bool) error

	// CPUs returns the number of vCPUs, Describe what one of them is doing, in a few words.
	CPUs() int
	Describe(cpu int) string

	// Registers reads the registers of a vCPU; without all, General, RIP, Flags and Segments are enough.
	// SetRegisters writes those that differ, or none.
	Registers(cpu int, r *Registers, all bool) error
	SetRegisters(cpu int, r *Registers) error

	// Read and Write access memory as a vCPU's address space has it, with the guest's own
	// code where probes have changed it. They do all or nothing.
	Read(cpu int, addr uint64, p []byte) error
	Write(cpu int, addr uint64, p []byte) error

	// Insert and Remove place breakpoints and watchpoints. Both may be repeated.
	Insert(b Breakpoint) error
	Remove(b Breakpoint) error

	// Resume lets the guest go on, with for each vCPU what it does. A guest that is not what the debugger was told of last,
	// for it was reset, stays, and Wait tells of it.
	Resume(actions []Action) error

	// Wait returns when the guest has stopped, which it makes it do when ctx ends, or when soon has something, which is
	// StillRunning.
	Wait(ctx context.Context, soon <-chan struct{}) (Stop, error)

	// Still returns was, which Wait or Still has returned last or is zero, where the guest still stands for that, or what it stands for
	// now: it may have been reset since.
	Still(was Stop) Stop

	// Also returns why another vCPU stands still since the last return of Wait, where that is a hit of its own that
	// nobody was told of, and tells it once: Wait does not return it any more.
	Also(cpu int) (Stop, bool)

	// Monitor does what a line behind the debugger's "monitor" says, and writes what it has
	// to say to w. It is to end with ctx: the debugger is gone, or wants no more of it.
	Monitor(ctx context.Context, line string, w io.Writer) error

	// Program returns what is known of the guest's program.
	Program() Program
}

// Program is what a debugger asks to have the symbols of a guest's program where they are.
type Program struct {
	File func() []byte // returns an ELF file with its symbols; nil: there is none
	Base uint64        // where the first segment is of a file of the program, or 0: where that says

	// Landmark is a symbol and its address, by which a debugger's own file shows whether it
	// is this program's; "" for none.
	Landmark string
	At       uint64
}

// Action is what a vCPU does when the guest goes on.
type Action uint8

// The actions.
const (
	Hold     Action = iota // it stays where it is
	Continue               // it runs
	Step                   // it executes one instruction
)

// Kind is what a breakpoint stops at, in the protocol's numbering (Z packets).
type Kind uint8

// The kinds.
const (
	Software Kind = iota // execution, by a probe
	Hardware             // execution, by a probe too: the guest cannot tell them apart
	WatchWrite
	WatchRead
	WatchAccess
)

// Breakpoint is a breakpoint or a watchpoint of Len bytes at Addr. Two that are equal are the
// same one. Len of a breakpoint is of no consequence.
type Breakpoint struct {
	Kind Kind
	Addr uint64
	Len  uint64
}

// ErrUnsupported is what a Target returns for a kind of breakpoint that it does not have.
var ErrUnsupported = errors.New("not supported")

// Why says what a guest stopped for.
type Why uint8

// The reasons.
const (
	Stopped      Why = iota // by Attach, Wait's context, or somebody else's command
	Stepped                 // an Action of Step is done
	Breaking                // at a breakpoint
	Watching                // at a watchpoint: Addr and Kind are its own
	Crashed                 // it cannot go on; what it was can be looked at
	Exited                  // it has ended, with Code
	Terminated              // it is not there any more
	StillRunning            // it has not stopped yet

	alongside // a vCPU that only stands still with the others
	stuck     // it could not go on: an instruction that cannot be stepped, a guest that others hold
)

// Stop is why and where a guest has stopped.
type Stop struct {
	Why  Why
	CPU  int    // the vCPU that is the reason, else any
	Addr uint64 // of Watching
	Kind Kind   // of Breaking and Watching
	Code uint8  // of Exited
	Text string // a line for the debugger's user about it, or ""
}
