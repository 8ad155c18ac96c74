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
	home(e *Engine, rip guest.GVA) guest.GVA

	// trap handles a TrapBreakpoint or TrapDetour, and reports false when the
	// resident has no such instruction there.
	trap(e *Engine, c *cpu, s State, kind TrapKind) (Verdict, bool)

	// fault handles an exception, except of an instruction that the vCPU is known to
	// be stepping.
	fault(e *Engine, c *cpu, s State, t Trap) Verdict

	// accessor returns the instruction of the guest's text that has just accessed
	// memory, and whether that is certain.
	accessor(e *Engine, s State) (at guest.GVA, exact bool)
}

// InSlot reports whether addr lies in the engine's executable memory. It may be
// called from any thread.
func (e *Engine) InSlot(addr guest.GVA) bool {
	_, ok := e.code.Owns(addr)
	return ok
}

// Home returns the address in the guest's own text that a RIP in the engine's code
// stands for: for stack traces and for the saved RIP of a task that was
// preempted there. For a trampoline it is the address that its last activation
// returns to. Other addresses are returned as they are. It may be called
// from any thread.
func (e *Engine) Home(addr guest.GVA) guest.GVA {
	if r := e.code.At(addr); r != nil {
		return r.home(e, addr)
	}
	return addr
}
