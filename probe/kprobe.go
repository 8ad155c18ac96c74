package probe

import "github.com/guestprobe/guestprobe/guest"

// Kprobe is one probe on one guest instruction. Fill in where and the
// handlers, then Engine.Register it; after that its fields belong to the
// engine until Unregister has returned.
type Kprobe struct {
	// Name is for listings; it need not be unique.
	Name string

	// Symbol with Offset, or Addr, says where. After registration Addr is the
	// resolved address.
	Symbol string
	Offset uint64
	Addr   guest.GVA

	// Disabled asks for registration without arming.
	Disabled bool

	// Filter, when set, runs first; false ends the hit for this probe: it
	// counts as filtered and no other handler of this probe runs.
	Filter func(*Context) bool

	// Pre runs before the probed instruction, with Regs.RIP one behind the
	// probed address as in the kernel. Nonzero means that the handler has set
	// the registers to where the guest shall go on: the instruction is not
	// executed and no post handler runs.
	Pre func(*Context) int

	// Post runs after the probed instruction, with the registers as it left
	// them.
	Post func(*Context)

	// Fault runs when the probed instruction faults; true means that the
	// handler has put it right and the guest resumes at Regs.
	Fault func(*Context, Trap) bool

	// probe's own state; see site.go.
	reg *registration
}
