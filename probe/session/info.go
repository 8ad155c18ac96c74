package session

import (
	"iter"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Info describes a probe at one moment.
type Info struct {
	Probe *Probe
	ID    uint64
	Name  string // GROUP/EVENT
	Kind  byte   // 'k' a kprobe, 'u' one on CPL3 code, 'r' a return probe, 'j' a jprobe, 't' one of a tracepoint, 'w' a watch
	Spec  Spec   // as requested, with the current filter, and Def in the form in which it can be read back
	Label string // set by Probe.SetLabel
	Stay  bool   // it outlives its owner

	Symbol  string // at Addr
	Offset  uint64 // within Symbol
	Size    uint64 // bytes of Symbol
	Addr    guest.GVA
	Parts   []string // of a function's entry: functions that the compiler has split off, which the probe does not cover
	Enabled bool     // as requested
	Armed   bool     // the code is patched, or the memory watched
	Gone    bool     // the code no longer exists
	Plan    string   // how the displaced instruction runs, or how a watch is served: see probe.Info and probe.WatchInfo

	Site  probe.Info      // of a probe: the engine's description
	Watch probe.WatchInfo // of a watch: likewise

	OnHost      string       // why its handlers run on the host; "": they run in the guest
	MirrorStack int          // of a jprobe with a mirror: bytes of the stack that are restored after it
	Program     *ProgramInfo // of a program from an object or a script
	Override    *Override    // with the values that the Session has chosen
	Injected    uint64       // calls that returned because of Override

	Tracepoint   string // the tracepoint of the probe, or ""
	TracepointOn bool   // the guest's kernel has switched it on: a guest that is paused, or boots, does so later

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
	InGuest uint64   // of these the runs in the guest, as reported by the guest
	Faults  uint64   // runs that ended early
	Missed  uint64   // hits in the guest during another run on the same vCPU
	Fault   string   // the latest fault, "" for none

	Instructions int // slots of 8 bytes
	CodeBytes    int // of machine code in the guest; 0 on the host
	Budget       int64
	Steps        int64         // of an object: the most steps of a run
	Warnings     []bpf.Warning // mistakes that it makes on some path
}

// Get describes one probe, by its number or name.
func (st *Session) Get(name string) (Info, error) {
	a, err := st.Find(name)
	if err != nil {
		return Info{}, err
	}
	if ps := st.describeSettled([]*Probe{a}, st.describe); len(ps) > 0 {
		return ps[0], nil
	}
	return Info{}, st.NotFoundError(name) // it was removed just now
}

// Infos describes probes, some at a time, so that a long list takes little memory. It
// leaves out removed probes, and ends when the Session is closed.
func (st *Session) Infos(as []*Probe) iter.Seq[Info] { return st.parts(as, st.describe) }

// Outlines is Infos for frequent calls: without constant fields, and with the counts
// of all vCPUs together.
func (st *Session) Outlines(as []*Probe) iter.Seq[Info] { return st.parts(as, st.outline) }

func (st *Session) parts(as []*Probe, how func(*Probe) Info) iter.Seq[Info] {
	return func(yield func(Info) bool) {
		for part := range slices.Chunk(as, atOnce) {
			if st.closed.Load() {
				return // they are all removed
			}
			for _, p := range st.describeSettled(part, how) {
				if !yield(p) {
					return
				}
			}
		}
	}
}

// Describe describes probes, detached ones in their final state.
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

// Counts describes probes like Outlines, one by one: calls left otherwise than by a
// return may still count as in use.
func (st *Session) Counts(as []*Probe) iter.Seq[Info] { return st.describeEach(as, st.outline) }

// DescribePresent describes probes, without removed ones.
func (st *Session) DescribePresent(as []*Probe) []Info {
	return slices.AppendSeq(make([]Info, 0, len(as)), st.describeEach(as, st.describe))
}

// describeEach describes probes one by one, without detached ones.
func (st *Session) describeEach(as []*Probe, how func(*Probe) Info) iter.Seq[Info] {
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

// describeSettled describes probes including calls of return probes whose state only
// a stopped world shows, which are rare.
func (st *Session) describeSettled(as []*Probe, how func(*Probe) Info) []Info {
	out := slices.AppendSeq(make([]Info, 0, len(as)), st.describeEach(as, how))
	if !slices.ContainsFunc(out, func(p Info) bool { return p.InUse > 0 }) || !st.engine.Undecided() {
		return out
	}
	if err := st.engine.Reclaim(); err != nil {
		st.log.Warn("calls that were left cannot be distinguished from calls under way", "err", err)
		return out
	}
	return slices.AppendSeq(out[:0], st.describeEach(as, how))
}

// describe describes one registered probe. Callers hold its mu, or changes.
func (at *attacher) describe(a *Probe) Info { return a.on.describe(at, a) }

// outline describes the changing fields of one registered probe, with the counts of
// all vCPUs together: it is called repeatedly, for ten thousand probes. Callers hold
// its mu, or changes.
func (at *attacher) outline(a *Probe) Info { return a.on.outline(at, a) }

// outlineWith is outline, with the engine's description and these counts.
func (at *attacher) outlineWith(a *Probe, info probe.Info, s Stats) Info {
	p := Info{
		Probe: a, ID: a.id, Name: a.def.Name(), Kind: info.Type, Symbol: info.Symbol, Offset: info.Offset, Addr: info.Addr,
		Enabled: !info.Disabled, Armed: info.Armed, Gone: info.Gone, Plan: info.Plan, Site: info, Stats: s,
	}
	if info.Type == 'r' {
		p.InUse = activeCalls(s)
	}
	if p.Tracepoint = a.def.Tracepoint(); p.Tracepoint != "" {
		p.Kind, p.TracepointOn = 't', at.tracepoints.isOn(p.Tracepoint)
	}
	return p
}

// hostReason returns why the handlers of a probe run on the host; "" if they do not.
func (a *Probe) hostReason(info probe.Info) string {
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

// finalize turns the description of a from when it was attached into its final state.
func (at *attacher) finalize(a *Probe, p *Info) {
	p.Armed, p.Stats, p.InUse, p.Program = false, at.stats(a), 0, a.runs.describe()
	p.Override, p.Injected = a.injector.state()
}

// activeCalls returns how many calls an attached return probe follows, without those
// that it followed with another filter: computed from its counts, because other
// sources change while these are read.
func activeCalls(s Stats) int {
	return int(max(0, int64(s.Handled-s.Returns-s.Abandoned-s.UnderWay)))
}

// settleReturns makes the number of events of a detached return probe equal to its
// returns: a task that was stopped between the count and the program in the guest
// never reaches the program, and hits that are counted during a guest call make no
// event.
func (at *attacher) settleReturns(a *Probe) {
	if a.runs.hasOwnEvents() || a.def.Kind != event.KindReturn {
		return
	}
	total, _ := a.on.counts(at.engine)
	have := a.source.Counts()
	if missing := int64(total.Returns - a.runs.countRejected() - a.runs.countUnwanted() - have.Stored - have.Lost); missing > 0 {
		a.source.Lose(0, uint64(missing))
	}
}

// stats returns a probe's counters, even after it was detached. Callers hold its mu,
// or changes.
func (at *attacher) stats(a *Probe) Stats {
	total, cpus := a.on.counts(at.engine)
	past := a.past
	if past == nil {
		past = &former{}
	}
	total.Add(past.total)
	for i := range past.cpus {
		cpus[i].Add(past.cpus[i])
	}
	s := a.sums(total)
	if a.def.Kind == event.KindReturn || a.def.Kind == event.KindWatch {
		s.Rejected = past.rejected + a.runs.countRejected()
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
	if a.past != nil {
		c.Stored, c.Lost = c.Stored+a.past.events.Stored, c.Lost+a.past.events.Lost
	}
	return c
}

// SpecOf returns a Spec that attaches a probe of a definition in its current state:
// with its current filter, and enabled or not.
func (st *Session) SpecOf(a *Probe) Spec {
	a.mu.Lock()
	defer a.mu.Unlock()
	spec := *a.spec
	spec.Def, spec.Disabled, spec.Stay = a.def.String(), a.on.disabled(st.engine), true
	return spec
}
