package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Row is the state of a probe at a moment. Rates are per second, of the interval
// before it.
type Row struct {
	ID     uint64  `json:"id"`
	Name   string  `json:"name"`
	Kind   string  `json:"kind"`  // as api.Probe.Kind
	Place  string  `json:"place"` // SYMBOL+OFFSET, or the address
	Runs   string  `json:"runs"`  // where its handlers run: guest or host
	By     string  `json:"by"`    // how hits come: jump or int3, for a watch also reg (a debug register) or page; off: not armed
	Rate   float64 `json:"rate"`  // of hits
	Hits   uint64  `json:"hits"`
	Missed uint64  `json:"missed"`
	Lost   uint64  `json:"lost"`

	// For a return probe: its calls in the last moments, and how many of them were
	// timed. The other fields are about the timed calls. All are 0 if no call was
	// timed.
	Calls  uint64 `json:"calls,omitempty"`
	Timed  uint64 `json:"timed,omitempty"`
	MeanNS uint64 `json:"meanNs,omitempty"`
	P99NS  uint64 `json:"p99Ns,omitempty"` // at least, and at most a quarter too high
}

// CPU is the activity of a vCPU at a moment.
type CPU struct {
	CPU   int     `json:"cpu"`
	State string  `json:"state"`
	Rate  float64 `json:"rate"` // of VM exits
	Exits []Exit  `json:"exits"`
}

// Exit is how often vCPUs leave the guest for a reason.
type Exit struct {
	Reason string  `json:"reason"`
	Rate   float64 `json:"rate"`
}

// Moment is all displayed data of a moment.
type Moment struct {
	TimeNS  int64   `json:"timeNs"`  // as in api.Hit
	Seconds float64 `json:"seconds"` // of the interval before it; 0: this is the first one, without rates
	State   string  `json:"state"`   // of the guest
	Boots   int     `json:"boots"`
	Armed   bool    `json:"armed"`
	Rate    float64 `json:"rate"` // of hits of all probes
	Missed  uint64  `json:"missed"`
	Lost    uint64  `json:"lost"`
	Probes  []Row   `json:"probes"`
	CPUs    []CPU   `json:"cpus"`
}

const (
	// history is how many rates of a probe are kept.
	history = 60
	// window is how many moments the displayed durations cover.
	window = 10
)

// probe is one that is followed.
type probe struct {
	now   api.ProbeCounts
	rate  float64
	rates []float64
	took  []took // in the last moments; empty if none were recorded
	row   Row
	known bool // row is as of now
}

// took is the number of calls in a moment, and their durations, or nil if no
// call was timed.
type took struct {
	calls uint64
	d     *api.Durations
}

// Rates computes rates from counts.
type Rates struct {
	probes map[uint64]*probe
	order  []*probe          // of probes, by number
	fresh  map[uint64]uint64 // by number: the previous hits of probes in the incomplete moment
	cpus   map[int]map[string]uint64
	guest  api.Guest
	cpu    []CPU
	begun  bool
	at     int64
	took   float64
}

// Add adds a record, and reports whether it completes a moment.
func (r *Rates) Add(c api.Counted) bool {
	if r.probes == nil {
		r.probes, r.cpus = map[uint64]*probe{}, map[int]map[string]uint64{}
	}
	if r.fresh == nil {
		r.fresh = map[uint64]uint64{}
	}
	if c.Guest != nil {
		r.guest = *c.Guest
	}
	for _, p := range c.Probes {
		x := r.probes[p.ID]
		if x == nil {
			x = &probe{}
			r.probes[p.ID] = x
			i, _ := slices.BinarySearchFunc(r.order, p.ID, func(x *probe, id uint64) int { return cmp.Compare(x.now.ID, id) })
			r.order = slices.Insert(r.order, i, x)
		}
		r.fresh[p.ID] = x.now.Hits
		t := took{d: p.Durations}
		if r.begun && p.Returns > x.now.Returns {
			t.calls = p.Returns - x.now.Returns
		}
		p.Durations = nil
		x.now, x.known = p, false
		if t.d != nil || len(x.took) > 0 {
			x.took = append(x.took, t)
		}
	}
	for _, id := range c.Detached {
		delete(r.probes, id)
	}
	if len(c.Detached) > 0 {
		r.order = slices.DeleteFunc(r.order, func(x *probe) bool { return r.probes[x.now.ID] != x })
	}
	if c.More {
		return false
	}
	r.took = 0
	if r.begun {
		r.took = float64(max(1, c.TimeNS-r.at)) / 1e9
	}
	r.begun, r.at = true, c.TimeNS
	for _, x := range r.order {
		before, there := r.fresh[x.now.ID]
		x.known = x.known && x.rate == 0 && len(x.took) == 0
		x.rate = 0
		if there && r.took > 0 && x.now.Hits > before {
			x.rate = float64(x.now.Hits-before) / r.took
		}
		if !there && len(x.took) > 0 {
			x.took = append(x.took, took{})
		}
		if r.took > 0 {
			x.rates = lastN(append(x.rates, x.rate), history)
		}
		if x.took = lastN(x.took, window); !slices.ContainsFunc(x.took, func(t took) bool { return t.d != nil }) {
			x.took = x.took[:0]
		}
	}
	r.fresh = nil
	r.updateExits()
	return true
}

