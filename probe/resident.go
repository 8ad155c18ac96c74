package probe

import (
	"github.com/guestprobe/guestprobe/guest"
)

// resident is what stands in a piece of the engine's executable memory: a slot, a
// detour, trampolines, or the code behind those of a kretprobe in the guest. Its
// methods get addresses inside the piece, and the registers of a vCPU that has come
// there. They are part of the hit path.
type resident interface {
	// home returns the address in the guest's own text that rip stands for.
	home(rip guest.GVA) guest.GVA

	// stance says how the registers at rip differ from the guest's.
	stance(rip guest.GVA) stance

	// trap handles a TrapBreakpoint or TrapDetour, behind which the guest resumes, and
	// reports false when the resident has no such instruction there. It leaves to its
	// caller a hit of the site that it returns, from that detour. (A Verdict that is handed
	// from one function to the next costs as much as the search for the resident.)
	trap(c *cpu, s State, kind TrapKind) (hit *site, from *detour, ok bool)

	// fault handles an exception, except of an instruction that the vCPU is known to
	// be stepping.
	fault(c *cpu, s State, t Trap) Verdict

	// accessor returns the instruction of the guest's text that has just accessed
	// memory, and whether that is certain.
	accessor(c *cpu, s State) (at guest.GVA, exact bool)

	// markReferences keeps what the resident's code needs besides itself. It and drop are
	// called with the world stopped.
	markReferences(m *marking)

	// drop ends what was made for the resident: nobody can be in it any more.
	drop(g *collector)
}
