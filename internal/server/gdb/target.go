package gdb

import (
	"context"
	"errors"
	"io"
)

// Target is a guest as a debugger sees it. Serve calls one method at a time. The
// guest is paused between the return of Attach and Resume, and after the return
// of Wait.
type Target interface {
	// Attach stops the guest. Detach removes the breakpoints of Insert and resumes
	// the guest. It does not resume with pause, or if the guest was paused at
	// Attach and was not resumed since.
	Attach() error
	Detach(pause bool) error

	// CPUs returns the number of vCPUs, and Describe the activity of one of them,
	// in a few words.
	CPUs() int
	Describe(cpu int) string

	// Registers reads the registers of a vCPU; without all, only General, RIP,
	// Flags and Segments are needed. SetRegisters writes all registers that
	// differ, or none.
	Registers(cpu int, r *Registers, all bool) error
	SetRegisters(cpu int, r *Registers) error

	// Read and Write access memory through a vCPU's address space. They show the
	// guest's own code where probes have changed it. They do all or nothing.
	Read(cpu int, addr uint64, p []byte) error
	Write(cpu int, addr uint64, p []byte) error

	// Insert and Remove place breakpoints and watchpoints. Both may be repeated.
	Insert(b Breakpoint) error
	Remove(b Breakpoint) error

	// Resume resumes the guest, with an action for each vCPU. If the guest was
	// reset since the last stop that the debugger knows of, it stays paused, and
	// Wait reports that.
	Resume(actions []Action) error

	// Wait returns when the guest has stopped. It stops the guest when ctx ends.
	// When soon has a value, it returns StillRunning.
	Wait(ctx context.Context, soon <-chan struct{}) (Stop, error)

	// RecheckStop returns the reason of the present stop. was is the last result
	// of Wait or RecheckStop, or zero. The guest may have been reset since;
	// otherwise the result is was.
	RecheckStop(was Stop) Stop

	// StopOf returns why another vCPU stopped since the last return of Wait, if it
	// has an unreported hit of its own. It reports each hit once: Wait does not
	// return it any more.
	StopOf(cpu int) (Stop, bool)

	// Monitor runs the line that follows the debugger's "monitor", and writes the
	// output to w. It must return when ctx ends, because the debugger is gone or
	// has interrupted it.
	Monitor(ctx context.Context, line string, w io.Writer) error

	// Program describes the guest's program.
	Program() Program
}

// Program is the information with which a debugger places the symbols of the
// guest's program.
type Program struct {
	File func() []byte // returns an ELF file with its symbols; nil: no file
	Base uint64        // the address of the first segment of the program's file, or 0 for the address in the file

	// Landmark is a symbol, and At its address. They show whether a debugger's own
	// file is this program's. "" for none.
	Landmark string
	At       uint64
}

// Action is what a vCPU does when the guest resumes.
type Action uint8

// The actions.
const (
	Hold     Action = iota // it stays where it is
	Continue               // it runs
	Step                   // it executes one instruction
)

// Kind is the kind of a breakpoint, in the protocol's numbering (Z packets).
type Kind uint8

// The kinds.
const (
	Software Kind = iota // execution, by a probe
	Hardware             // execution, by a probe too: the guest cannot distinguish the two
	WatchWrite
	WatchRead
	WatchAccess
)

// Breakpoint is a breakpoint or a watchpoint of Len bytes at Addr. Two equal
// values are the same breakpoint. Len of a breakpoint does not matter.
type Breakpoint struct {
	Kind Kind
	Addr uint64
	Len  uint64
}

// ErrUnsupported is returned by a Target for a kind of breakpoint that it does
// not support.
var ErrUnsupported = errors.New("not supported")

// Why is the reason of a stop.
type Why uint8

// The reasons.
const (
	Stopped      Why = iota // by Attach, Wait's context, or another client's command
	Stepped                 // an Action of Step is done
	Breaking                // at a breakpoint
	Watching                // at a watchpoint: Addr and Kind are its own
	Crashed                 // it cannot resume, but can be inspected
	Exited                  // it has ended, with Code
	Terminated              // it does not exist any more
	StillRunning            // it has not stopped yet

	alongside // a vCPU that was only stopped with the others
	stuck     // it could not run: an instruction that cannot be stepped, a guest that other clients hold
)

// Stop is the reason and the place of a guest's stop.
type Stop struct {
	Why  Why
	CPU  int    // the vCPU that has caused it, else any
	Addr uint64 // of Watching
	Kind Kind   // of Breaking and Watching
	Code uint8  // of Exited
	Text string // a line for the debugger's user about it, or ""
}