// lastN keeps only the last n, in memory that does not grow.
func lastN[T any](s []T, n int) []T {
	if len(s) > n {
		copy(s, s[len(s)-n:])
		s = s[:n]
	}
	return s
}

// updateExits computes the rates of VM exits.
func (r *Rates) updateExits() {
	r.cpu = r.cpu[:0:0]
	for _, c := range r.guest.CPUs {
		before := r.cpus[c.CPU]
		x := CPU{CPU: c.CPU, State: c.State, Exits: []Exit{}}
		for reason, n := range c.Exits {
			if r.took > 0 && n > before[reason] {
				rate := float64(n-before[reason]) / r.took
				x.Rate += rate
				x.Exits = append(x.Exits, Exit{reason, rate})
			}
		}
		slices.SortFunc(x.Exits, func(a, b Exit) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Reason, b.Reason)) })
		r.cpus[c.CPU] = maps.Clone(c.Exits)
		r.cpu = append(r.cpu, x)
	}
}

// Moment returns the last complete moment, its probes by number.
func (r *Rates) Moment() Moment {
	m := Moment{TimeNS: r.at, Seconds: r.took, State: r.guest.State, Boots: r.guest.Boots, Armed: r.guest.Enabled, Probes: make([]Row, 0, len(r.probes)), CPUs: r.cpu}
	for _, x := range r.order {
		row := x.shownRow()
		m.Rate += row.Rate
		m.Missed, m.Lost = command.Sum(m.Missed, row.Missed), command.Sum(m.Lost, row.Lost)
		m.Probes = append(m.Probes, row)
	}
	return m
}

// shownRow returns the displayed row of a probe. With very many probes, most
// rows are unchanged and cached.
func (x *probe) shownRow() Row {
	if !x.known {
		x.row, x.known = x.freshRow(), true
	}
	return x.row
}

func (x *probe) freshRow() Row {
	p := x.now
	out := Row{ID: p.ID, Name: p.Name, Kind: p.Kind, Place: p.Addr.String(), Runs: p.Runs, By: "int3", Rate: x.rate, Hits: p.Hits, Missed: p.Missed, Lost: p.Lost}
	if p.Symbol != "" {
		out.Place = fmt.Sprintf("%s+%#x", p.Symbol, p.Offset)
	}
	if out.Runs == "" {
		out.Runs = api.RunsOnHost
	}
	switch {
	case !p.Armed:
		out.By = "off"
	case p.Optimized:
		out.By = "jump"
	case p.Kind == "w":
		out.By = map[string]string{"debug_register": "reg", "page": "page"}[p.Plan]
		if out.By == "" {
			out.By = "int3" // a breakpoint
		}
	}
	if d := x.durations(); d != nil {
		for _, t := range x.took {
			out.Calls += t.calls
		}
		// The last returned calls may be timed before they are counted.
		out.Calls = max(out.Calls, d.Count)
		out.Timed, out.MeanNS, out.P99NS = d.Count, d.SumNS/d.Count, percentile(d, 99)
	}
	return out
}

// durations returns the sum of the last moments' durations, or nil if no call
// was timed.
func (x *probe) durations() *api.Durations {
	if len(x.took) == 0 {
		return nil
	}
	var sum api.Durations
	counts := map[api.MapBucket]uint64{} // by range
	for _, t := range x.took {
		d := t.d
		if d == nil {
			continue
		}
		sum.Count, sum.SumNS = command.Sum(sum.Count, d.Count), command.Sum(sum.SumNS, d.SumNS)
		for _, b := range d.Buckets {
			at := api.MapBucket{Low: b.Low, High: b.High}
			counts[at] = command.Sum(counts[at], b.Count)
		}
	}
	if sum.Count == 0 {
		return nil
	}
	for b, n := range counts {
		b.Count = n
		sum.Buckets = append(sum.Buckets, b)
	}
	slices.SortFunc(sum.Buckets, func(a, b api.MapBucket) int { return cmp.Compare(a.Low, b.Low) })
	return &sum
}

// percentile returns the last duration of the bucket that contains the
// percentile.
func percentile(d *api.Durations, percent uint64) uint64 {
	need, seen := (d.Count*percent+99)/100, uint64(0)
	for _, b := range d.Buckets {
		if seen += b.Count; seen >= need {
			return uint64(b.High)
		}
	}
	return 0
}

// history returns the last rates of a probe.
func (r *Rates) history(id uint64) []float64 {
	if x := r.probes[id]; x != nil {
		return x.rates
	}
	return nil
}

// sortExits returns rates by reason, the highest first.
func sortExits(by map[string]float64) (out []Exit) {
	for reason, rate := range by {
		out = append(out, Exit{reason, rate})
	}
	slices.SortFunc(out, func(a, b Exit) int { return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(a.Reason, b.Reason)) })
	return out
}
