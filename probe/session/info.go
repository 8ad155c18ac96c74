package session

import (
	"iter"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Info describes a probe at one moment.
type Info struct {
	Probe *Probe
	ID    uint64
	Name  string // GROUP/EVENT
	Kind  byte   // 'k' a kprobe, 'u' one on CPL3 code, 'r' a return probe, 'j' a jprobe, 'w' a watch
	Spec  Spec   // as asked for, with the present filter, and Def in the form in which it reads back
	Label string // of Probe.SetLabel
	Stay  bool   // it stays after its owner

	Symbol  string // at Addr
	Offset  uint64 // within Symbol
	Size    uint64 // bytes of Symbol
	Addr    guest.GVA
	Parts   []string // of a function's entry: functions that the compiler has split off, which the probe does not cover
	Enabled bool     // as asked for
	Armed   bool     // the code is patched, or the memory watched
	Gone    bool     // the code no longer exists
	Plan    string   // how the displaced instruction runs, or how a watch is served: see probe.Info and probe.WatchInfo

	Site  probe.Info      // of a probe: as the engine describes it
	Watch probe.WatchInfo // of a watch: likewise

	OnHost      string       // why its handlers run on the host; "": they run in the guest
	MirrorStack int          // of a jprobe with a mirror: bytes of the stack that are restored after it
	Program     *ProgramInfo // of a program from an object or a script
	Override    *Override    // with the values that the Session has chosen
	Injected    uint64       // calls that Override made return

	InUse int // of a return probe: the calls that it follows now
	Stats Stats
}

// Stats are the counts of a probe since it was attached. Hits = Handled + Filtered + Missed at any time. Of an attached return probe also
// Handled = Returns + Abandoned + Info.InUse, of a detached one Handled = Returns + Abandoned + UnderWay.
type Stats struct {
	probe.Stats               // of all vCPUs
	CPUs        []probe.Stats // by vCPU; nil in outlines

	Events   uint64 // records made while there was a subscription
	Lost     uint64 // of these the records that found no room
	Rejected uint64 // returns, and accesses to a watched variable, whose record the filter has dropped
}

// ProgramInfo describes the program of a probe.
type ProgramInfo struct {
	Name    string // of the function in the object file
	Section string
	Maps    []string // names
	Runs    uint64   // begun
	InGuest uint64   // of these the runs in the guest, as the guest reports them
	Faults  uint64   // runs that ended early
	Missed  uint64   // hits in the guest during another run on the same vCPU
	Fault   string   // the latest fault, "" for none

	Instructions int // slots of 8 bytes
	CodeBytes    int // of machine code in the guest; 0 on the host
	Budget       int64
	Warnings     []bpf.Warning // mistakes that it makes on some path
}

// Get describes one probe, by its number or name.
func (st *Session) Get(name string) (Info, error) {
	a, err := st.Find(name)
	if err != nil {
		return Info{}, err
	}
	if ps := st.settled([]*Probe{a}, st.describe); len(ps) > 0 {
		return ps[0], nil
	}
	return Info{}, st.NotFound(name) // it went just now
}

// Infos describes probes, some at a time, so that a long list takes little memory. It leaves out probes that have gone, and ends
// when the Session is closed.
func (st *Session) Infos(as []*Probe) iter.Seq[Info] { return st.parts(as, st.describe) }

// Outlines is Infos for frequent calls: without what stays the same, and with the counts of all vCPUs together.
func (st *Session) Outlines(as []*Probe) iter.Seq[Info] { return st.parts(as, st.outline) }

func (st *Session) parts(as []*Probe, how func(*Probe) Info) iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for part := range slices.Chunk(as, atOnce) {
			if st.closed.Load() {
				return // they all go
			}
			for _, p := range st.settled(part, how) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// Describe describes probes, detached ones as they were when they went.
func (st *Session) Describe(as []*Probe) []Info {
	out := make([]Info, 0, len(as))
	for _, a := range as {
		a.mu.Lock()
		if a.gone {
			out = append(out, *a.last)
		} else {
			out = append(out, st.describe(a))
		}
		a.mu.Unlock()
	}
	return out
}

// Counts describes probes as Outlines does, one by one: calls that have been left in another way than by a return may still count as in use.
func (st *Session) Counts(as []*Probe) iter.Seq[Info] { return st.each(as, st.outline) }

// Present describes probes, without those that have gone.
func (st *Session) Present(as []*Probe) []Info {
	return slices.AppendSeq(make([]Info, 0, len(as)), st.each(as, st.describe))
}

// each describes probes one by one, without detached ones.
func (st *Session) each(as []*Probe, how func(*Probe) Info) iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for _, a := range as {
			a.mu.Lock()
			gone := a.gone
			var p Info
			if !gone {
				p = how(a)
			}
			a.mu.Unlock()
			if !gone && !yield(p) {
				return
			}
		}
	}
}

