package probe

import (
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest"
)

// cpu is the state of one vCPU. Only that vCPU's thread touches it, or
// whoever has the world stopped; the counters may be read by anyone. The
// padding keeps two vCPUs out of one cache line.
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
	stoppedBy any  // for whom
	held      held

	mirror  *mirror           // the last that this vCPU was sent to and has not ended
	entered []activation      // that this hit has begun so far
	leaving []activation      // that end with this hit, without a trampoline
	word    [8]byte           // scratch
	task    guest.Task        // scratch
	data    [MaxDataSize]byte // scratch

	watch [8]byte // scratch for watched values

	// alias is the address at which the current hit's instruction is to be
	// executed, where that is not its site's.
	alias guest.GVA

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

// EngineStats are the counts of all vCPUs, or of one. They tell how many exits
// the probes caused (Breakpoints + Detours + Stepped + InPlace + Returns) and what went
// otherwise than planned.
type EngineStats struct {
	Breakpoints uint64 // breakpoint traps at armed sites: hits, whatever the number of probes there
	Aliases     uint64 // of these: through another mapping of the site's page
	Emulated    uint64 // instruction emulated
	Boosted     uint64 // continued in a boosted slot
	Stepped     uint64 // stepped slots that ran to their end: a second exit each
	InPlace     uint64 // in-place steps that ended: a second exit each
	Stale       uint64 // traps of a probe that was removed meanwhile: the guest just went on
	Foreign     uint64 // breakpoints of the guest's own
	Strays      uint64 // traps in a slot that the vCPU was not known to be in
	Abandoned   uint64 // steps that never ended, because the guest went elsewhere
	Faults      uint64 // exceptions raised by a displaced instruction
	Returns     uint64 // arrivals at a trampoline: one for all kretprobes of an activation
	Detours     uint64 // arrivals at the exit of a detour: hits of optimized sites that the host handled
	Punned      uint64 // arrivals at an int3 inside a jump: moved to the detour's copy of what was there
	Copies      uint64 // of Returns: by a copy of an activation that a fork made, or a second return; no handler
}

// Totals returns the counts of vCPU i, or of all when i is -1.
func (e *Engine) Totals(i int) EngineStats {
	var s EngineStats
	for j := range e.cpus {
		if i != -1 && i != j {
			continue
		}
		c := &e.cpus[j].counts
		s.Breakpoints += c.breakpoints.Load()
		s.Emulated += c.emulated.Load()
		s.Boosted += c.boosted.Load()
		s.Stepped += c.stepped.Load()
		s.InPlace += c.inPlace.Load()
		s.Stale += c.stale.Load()
		s.Foreign += c.foreign.Load()
		s.Strays += c.strays.Load()
		s.Abandoned += c.abandoned.Load()
		s.Faults += c.faults.Load()
		s.Returns += c.returns.Load()
		s.Copies += c.copies.Load()
		s.Aliases += c.aliases.Load()
		s.Detours += c.detours.Load()
		s.Punned += c.punned.Load()
	}
	return s
}

// Stepping reports whether vCPU cpu was last sent to execute a displaced
// instruction after which it traps again: no interrupt may be delivered before
// that, while its RIP is InSlot (a fault that the engine was not shown can have
// taken it elsewhere). It is called on the vCPU's own thread.
func (e *Engine) Stepping(cpu int) bool { return e.cpus[cpu].step.active }

// SlotOf returns the address of a slot that p's instruction runs in, and false
// when it never runs in one or p is not registered.
func (e *Engine) SlotOf(p *Kprobe) (guest.GVA, bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	r := e.registered(p)
	if r == nil {
		return 0, false
	}
	for _, sl := range []*slot{r.site.stepped.Load(), r.site.boosted.Load()} {
		if sl != nil {
			return sl.addr, true
		}
	}
	return 0, false
}
