package probe

import "github.com/guestprobe/guestprobe/guest"

// MaxStageStack is the maximum of Stage.Stack, in bytes: so both ends of the memory
// that a stage needs are in neighboring pages.
const MaxStageStack = 1024

// Stage is a probe's handlers in the form of machine code. On an optimized site it
// runs in the detour, in guest mode: a hit then takes no exit. On any other hit, and
// on a site that cannot be optimized, the probe's Pre runs, which must do the same on
// the host.
type Stage struct {
	// Code is a function, the same wherever it is put, for the privilege of the
	// probed code:
	//
	//	RDI  address of the context: x86-64 struct pt_regs (168 bytes)
	//	RSI  address of the vCPU's block
	//
	// It returns with all registers unchanged except RAX and the arithmetic flags,
	// expects DF clear, and uses at most Stack bytes below RSP, which may be
	// MaxStageStack (with more every hit takes an exit). It may run again, on the
	// same vCPU, before it has returned.
	Code  []byte
	Stack int

	// NoStrings: Code has no string instruction, and so does not care about DF.
	NoStrings bool

	// Aligned: every access of Code to memory is aligned if the context is. Otherwise
	// code of CPL3 that has alignment checks on (RFLAGS.AC) takes an exit instead.
	Aligned bool

	// Reads has bit n set if Code may read the 8 bytes at 8n of the context: only
	// those are filled in.
	Reads uint32

	// Walk, if not 0, is how many addresses of the interrupted kernel stack the Code
	// needs, as Context.Stacks returns them, at most MaxWalk: the detour finds them
	// before any Code runs, with RDI and RSI as they are then, and puts them where
	// Engine.HoldWalks says. Where they are not sure to be those that the host would
	// find, the hit takes an exit. A return stage has none.
	Walk int

	// Fixups are the instructions of Code that may fault: the engine handles such a
	// #PF or #GP, and the vCPU resumes at Resume. In a guest whose profile has Faults
	// the guest's kernel handles it, and the owner of the Stage makes it resume there
	// (Engine.FixupAt).
	Fixups []Fixup

	// Block is the address of vCPU 0's block; the block of vCPU i is i times Stride
	// after it.
	Block  guest.GVA
	Stride uint64

	// Lost is the address of a word that counts the hits whose vCPU the stack's
	// profile does not identify: no block, so Code did not run. Counts reports them
	// as missed hits of vCPU 0.
	Lost guest.GVA

	// Counts returns the hits of vCPU cpu that ran in the guest, by outcome. The
	// guest writes the numbers, so they are only as reliable as the guest. It is
	// called from any goroutine.
	Counts func(cpu int) (handled, filtered, missed uint64)

	// Placed, if set, is called with the address that hits of the probe are reported
	// at, each time the probe is put on its site, with the world stopped: a reset, or
	// a reload of its module, may have moved it.
	Placed func(addr guest.GVA)

	uses  int        // residents that contain its code; guarded by Engine.mu
	table *instances // of a kretprobe: the table whose entry it is
}

// Fixup pairs an instruction with the place where the vCPU resumes if it faults. Both
// are offsets in Stage.Code.
type Fixup struct{ Fault, Resume int }
