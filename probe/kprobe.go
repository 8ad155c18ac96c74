package probe

import "github.com/guestprobe/guestprobe/guest"

// Kprobe is one probe on one guest instruction. Fill in the place and the handlers,
// then Engine.Register it; after that its fields belong to the engine until
// Unregister has returned.
//
// Handlers run on the thread of the vCPU that hit the probe, at the same time as
// those for other vCPUs. They must not call methods of the engine that change
// something (ErrInHandler) nor wait for a goroutine that does. A panic in a handler
// is contained, counted and logged once per probe; runtime.Goexit is not contained.
type Kprobe struct {
	// Name is for listings; it need not be unique.
	Name string

	// Symbol with Offset, or Addr (to which Offset is added, too), says where. After
	// registration Addr is the resolved address, and stays so after Unregister, as in
	// the kernel: clear it before registering by symbol again. A probe by address has
	// its Offset cleared then. On a function that begins with endbr64 the probe is
	// after it: offsets 0 and 4 are the same place. On a function that calls a tracer
	// there (Kernel.Entry) the probe is after that call, and its hits are reported at
	// the call.
	Symbol string
	Offset uint64
	Addr   guest.GVA

	// Disabled asks for registration without arming.
	Disabled bool

	// Essential says that Stages in the guest need the probe: Pre also runs at a hit
	// from inside a handler (Context.Call), and DisarmAll disarms the probe after all
	// others, when no vCPU is in a Stage that may fault.
	Essential bool

	// Space, when not 0, binds the probe to one address space: the physical address
	// of its top-level page table, as in CR3 (SDM Vol. 3, 4.5.2; whole pages). Hits
	// in other address spaces are counted only in Stats.Elsewhere; no handler runs. 0
	// means all address spaces.
	Space guest.GPA

	// Filter, when set, runs first; false ends the hit for this probe: it
	// counts as filtered and no other handler of this probe runs.
	Filter func(*Context) bool

	// Pre runs before the probed instruction, with Regs.RIP one past the probed
	// address as in the kernel. A nonzero result means that the handler has set the
	// registers to where the guest is to resume: the instruction is not executed, no
	// post handler runs, and older probes on the site are not called. With zero,
	// changes of all registers but RIP take effect.
	Pre func(*Context) int

	// Post runs after the probed instruction, with the registers as it left them. It
	// costs a second exit if the instruction is not emulated.
	Post func(*Context)

	// Fault runs if the probed instruction faults, with Regs.RIP at it; true means
	// that the handler has fixed the cause and the guest resumes at Regs. Otherwise
	// the guest's own exception handler gets the fault. As with Post, the instruction
	// then always runs in a slot whose end traps.
	Fault func(*Context, Trap) bool

	// Stage, if set, is Filter and Pre in the form of machine code. It is used while
	// the site is optimized and all its probes have one. It must not change while the
	// probe is registered.
	Stage *Stage

	// reg is the engine's own state, nil while not registered; last is the former
	// registration, for its counts.
	reg, last *registration
}
