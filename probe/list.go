package probe

import (
	"cmp"
	"iter"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
)

// List returns all registered probes, in the order of All.
func (e *Engine) List() []Info { return slices.AppendSeq([]Info{}, e.All()) }

// All yields all registered probes, ascending by address, the newest first where
// several are at one address (the order in which they are called), and finally the
// probes that are gone. Each is described as it is when its turn comes, so that no
// change waits for a long list; one that is unregistered before is left out.
func (e *Engine) All() iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for _, r := range e.orderedRegistrations() {
			e.view.RLock()
			there := e.registrationOf(r.probe) == r
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

// orderedRegistrations returns what All lists.
func (g *registry) orderedRegistrations() (out []*registration) {
	g.view.RLock()
	defer g.view.RUnlock()
	for _, st := range g.sortedSites() {
		out = append(out, *st.chain.Load()...)
	}
	there := len(out)
	for r := range g.gone {
		out = append(out, r)
	}
	slices.SortFunc(out[there:], func(a, b *registration) int { return cmp.Compare(a.reportedAddr(), b.reportedAddr()) })
	return slices.DeleteFunc(out, (*registration).hidden)
}

// sortedSites returns all sites, ascending by address.
func (g *registry) sortedSites() []*site {
	sites := make([]*site, 0, g.sites.Len())
	for _, st := range g.sites.All() {
		sites = append(sites, st)
	}
	slices.SortFunc(sites, func(a, b *site) int { return cmp.Compare(a.addr, b.addr) })
	return sites
}

// Info describes p, and reports whether it is registered.
func (e *Engine) Info(p *Kprobe) (Info, bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	r := e.registrationOf(p)
	if r == nil {
		return Info{}, false
	}
	return e.info(r), true
}

// info describes r. Callers hold Engine.view or Engine.mu.
func (g *registry) info(r *registration) Info {
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
	r.kind.describe(&i)
	if i.Pending = i.Gone && g.pending(r); i.Pending {
		i.Gone, i.Addr, i.Symbol, i.Offset, i.Insn = false, 0, r.where.symbol, r.where.offset, nil
	}
	if len(i.Insn) == 0 {
		i.Plan = ""
	}
	i.Stats = r.totals(make([]Stats, len(r.cells)))
	return i
}

// Stats returns the counts of p, in total and per vCPU. After Unregister they are the
// final counts of its last registration; ok is false if it never was registered.
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
	if r == nil || r.owner != &e.registry {
		return Stats{}, nil, false
	}
	byCPU = make([]Stats, len(r.cells))
	return r.totals(byCPU), byCPU, true
}

// EngineStats are the counts of all vCPUs, or of one. They show how many exits the
// probes caused (Breakpoints + Detours + Stepped + InPlace + Returns) and what went
// otherwise than planned.
type EngineStats struct {
	Breakpoints uint64 // breakpoint traps at armed sites: hits, whatever the number of probes there
	Aliases     uint64 // of these: through another mapping of the site's page
	Emulated    uint64 // instruction emulated
	Boosted     uint64 // continued in a boosted slot
	Stepped     uint64 // stepped slots that finished: a second exit each
	InPlace     uint64 // in-place steps that ended: a second exit each
	Stale       uint64 // traps of a probe that had been removed by then: the guest just resumed
	Foreign     uint64 // breakpoints of the guest's own
	Strays      uint64 // traps in a slot that the vCPU was not known to be in
	Abandoned   uint64 // steps that never ended, because the guest went elsewhere
	Faults      uint64 // exceptions raised by a displaced instruction
	Returns     uint64 // returns to a trampoline: one for all kretprobes of an activation
	Detours     uint64 // hits at the exit of a detour: hits of optimized sites that the host handled
	Punned      uint64 // hits of an int3 inside a jump: moved to the detour's copy of the instruction there
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

// SlotOf returns the address of a slot that p's instruction runs in, and false if it
// never runs in one or p is not registered.
func (e *Engine) SlotOf(p *Kprobe) (guest.GVA, bool) {
	e.view.RLock()
	defer e.view.RUnlock()
	r := e.registrationOf(p)
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
