package probe

import (
	"github.com/guestprobe/guestprobe/guest"
)

// resident is the owner of a piece of the engine's executable memory: a slot, a
// detour, trampolines, or the shared code of a kretprobe in the guest. Its methods
// get addresses inside the piece, and the registers of a vCPU that has arrived there.
// They are part of the hit path.
type resident interface {
	// home returns the address in the guest's own text that corresponds to rip.
	home(rip guest.GVA) guest.GVA

	// stance says how the registers at rip differ from the guest's.
	stance(rip guest.GVA) stance

	// trap handles a TrapBreakpoint or TrapDetour, after which the guest resumes, and
	// reports false if the resident has no such instruction there. If it returns a
	// site, it leaves to its caller a hit of that site, from that detour. (A Verdict
	// that is handed from one function to the next costs as much as the search for
	// the resident.)
	trap(c *cpu, s State, kind TrapKind) (hit *site, from *detour, ok bool)

	// fault handles an exception, except of an instruction that the vCPU is known to
	// be stepping.
	fault(c *cpu, s State, t Trap) Verdict

	// fixup returns where a load at rip by a stage resumes if it faults.
	fixup(rip guest.GVA) (to guest.GVA, ok bool)

	// loads reports whether it has an instruction that fixup knows.
	loads() bool

	// accessor returns the instruction of the guest's text that has just accessed
	// memory, and whether that is certain.
	accessor(c *cpu, s State) (at guest.GVA, exact bool)

	// markReferences keeps the residents that this one's code needs. It and drop are
	// called with the world stopped.
	markReferences(m *marking)

	// drop releases the resources of the resident: no context can be in it any more.
	drop(g *collector)
}
