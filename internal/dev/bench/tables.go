package bench

import (
	"fmt"
	"math"
	"strings"
)

// Table is a part of a result, for people.
type Table struct {
	Heading []string
	Rows    [][]string
	Notes   []string // below it
}

// Header describes in a line where the results were measured, and how.
func (r *Result) Header() string {
	return fmt.Sprintf("Machine: %s, %d cores, Linux %s. KVM: %s. %s, commit %s. Medians of %d runs (lowest to highest).",
		r.Host.CPU, r.Host.Cores, r.Host.Kernel, r.Host.KVM, r.Host.Date, r.Host.Version, r.Runs)
}

// Tables are all parts of a result.
func (r *Result) Tables() []Table {
	tables := []Table{r.probes(), r.guestTable(), r.peers()}
	if strings.Contains(fmt.Sprint(tables), doubt) {
		last := &tables[len(tables)-1]
		last.Notes = append(last.Notes, "`"+doubt+"`: no cost can be that: the machine's noise was larger than the measured cost. Measure again when it is quiet.")
	}
	return tables
}

// Markdown renders a result as docs/benchmarks.md shows it.
func (r *Result) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Header())
	for _, t := range r.Tables() {
		if len(t.Rows) > 0 {
			fmt.Fprintf(&b, "| %s |\n|%s\n", strings.Join(t.Heading, " | "), strings.Repeat("---|", len(t.Heading)))
		}
		for _, row := range t.Rows {
			fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		}
		for _, n := range t.Notes {
			fmt.Fprintf(&b, "\n%s\n", n)
		}
		b.WriteString("\n")
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// doubt marks a figure that cannot be.
const doubt = "(!)"

// figure is a number with a mark where it cannot be: a cost is more than 0.
func figure(format string, v float64) string {
	s := fmt.Sprintf(format, v)
	if !(v > 0) || math.IsInf(v, 0) {
		return s + " " + doubt
	}
	return s
}

// String renders a spread as "median (min to max)", with a digit more for small
// numbers, and with a mark where its median cannot be a cost.
func (s *Spread) String() string {
	f := "%.0f"
	if s.Median < 100 {
		f = "%.1f"
	}
	return fmt.Sprintf("%s ("+f+" to "+f+")", figure(f, s.Median), s.Min, s.Max)
}

// probes has the kinds of probes.
func (r *Result) probes() Table {
	t := Table{
		Heading: []string{"", "CPL", "probe", "exits per hit", "ns per hit", "host ns per hit", "guest instructions added", "ratio to k", "unprobed call, ns"},
		Notes:   []string{"`-`: not available on this host, or the same as another row."},
	}
	for _, row := range r.Rows {
		if row.NsPerHit == nil {
			t.Rows = append(t.Rows, []string{row.Name, fmt.Sprint(row.CPL), row.What, "-", "-", "-", "-", "-", "-"})
			continue
		}
		t.Rows = append(t.Rows, []string{
			row.Name, fmt.Sprint(row.CPL), row.What, fmt.Sprintf("%.2f", row.ExitsPerHit), row.NsPerHit.String(), figure("%.0f", row.EngineNs),
			fmt.Sprintf("%.1f", row.InsnsPerHit), figure("%.2f", row.RatioToFirst), figure("%.1f", row.BaselineNs),
		})
	}
	return t
}

// guestTable has the hits without an exit, and the cost of making jumps.
func (r *Result) guestTable() Table {
	t := Table{Heading: []string{"in the guest, CPL3", "a call, ns", "of it the probe, ns", "beside", "ratio to it", "hits", "exits", "records stored, lost"}}
	for _, x := range r.InGuest {
		if x.CallNs == nil {
			t.Rows = append(t.Rows, []string{x.What, "unavailable: " + x.Unavailable, "-", "-", "-", "-", "-", "-"})
			continue
		}
		over, floor, ratio, records := "-", "-", "-", "-"
		if x.Name != rowPlain {
			over = figure("%.1f", x.OverNs)
		}
		if x.Floor != "" {
			floor, ratio = x.Floor, figure("%.2f", x.FloorRatio)
		}
		if x.Stored+x.Lost > 0 {
			records = fmt.Sprintf("%d, %d", x.Stored, x.Lost)
		}
		t.Rows = append(t.Rows, []string{x.Name + ": " + x.What, x.CallNs.String(), over, floor, ratio, fmt.Sprint(x.Hits), fmt.Sprint(x.Exits), records})
	}
	t.Notes = []string{r.Attach.String(), r.Optimizer.String(), r.Snapshots.String(), r.Profiling.String(), r.Watching.String()}
	return t
}

// String describes the cost of attaching a script.
func (a *Attach) String() string {
	if a.Ns == nil {
		return fmt.Sprintf("What attaching a script costs was not measured: %s.", a.Unavailable)
	}
	return fmt.Sprintf("A script of %d lines at %d functions, %d of them in the guest, from its text to its jumps: %s ms (%.0f to %.0f).",
		a.Lines, a.Sites, a.InGuest, figure("%.0f", a.Ns.Median/1e6), a.Ns.Min/1e6, a.Ns.Max/1e6)
}

// String describes the cost of optimizing.
func (o *Optimizer) String() string {
	if o.OneNs == nil {
		return fmt.Sprintf("What optimizing costs was not measured: %s.", o.Unavailable)
	}
	us := func(s *Spread) string {
		return fmt.Sprintf("%s us (%.0f to %.0f)", figure("%.0f", s.Median/1e3), s.Min/1e3, s.Max/1e3)
	}
	return fmt.Sprintf("Optimizing, on %d busy vCPUs, from asking them to stop until they ran again: one site %s; %d sites in %d stops %s in all; the longest single stop of the run %.0f us.",
		o.CPUs, us(o.OneNs), o.Sites, o.Stops, us(o.BatchNs), o.LongestNs/1e3)
}

// peers has the alternatives, and the cost of starting a guest.
func (r *Result) peers() Table {
	t := Table{Heading: []string{"instead", "what", "ns per hit", "ratio to k at CPL3"}}
	k := r.median("k", 3)
	for _, p := range r.Peers {
		if p.NsPerHit == nil {
			t.Rows = append(t.Rows, []string{p.Name, p.What, "unavailable: " + p.Unavailable, "-"})
			continue
		}
		ratio := "-"
		if k > 0 {
			ratio = figure("%.2f", p.NsPerHit.Median/k)
		}
		what := p.What
		for i, x := range p.Packets {
			what += fmt.Sprintf("%s %s %.1f", [...]string{"; us of packets, medians:", ","}[min(i, 1)], x.Data, x.Ns/1e3)
		}
		t.Rows = append(t.Rows, []string{p.Name, what, p.NsPerHit.String(), ratio})
	}
	if s := r.Startup; s.KVMNs != nil && s.GuestNs != nil {
		t.Notes = append(t.Notes, fmt.Sprintf("From nothing to the guest's first console line: %s ms for KVM, memory and image, and then %s ms of guest time (medians).",
			figure("%.1f", s.KVMNs.Median/1e6), figure("%.1f", s.GuestNs.Median/1e6)))
	}
	return t
}

// median returns the median of a row, or 0 if it has none.
func (r *Result) median(name string, cpl int) float64 {
	for _, row := range r.Rows {
		if row.Name == name && row.CPL == cpl && row.NsPerHit != nil {
			return row.NsPerHit.Median
		}
	}
	return 0
}
