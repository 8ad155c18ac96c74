package probe

import "github.com/guestprobe/guestprobe/guest"

// Stage is a probe's handlers in the form of machine code. On an optimized site
// it runs in the detour, in guest mode: a hit then takes no exit. On any
// other arrival, and on a site that cannot be optimized, the probe's Pre runs,
// which must do the same on the host.
type Stage struct {
	// Code is a function, the same wherever it is put, for the privilege of the
	// probed code:
	//
	//	RDI  address of the context: x86-64 struct pt_regs (168 bytes)
	//	RSI  address of the vCPU's block
	//
	// It returns with all registers as they were but RAX and the arithmetic
	// flags, expects DF clear, and uses at most Stack bytes below RSP, which may be
	// MaxStageStack (with more every hit takes an exit). It may run again, on the same
	// vCPU, before it has returned.
	Code  []byte
	Stack int

	// NoStrings: Code has no string instruction, and so does not care about DF.
	NoStrings bool

	// Aligned: every access of Code to memory is aligned if the context is. Otherwise
	// code of CPL3 that has alignment checks on (RFLAGS.AC) takes an exit instead.
	Aligned bool

	// Reads has bit n set when Code may read the 8 bytes at 8n of the context:
	// only those are filled in.
	Reads uint32

	// Fixups are the instructions of Code that may fault: such a #PF or #GP is
	// not the guest's, and the vCPU goes on at Resume.
	Fixups []Fixup

	// Block is the address of vCPU 0's block, that of vCPU i is i times Stride
	// behind it.
	Block  guest.GVA
	Stride uint64

	// Lost is the address of a word that counts the hits on no vCPU that the
	// stack's profile shows: no block, so Code did not run. Counts has them as hits
	// that were missed, on vCPU 0.
	Lost guest.GVA

	// Counts returns the hits of vCPU cpu that ran in the guest, by what became of
	// them. The guest writes the numbers: they are what it says. It is called from
	// any goroutine.
	Counts func(cpu int) (handled, filtered, missed uint64)

	// Placed, when set, is called with the address that hits of the probe are reported at,
	// each time that it is put on its site, with the world stopped: a reset, or the module
	// that it is on, may have moved it.
	Placed func(addr guest.GVA)

	uses  int        // residents with its code, or that of which it is a part; guarded by Engine.mu
	table *instances // whose entry it is, of a kretprobe
}

// Fixup pairs an instruction with where the vCPU goes on when it faults. Both
// are offsets in Stage.Code.
type Fixup struct{ Fault, Resume int }
