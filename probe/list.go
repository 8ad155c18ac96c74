package probe

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// Stats are the counts of one probe, since it was registered. A hit is an
// arrival at the site that the probe was offered, and counts when it is known which of
// three it is, so that always
//
//	Hits = Handled + Filtered + Missed
type Stats struct {
	Hits        uint64 // arrivals offered to the probe while enabled, and all that were missed
	Handled     uint64 // of these: let pass by the filter; the pre handler ran
	Filtered    uint64 // ended by the filter
	Missed      uint64 // came from inside a handler, so no handler ran: the kernel's nmissed
	Elsewhere   uint64 // besides Hits: arrivals in other address spaces than Kprobe.Space
	InGuest     uint64 // of Hits: by a Stage, without an exit
	Skipped     uint64 // besides Hits: taken by a newer probe's pre handler before this one was asked
	SecondExits uint64 // exits besides the one of each hit: ends of stepped slots and of in-place steps
	Faults      uint64 // executions of the instruction that raised an exception
	Panics      uint64 // of its handlers
	BadAccesses uint64 // failed Context.Read and Write of its handlers

	// Of a kretprobe, whose Hits are calls of the function, Filtered those that
	// its entry handler skipped as well, and Missed those without an instance as
	// well. Of the activations that were Handled,
	//
	//	Handled = Returns + Abandoned + Info.InUse
	//
	// while the guest does not run, and an abandoned one counts as in use until it is
	// found out. At any time Handled is at least Returns and Abandoned together. Once the
	// probe is unregistered,
	//
	//	Handled = Returns + Abandoned + UnderWay
	Returns   uint64
	Abandoned uint64 // left in another way than by a return; not told apart by vCPU
	UnderWay  uint64 // when the probe was unregistered: they return without a handler; likewise
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

// stats returns the counts of vCPU i, with those of hits that took no exit, but not of
// returns.
func (r *registration) stats(i int) Stats {
	s := r.tally.stats(i)
	var handled, filtered, missed uint64
	if r.ret != nil {
		handled, filtered, missed, _ = r.ret.guestCounts(i)
	} else if g := r.stage; g != nil && g.Counts != nil {
		handled, filtered, missed = g.Counts(i)
	}
	n := handled + filtered + missed
	s.Add(Stats{Hits: n, InGuest: n, Handled: handled, Filtered: filtered, Missed: missed})
	return s
}

// totals returns the counts of all vCPUs, and puts those of each into byCPU. The ends of
// activations are read before their beginnings: each that has ended is among those that
// have begun.
func (r *registration) totals(byCPU []Stats) (total Stats) {
	if r.ret != nil {
		total.Abandoned, total.UnderWay = r.ret.abandoned.Load(), r.ret.underWay.Load()
		for i := range byCPU {
			_, _, _, n := r.ret.guestCounts(i)
			byCPU[i].Returns = n + r.ret.cells[i].returns.Load()
		}
	}
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
	Type     byte      // 'k', 'u' for a kprobe on code of CPL3; on either code 'r' for a kretprobe, 'j' for a jprobe
	Addr     guest.GVA // probed; of a function's entry where the probe is behind the place that calls a tracer: of that
	Symbol   string    // function that holds it
	Offset   uint64    // within Symbol
	Entry    bool      // the function's entry
	User     bool      // code of CPL3
	Space    guest.GPA // the only address space it is for; 0: all
	Disabled bool      // by Disable, or from its registration on
	Gone     bool      // its code has gone: freed by the guest, or not found again by Reload
	Pending  bool      // it is on MODULE:SYMBOL, and that module is not there: it will be armed when it comes. Addr is 0
	Armed    bool      // the site has its int3, or its jump

	// Changed: the guest has changed the instruction under the probe, which therefore is
	// not armed. It will be when the image's bytes are back: that is looked for every half second.
	Changed bool

	// Optimized: the site has a jump to a detour instead of an int3; InGuest: its
	// handlers run there without an exit. Otherwise Unoptimized says why it has none.
	Optimized, InGuest bool
	Unoptimized        Unoptimized
	Region             int // bytes that the jump displaces, while Optimized

	Plan  string // how the displaced instruction runs: "emulate", "boost", "step", "in_place"
	Insn  []byte // the displaced instruction
	Stats Stats  // of all vCPUs

	// Of a kretprobe: how many activations it can follow at a time, how many it
	// follows now, and the most it ever did since it was registered or the guest
	// was reset. Activations that were left in another way than by a return are
	// looked for before they are counted.
	MaxActive, InUse, HighWater int

	// NoStage is why a kretprobe that has the stages cannot run in the guest wherever
	// its site stands; "" = it can.
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

// String returns the line that /sys/kernel/debug/kprobes/list has for a probe
// on code that is in no module: the module's name is a single blank.
func (i Info) String() string {
	return fmt.Sprintf("%016x  %c  %s+%#x    %s", uint64(i.Addr), i.Type, i.Symbol, i.Offset, i.Flags())
}

// List returns all registered probes, as Listed gives them.
func (e *Engine) List() []Info { return slices.AppendSeq([]Info{}, e.Listed()) }

// Listed gives all registered probes, ascending by address, the newest first where
// several are at one (the order in which they are asked); behind them those that are
// gone. Each is described as it is when its turn comes, so that no change waits for a
// long list; one that is unregistered before is left out.
func (e *Engine) Listed() iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for _, r := range e.orderedRegistrations() {
			e.view.RLock()
			there := e.registered(r.probe) == r
			var i Info
			if there {
				i = e.info(r)
			}
			e.view.RUnlock()
			if there && !yield(i) {
				return
			}
		}
	}
}

