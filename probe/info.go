package probe

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
)

// Stats are the counts of one probe, since it was registered. A hit is one execution
// of the probed instruction offered to the probe, and counts once its outcome is
// known, so that always
//
//	Hits = Handled + Filtered + Missed
type Stats struct {
	Hits        uint64 // hits offered to the probe while enabled, and all that were missed
	Handled     uint64 // of these: the filter let it pass, and the pre handler ran
	Filtered    uint64 // ended by the filter
	Missed      uint64 // came from inside a handler, so no handler ran: the kernel's nmissed
	Elsewhere   uint64 // besides Hits: hits in other address spaces than Kprobe.Space
	InGuest     uint64 // of Hits: by a Stage, without an exit
	Skipped     uint64 // besides Hits: taken by a newer probe's pre handler before this one's turn
	SecondExits uint64 // exits in addition to the one of each hit: ends of stepped slots and of in-place steps
	Faults      uint64 // executions of the instruction that raised an exception
	Panics      uint64 // of its handlers
	BadAccesses uint64 // failed Context.Read and Write of its handlers

	// For a kretprobe, whose Hits are calls of the function; Filtered includes calls
	// that its entry handler skipped, and Missed calls without an instance. Of the
	// activations that were Handled,
	//
	//	Handled = Returns + Abandoned + Info.InUse
	//
	// while the guest does not run; an abandoned one counts as in use until it is
	// detected. At any time Handled is at least Returns + Abandoned. Once the probe
	// is unregistered,
	//
	//	Handled = Returns + Abandoned + UnderWay
	Returns   uint64
	Abandoned uint64 // left otherwise than by a return; not split by vCPU
	UnderWay  uint64 // when the probe was unregistered: they return without a handler; not split by vCPU either
}

// Add adds the counts t to s.
func (s *Stats) Add(t Stats) {
	s.Hits += t.Hits
	s.Handled += t.Handled
	s.Filtered += t.Filtered
	s.Missed += t.Missed
	s.Skipped += t.Skipped
	s.InGuest += t.InGuest
	s.Elsewhere += t.Elsewhere
	s.SecondExits += t.SecondExits
	s.Faults += t.Faults
	s.Panics += t.Panics
	s.BadAccesses += t.BadAccesses
	s.Returns += t.Returns
	s.Abandoned += t.Abandoned
	s.UnderWay += t.UnderWay
}

// stats returns the counts of vCPU i.
func (t *tally) stats(i int) Stats {
	k := &t.cells[i]
	handled, filtered, missed := k.handled.Load(), k.filtered.Load(), k.missed.Load()
	return Stats{
		Hits: handled + filtered + missed, Handled: handled, Filtered: filtered, Missed: missed,
		Skipped: k.skipped.Load(), SecondExits: k.steps.Load(), Faults: uint64(k.faults.Load()),
		Panics: uint64(k.panics.Load()), BadAccesses: uint64(k.accesses.Load()), Elsewhere: k.elsewhere.Load(),
	}
}

// stats returns the counts of vCPU i, including hits that took no exit, but not
// counts of returns.
func (r *registration) stats(i int) Stats {
	s := r.tally.stats(i)
	handled, filtered, missed := r.kind.guestCounts(r, i)
	n := handled + filtered + missed
	s.Add(Stats{Hits: n, InGuest: n, Handled: handled, Filtered: filtered, Missed: missed})
	return s
}

// totals returns the sums over all vCPUs, and puts the counts of each into byCPU. The
// ends of activations are read before their beginnings, so that every end counted has
// its beginning counted too.
func (r *registration) totals(byCPU []Stats) (total Stats) {
	total.Abandoned, total.UnderWay = r.kind.countReturns(byCPU)
	for i := range byCPU {
		byCPU[i].Add(r.stats(i))
		total.Add(byCPU[i])
	}
	return total
}

// Info describes one registered probe.
type Info struct {
	Probe    *Kprobe   // as it was registered; of a kretprobe or jprobe the embedded one
	Name     string    // Kprobe.Name
	Type     byte      // 'k', 'u' for a kprobe on code of CPL3; for both 'r' for a kretprobe, 'j' for a jprobe
	Addr     guest.GVA // the probed address; for a probe after the call of a tracer at a function's entry: the address of that call
	Symbol   string    // function that holds it
	Offset   uint64    // within Symbol
	Entry    bool      // the function's entry
	User     bool      // code of CPL3
	Space    guest.GPA // the only address space it is for; 0: all
	Disabled bool      // by Disable, or from its registration on
	Gone     bool      // its code is gone: freed by the guest, or not found again by Reload
	Pending  bool      // it is on MODULE:SYMBOL, and that module is not loaded: it will be armed when the module is. Addr is 0
	Armed    bool      // the site has its int3, or its jump

	// Changed: the guest has changed the instruction under the probe, which therefore
	// is not armed. It will be when the image's bytes are back: the engine checks
	// every half second.
	Changed bool

	// Optimized: the site has a jump to a detour instead of an int3; InGuest: its
	// handlers run there without an exit. Otherwise Unoptimized says why it has none.
	Optimized, InGuest bool
	Unoptimized        Unoptimized
	Region             int // bytes that the jump displaces, while Optimized

	Plan  string // how the displaced instruction runs: "emulate", "boost", "step", "in_place"
	Insn  []byte // the displaced instruction
	Stats Stats  // of all vCPUs

	// For a kretprobe: how many activations it can follow at a time, how many it
	// follows now, and the maximum since it was registered or the guest was reset.
	// Activations left otherwise than by a return are detected before the count.
	MaxActive, InUse, HighWater int

	// NoStage is why a kretprobe that has the stages cannot run in the guest,
	// whatever its site; "" if it can.
	NoStage string
}

// Flags returns the flags as the kernel prints them, [PENDING] and [CHANGED].
func (i Info) Flags() string {
	switch {
	case i.Gone:
		return "[GONE]"
	case i.Pending && !i.Disabled:
		return "[PENDING]"
	case i.Disabled:
		return "[DISABLED]"
	case i.Changed:
		return "[CHANGED]"
	case i.Optimized:
		return "[OPTIMIZED]"
	default:
		return ""
	}
}

// String returns the line that /sys/kernel/debug/kprobes/list has for a probe on code
// outside of modules: the module's name is a single blank.
func (i Info) String() string {
	return fmt.Sprintf("%016x  %c  %s+%#x    %s", uint64(i.Addr), i.Type, i.Symbol, i.Offset, i.Flags())
}