// settled describes probes with what only a stopped world tells about the calls that
// return probes follow, which is seldom anything.
func (st *Session) settled(as []*Probe, how func(*Probe) Info) []Info {
	out := slices.AppendSeq(make([]Info, 0, len(as)), st.each(as, how))
	if !slices.ContainsFunc(out, func(p Info) bool { return p.InUse > 0 }) || !st.engine.Undecided() {
		return out
	}
	if err := st.engine.Reclaim(); err != nil {
		st.log.Warn("calls that were left cannot be distinguished from calls under way", "err", err)
		return out
	}
	return slices.AppendSeq(out[:0], st.each(as, how))
}

// describe describes one registered probe. Callers hold its mu, or changes.
func (st *Session) describe(a *Probe) Info {
	if a.watch != nil {
		return st.describeWatch(a)
	}
	info, _ := st.engine.Info(a.kprobe)
	p := st.outlined(a, info, st.stats(a))
	p.Spec, p.Stay, p.Label = a.spec, a.stay, a.Label()
	p.Spec.Def = a.def.String()
	if j, ok := a.probe.(*probe.Jprobe); ok && j.Mirror != "" {
		p.MirrorStack = j.StackSize
	}
	p.Program, p.OnHost = a.programInfo(), a.whyOnHost(info)
	p.Override, p.Injected = a.injector.state()
	if sym, ok := st.guest.Image().Find(info.Addr); ok {
		p.Size = sym.Size
	}
	if img, ok := st.guest.Image().(interface{ Parts(name string) []string }); ok && (p.Offset == 0 || p.Offset == uint64(len(x86.Endbr64))) {
		p.Parts = img.Parts(p.Symbol)
	}
	return p
}

// outline describes as much of one registered probe as changes all the time, with the counts of all vCPUs together:
// it is asked for again and again, of ten thousand probes. Callers hold its mu, or changes.
func (st *Session) outline(a *Probe) Info {
	if a.watch != nil {
		return st.describeWatch(a)
	}
	info, _ := st.engine.Info(a.kprobe)
	total := info.Stats
	total.Add(a.past.total)
	return st.outlined(a, info, a.sums(total))
}

// outlined is outline, with what the engine has said and these counts.
func (st *Session) outlined(a *Probe, info probe.Info, s Stats) Info {
	p := Info{
		Probe: a, ID: a.id, Name: a.kprobe.Name, Kind: info.Type, Symbol: info.Symbol, Offset: info.Offset, Addr: info.Addr,
		Enabled: !info.Disabled, Armed: info.Armed, Gone: info.Gone, Plan: info.Plan, Site: info, Stats: s,
	}
	if info.Type == 'r' {
		p.InUse = underWay(s)
	}
	return p
}

// describeWatch describes a watch. Callers hold its mu, or changes.
func (st *Session) describeWatch(a *Probe) Info {
	i, _ := st.engine.WatchInfo(a.watch)
	p := Info{
		Probe: a, ID: a.id, Name: a.kprobe.Name, Kind: 'w', Spec: a.spec, Label: a.Label(), Stay: a.stay,
		Symbol: i.Symbol, Offset: i.Offset, Addr: i.Addr, Enabled: !i.Disabled, Armed: i.Armed, Gone: i.Gone, Plan: i.By,
		Watch: i, Stats: st.stats(a),
	}
	p.Spec.Def = a.def.String()
	if p.Program = a.programInfo(); p.Program != nil {
		p.OnHost = a.onHost
	}
	if sym, ok := st.guest.Image().Find(i.Addr); ok {
		p.Size = sym.Size
	}
	return p
}