// orderedRegistrations returns what Listed lists.
func (e *Engine) orderedRegistrations() (out []*registration) {
	e.view.RLock()
	defer e.view.RUnlock()
	for _, st := range e.sortedSites() {
		out = append(out, *st.chain.Load()...)
	}
	there := len(out)
	for r := range e.gone {
		out = append(out, r)
	}
	slices.SortFunc(out[there:], func(a, b *registration) int { return cmp.Compare(a.reportedAddr(), b.reportedAddr()) })
	return slices.DeleteFunc(out, (*registration).hidden)
}

// sortedSites returns all sites, ascending by address.
func (e *Engine) sortedSites() []*site {
	sites := make([]*site, 0, e.sites.Len())
	for _, st := range e.sites.All() {
		sites = append(sites, st)
	}
	slices.SortFunc(sites, func(a, b *site) int { return cmp.Compare(a.addr, b.addr) })
	return sites
}

// Info describes p, and reports whether it is registered.
func (e *Engine) Info(p *Kprobe) (Info, bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	r := e.registered(p)
	if r == nil {
		return Info{}, false
	}
	return e.info(r), true
}

// info describes r. Callers hold Engine.view or Engine.mu.
func (e *Engine) info(r *registration) Info {
	st := r.site
	i := Info{
		Probe: r.probe, Name: r.name, Type: 'k', Addr: r.reportedAddr(), Symbol: st.symbol, Offset: uint64(r.reportedAddr() - st.start),
		Entry: r.entry, User: st.user, Space: r.space, Disabled: r.disabled, Gone: st.gone, Armed: st.armed.Load(),
		Changed: st.changed, Plan: st.plan().Kind.String(), Insn: slices.Clone(st.bytes()),
	}
	if st.user {
		i.Type = 'u'
	}
	if d := st.detour(); d != nil {
		i.Optimized, i.InGuest, i.Region = true, d.run != nil, d.region.Len
	} else {
		i.Unoptimized = st.jump.Load().why
	}
	if r.ret != nil {
		r.ret.fillInfo(&i)
	}
	if r.jprobe != nil {
		i.Type = 'j'
	}
	if i.Pending = i.Gone && e.pending(r); i.Pending {
		i.Gone, i.Addr, i.Symbol, i.Offset, i.Insn = false, 0, r.where.symbol, r.where.offset, nil
	}
	if len(i.Insn) == 0 {
		i.Plan = ""
	}
	i.Stats = r.totals(make([]Stats, len(r.cells)))
	return i
}

// Stats returns the counts of p, in total and per vCPU. After Unregister they
// are those of its last registration, final; ok is false when it never was
// registered.
func (e *Engine) Stats(p *Kprobe) (total Stats, byCPU []Stats, ok bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	if p == nil {
		return Stats{}, nil, false
	}
	r := p.reg
	if r == nil {
		r = p.last
	}
	if r == nil || r.engine != e {
		return Stats{}, nil, false
	}
	byCPU = make([]Stats, len(r.cells))
	return r.totals(byCPU), byCPU, true
}
