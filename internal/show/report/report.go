package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/internal/show/timeline"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Report sums up a trace. Times are nanoseconds since the guest's boot before its first record.
type Report struct {
	// Events + Unshown + Missing = Delivered, and with Lost these are all of the
	// trace's events.
	Events    uint64 `json:"events"`            // in the file
	Unshown   uint64 `json:"unshown,omitempty"` // left out by the writer of the trace
	Missing   int64  `json:"missing,omitempty"` // delivered, but not in the file: lines were removed; below 0: or added
	Delivered uint64 `json:"delivered"`         // by the daemon, according to the end; without an end the events
	Lost      uint64 `json:"lost"`
	Late      uint64 `json:"late,omitempty"` // events that come after one with a later time

	Ended string `json:"ended"`          // why; "" where the trace was cut off
	Half  bool   `json:"half,omitempty"` // the last line was incomplete, and is left out

	BeginNS    int64   `json:"beginNs"`    // of the stream
	DurationNS int64   `json:"durationNs"` // up to the last event
	Rate       float64 `json:"rate"`       // events a second
	Boots      uint64  `json:"boots,omitempty"`
	BootsNS    []int64 `json:"bootsNs,omitempty"` // when the first hundred of these were
	Stops      uint64  `json:"stops,omitempty"`

	Probes []Probe  `json:"probes"`           // the most frequent ones first
	Others uint64   `json:"others,omitempty"` // events of more probes than are kept
	CPUs   []CPU    `json:"cpus"`
	Tasks  []Count  `json:"tasks"` // NAME-PID
	Gaps   []Gap    `json:"gaps"`  // the longest times without an event
	Losses []Loss   `json:"losses,omitempty"`
	Maps   []string `json:"maps,omitempty"` // maps with counters

	LossesLeft uint64 `json:"lossesLeft,omitempty"` // more than are listed
}

// Probe is the records of a probe at one stage.
type Probe struct {
	Probe   string   `json:"probe"`
	Stage   string   `json:"stage"`
	Events  uint64   `json:"events"`
	Share   float64  `json:"share"` // of all, in percent
	Rate    float64  `json:"rate"`  // events a second
	FirstNS int64    `json:"firstNs"`
	LastNS  int64    `json:"lastNs"`
	GapNS   int64    `json:"gapNs"`             // the longest time between two
	Latency *Latency `json:"latency,omitempty"` // if ends of its calls are known
	Args    []Arg    `json:"args,omitempty"`
}

// Arg is the values of a probe's argument.
type Arg struct {
	Name   string  `json:"name"`
	Values []Count `json:"values"`           // the most frequent ones first
	Others uint64  `json:"others,omitempty"` // how often it had another value
	Exact  bool    `json:"exact"`            // all values were kept, and no count is too high
}

// CPU is the number of a vCPU's events.
type CPU struct {
	CPU    int    `json:"cpu"`
	Events uint64 `json:"events"`
}

// Gap is a time without an event.
type Gap struct {
	FromNS int64 `json:"fromNs"`
	NS     int64 `json:"ns"`
}

// Loss is where events are missing.
type Loss struct {
	AfterNS int64  `json:"afterNs"` // the event before
	Lost    uint64 `json:"lost"`
}

// Bounds of the kept data.
const (
	maxProbes = 1000
	maxArgs   = 32 // of a probe
	maxGaps   = 5
	maxLosses = 100
	maxMaps   = 100
	allValues = 1 << 18
)

// Builder makes a report of records, which are added one after the other. It
// belongs to one goroutine. Its memory is bounded: about 150 MB for the worst
// traces, plus their longest line.
type Builder struct {
	out    Report
	base   int64
	last   int64 // time of the last event
	seen   bool  // there was one
	probes map[stage]*probe
	pairs  *timeline.Pairs
	cpus   map[int]uint64
	tasks  *top
	budget budget
	lost   uint64 // by its records
}

type stage struct{ probe, stage string }

type probe struct {
	Probe
	args  map[string]*top
	names []string // of args, in their order
	took  histogram
	pairs bool
}

// New returns a builder.
func New() *Builder {
	b := &Builder{probes: map[stage]*probe{}, pairs: timeline.NewPairs(), cpus: map[int]uint64{}, budget: budget{allValues}}
	b.tasks = newTop(&b.budget)
	return b
}

// Add adds the next record.
func (b *Builder) Add(r *timeline.Record) {
	switch {
	case r.Start != nil:
		b.base = r.Start.BootNS
		b.last = r.Start.TimeNS
		b.out.BeginNS = r.Start.TimeNS - b.base
		b.pairs.Start(r.Start)
	case r.Hit != nil:
		b.hit(r.Hit)
	case r.Boot != nil:
		b.out.Boots++
		if len(b.out.BootsNS) < maxLosses {
			b.out.BootsNS = append(b.out.BootsNS, r.Boot.BootNS-b.base)
		}
		b.pairs.Clear()
	case r.Stop != nil:
		b.out.Stops++
	case r.Map != nil:
		if len(b.out.Maps) < maxMaps && !slices.Contains(b.out.Maps, r.Map.Map) {
			b.out.Maps = append(b.out.Maps, cut(r.Map.Map))
		}
	case r.Lost != nil:
		b.lost += r.Lost.Lost
		if len(b.out.Losses) < maxLosses {
			b.out.Losses = append(b.out.Losses, Loss{b.last - b.base, r.Lost.Lost})
		} else {
			b.out.LossesLeft++
		}
	case r.End != nil:
		b.out.Ended = cmp.Or(r.End.Reason, "end")
		b.out.Delivered, b.out.Lost, b.out.Unshown = r.End.Delivered, r.End.Lost, r.End.Unshown
	}
}

