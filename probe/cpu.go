package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// cpu is the state of one vCPU. Only that vCPU's thread, or the code that stopped the
// world, touches it; anyone may read the counters. The padding keeps two vCPUs out of
// one cache line.
type cpu struct {
	_ [64]byte
	*core
	id int

	// depth is the number of nested rounds of handlers. The kernel's "current
	// kprobe" is set while it is not 0: a hit is then counted as missed.
	depth int

	// seq numbers the hits; never 0. See cell.passed.
	seq uint32

	step  step
	under step // in a slot that the vCPU has left for the guest's handlers, while a debugger steps these: see Advance
	ctx   Context
	mem   operand

	stopping  bool // a handler has asked for a stop
	stoppedBy any  // the cause of that stop
	held      held

	mirror     *mirror           // the last that this vCPU was sent to and has not ended
	entered    []activation      // that this hit has begun so far
	leaving    []activation      // that end with this hit, without a trampoline
	postDue    bool              // a probe with a post or fault handler has let this hit pass
	mirrorsDue bool              // a jprobe whose mirror is to run has seen this hit
	walked     bool              // a handler of this hit has walked the stack
	word       [8]byte           // scratch
	task       guest.Task        // scratch
	data       [MaxDataSize]byte // scratch

	watch [8]byte // scratch for watched values

	// alias is the address at which the current hit's instruction is to be executed,
	// if that is not its site's.
	alias guest.GVA

	repeating repeating

	counts cpuCounts
	_      [64]byte
}

// step is a displaced instruction that was started and has not yet ended: in
// a slot with a trailing int3, or in place.
type step struct {
	active  bool
	inPlace bool
	at      guest.GVA // inPlace: where the instruction is
	missed  bool      // a hit from inside a handler: no post handlers
	site    *site
	slot    *slot
	chain   chain  // the probes at the time of the hit
	seq     uint32 // the hit's number
	flags   uint64 // the interrupted IF and TF
	traced  bool   // inPlace: the guest single-steps itself
}

// cpuCounts count what the engine did on one vCPU.
type cpuCounts struct {
	breakpoints, emulated, boosted, stepped, inPlace atomic.Uint64
	stale, foreign, strays, abandoned, faults        atomic.Uint64
	returns, copies, aliases, detours, punned        atomic.Uint64
}

// held is a hit whose handlers have run, but whose instruction has not: its vCPU is
// stopped there, with the registers of the guest.
type held struct {
	site  *site // nil: none
	at    guest.GVA
	chain chain
	seq   uint32
	watch bool
}

// mirror is one activation of a jprobe's mirror: the state that the probed function
// needs to begin as if the mirror had never run. A mirror usually ends on the vCPU
// that it began on, but one that sleeps against the rules is still found.
type mirror struct {
	// state is free, busy (one vCPU's own) or live. The vCPU that sets busy has the
	// sole right to touch the rest.
	state atomic.Uint32
	sp    atomic.Uint64 // of the activation: where its return address is
	root  atomic.Uint64 // page tables, for code of CPL3
	mask  atomic.Uint64 // of its stack (guest.Profile); 0: not known
	back  atomic.Uint64 // the word at sp in place of the return address: where mirrors end
	user  atomic.Bool

	regs  Regs
	site  *site
	chain chain
	cpu   int
	seq   uint32
	watch bool
	next  *registration // another mirror on the site, to run after this one
	n     int           // bytes of stack
	at    guest.GVA     // where the probed instruction was hit
	stack [MaxJprobeStack]byte
}

// repeating is where a vCPU has begun with the copy of an instruction, or has had a
// trap of TF before it, and RCX at that time.
type repeating struct {
	at guest.GVA
	cx uint64
}