// whyOnHost says why the handlers of a probe run on the host; "" when they do not.
func (a *Probe) whyOnHost(info probe.Info) string {
	switch {
	case info.InGuest:
		return ""
	case a.onHost != "":
		return a.onHost
	case info.NoStage != "":
		return info.NoStage
	case info.Optimized:
		return "another probe at this place takes an exit"
	}
	why := strings.ReplaceAll(info.Unoptimized.Reason, "_", " ")
	if d := info.Unoptimized.Detail; d != "" {
		why += ": " + d
	}
	return why
}

// programInfo describes the program of a, or returns nil.
func (a *Probe) programInfo() *ProgramInfo {
	p := a.prog
	if p == nil {
		return nil
	}
	s := p.Stats()
	info := &ProgramInfo{
		Name: p.Name, Section: p.Section, Runs: s.Runs, InGuest: s.InGuest, Faults: s.Faults, Missed: s.Missed, Maps: []string{},
		Instructions: p.Loaded().Len(), CodeBytes: len(p.Code()), Budget: p.Loaded().Budget(), Warnings: p.Warnings,
	}
	if s.Last != nil {
		info.Fault = s.Last.Error()
	}
	for _, m := range a.object.maps {
		if p.Uses(m.m) {
			info.Maps = append(info.Maps, m.name)
		}
	}
	return info
}

// final makes what described a when it was attached its final state.
func (st *Session) final(a *Probe, p *Info) {
	p.Armed, p.Stats, p.InUse, p.Program = false, st.stats(a), 0, a.programInfo()
	p.Override, p.Injected = a.injector.state()
}

// underWay returns how many calls a return probe that is attached follows, without those
// that it followed with another filter: by its counts,
// because what else tells changes while these are read.
func underWay(s Stats) int {
	return int(max(0, int64(s.Handled-s.Returns-s.Abandoned-s.UnderWay)))
}

// settleReturns makes the events of a return probe that was detached as many as its
// returns: a task that was stopped on its way from the count to the program in the guest
// comes there no more, and hits that are counted during a guest call make no event.
func (st *Session) settleReturns(a *Probe) {
	if a.program == nil || a.def.Kind != event.KindReturn {
		return
	}
	total, _ := st.engineStats(a)
	have := a.source.Counts()
	if missing := int64(total.Returns - a.program.Rejected() - a.program.Unwanted() - have.Stored - have.Lost); missing > 0 {
		a.source.Lose(0, uint64(missing))
	}
}

// stats returns a probe's counters, after it was detached too. Callers hold its mu, or
// changes.
func (st *Session) stats(a *Probe) Stats {
	total, cpus := st.engineStats(a)
	total.Add(a.past.total)
	for i := range a.past.cpus {
		cpus[i].Add(a.past.cpus[i])
	}
	s := a.sums(total)
	if a.program != nil && a.def.Kind != event.KindProbe {
		s.Rejected = a.past.rejected + a.program.Rejected()
	}
	s.CPUs = cpus
	return s
}

// sums are the counts of all vCPUs together, with a's events. Callers hold its mu, or changes.
func (a *Probe) sums(total probe.Stats) Stats {
	events := a.counts()
	return Stats{Stats: total, Events: events.Stored + events.Lost, Lost: events.Lost}
}

// counts are the events of a. Callers hold its mu, or changes.
func (a *Probe) counts() event.Counts {
	c := a.source.Counts()
	return event.Counts{Stored: c.Stored + a.past.events.Stored, Lost: c.Lost + a.past.events.Lost}
}

// SpecOf returns a Spec that attaches a probe of a definition as it is now: with its present filter, and enabled or not.
func (st *Session) SpecOf(a *Probe) Spec {
	a.mu.Lock()
	defer a.mu.Unlock()
	spec := a.spec
	spec.Def, spec.Disabled, spec.Stay = a.def.String(), a.kprobe.Disabled, true
	if a.watch != nil {
		info, _ := st.engine.WatchInfo(a.watch)
		spec.Disabled = info.Disabled
	}
	return spec
}