func cut(s string) string { return strings.ToValidUTF8(s[:min(len(s), maxValue)], "") }

func (b *Builder) hit(h *api.Hit) {
	b.out.Events++
	if h.Late {
		b.out.Late++
	}
	b.cpus[h.CPU]++
	task := "<...>-0"
	if h.Task != nil {
		task = fmt.Sprintf("%s-%d", cut(h.Task.Comm), h.Task.PID)
	}
	b.tasks.add(task)
	if h.TimeNS > b.last {
		if b.seen {
			b.gap(Gap{b.last - b.base, h.TimeNS - b.last})
		}
		b.last = h.TimeNS
	}
	b.seen = true
	began, _, ok := b.pairs.Hit(h)
	p := b.probeOf(h)
	if p == nil {
		b.out.Others++
		return
	}
	p.hit(h, h.TimeNS-b.base, &b.budget)
	if ok {
		p.took.add(uint64(max(0, h.TimeNS-began)))
		p.pairs = p.pairs || h.DurationNS == 0
	}
}

// gap keeps the longest gaps.
func (b *Builder) gap(g Gap) {
	i, _ := slices.BinarySearchFunc(b.out.Gaps, g, func(a, g Gap) int { return cmp.Compare(g.NS, a.NS) })
	for i < len(b.out.Gaps) && b.out.Gaps[i].NS == g.NS {
		i++
	}
	if i == maxGaps {
		return
	}
	b.out.Gaps = slices.Insert(b.out.Gaps, i, g)
	b.out.Gaps = b.out.Gaps[:min(len(b.out.Gaps), maxGaps)]
}

// probeOf returns the probe of a hit, or nil if there are too many.
func (b *Builder) probeOf(h *api.Hit) *probe {
	if p := b.probes[stage{h.Probe, h.Stage}]; p != nil || len(b.probes) >= maxProbes || len(h.Probe) > 4096 || len(h.Stage) > 64 {
		return p
	}
	p := &probe{Probe: Probe{Probe: h.Probe, Stage: h.Stage}, args: map[string]*top{}}
	b.probes[stage{h.Probe, h.Stage}] = p
	return p
}

// hit adds a hit of the probe, at a time since the guest's boot.
func (p *probe) hit(h *api.Hit, at int64, budget *budget) {
	if p.Events == 0 {
		p.FirstNS, p.LastNS = at, at
	}
	p.Events++
	p.GapNS = max(p.GapNS, at-p.LastNS)
	p.FirstNS, p.LastNS = min(p.FirstNS, at), max(p.LastNS, at)
	for _, a := range h.Args {
		t := p.args[a.Name]
		if t == nil {
			if len(p.args) == maxArgs || len(a.Name) > maxValue {
				continue
			}
			t = newTop(budget)
			p.args[a.Name] = t
			p.names = append(p.names, a.Name)
		}
		t.add(a.Text)
	}
}

// Report returns the report of the added records, which were read from in. It
// has up to that many values of each argument, and up to that many tasks.
func (b *Builder) Report(values int, in *timeline.Reader) *Report {
	r := b.out
	r.Half, r.Missing = in.Half, in.Missing
	r.DurationNS = b.last - b.base - r.BeginNS
	if r.Ended == "" {
		r.Delivered, r.Lost = r.Events, b.lost
	}
	rate := func(n uint64) float64 {
		if r.DurationNS <= 0 {
			return 0
		}
		return round(float64(n) / float64(r.DurationNS) * 1e9)
	}
	r.Rate = rate(r.Events)
	r.Probes = []Probe{}
	for _, p := range b.probes {
		out := p.Probe
		out.Share, out.Rate = round(float64(p.Events)/float64(r.Events)*100), rate(p.Events)
		from := fromReturns
		if p.pairs {
			from = fromPairs
		}
		out.Latency = p.took.latency(from)
		for _, name := range p.names {
			t := p.args[name]
			a := Arg{Name: name, Exact: !t.over}
			a.Values, a.Others = t.mostFrequent(values)
			out.Args = append(out.Args, a)
		}
		r.Probes = append(r.Probes, out)
	}
	slices.SortFunc(r.Probes, func(a, b Probe) int {
		return cmp.Or(cmp.Compare(b.Events, a.Events), strings.Compare(a.Probe, b.Probe), strings.Compare(a.Stage, b.Stage))
	})
	r.CPUs = []CPU{}
	for cpu, n := range b.cpus {
		r.CPUs = append(r.CPUs, CPU{cpu, n})
	}
	slices.SortFunc(r.CPUs, func(a, b CPU) int { return cmp.Compare(a.CPU, b.CPU) })
	r.Tasks, _ = b.tasks.mostFrequent(values)
	if r.Gaps == nil {
		r.Gaps = []Gap{}
	}
	return &r
}

// round keeps two digits after the decimal point: more would be noise.
func round(f float64) float64 { return float64(int64(f*100+0.5)) / 100 }
