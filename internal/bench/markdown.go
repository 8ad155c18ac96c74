package bench

import (
	"cmp"
	"fmt"
	"strings"
)

// Markdown renders a result as docs/benchmarks.md shows it.
func (r *Result) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "Machine: %s, %d cores, Linux %s. KVM: %s. %s, commit %s. Medians of %d runs (lowest to highest).\n\n",
		r.Host.CPU, r.Host.Cores, r.Host.Kernel, r.Host.KVM, r.Host.Date, r.Host.Version, r.Runs)
	b.WriteString("| | CPL | probe | exits per hit | ns per hit | host ns per hit | guest instructions added | ratio to k | unprobed call, ns |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, row := range r.Rows {
		if row.NsPerHit == nil {
			fmt.Fprintf(&b, "| %s | %d | %s | - | - | - | - | - | - |\n", row.Name, row.CPL, row.What)
			continue
		}
		fmt.Fprintf(&b, "| %s | %d | %s | %.2f | %s | %.0f | %.1f | %.2f | %.1f |\n",
			row.Name, row.CPL, row.What, row.ExitsPerHit, row.NsPerHit, row.EngineNs, row.InsnsPerHit, row.RatioToFirst, row.BaselineNs)
	}
	b.WriteString("\n`-`: not to be had on this host, or the same as another row.\n\n")
	r.inGuest(&b)
	r.optimizer(&b)
	b.WriteString("| instead | what | ns per hit | ratio to k at CPL3 |\n|---|---|---|---|\n")
	k := r.median("k", 3)
	for _, p := range r.Peers {
		if p.NsPerHit == nil {
			fmt.Fprintf(&b, "| %s | %s | unavailable: %s | - |\n", p.Name, p.What, p.Unavailable)
			continue
		}
		ratio := "-"
		if k > 0 {
			ratio = fmt.Sprintf("%.2f", p.NsPerHit.Median/k)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", p.Name, p.What, p.NsPerHit, ratio)
	}
	if s := r.Startup; s.KVMNs != nil && s.GuestNs != nil {
		fmt.Fprintf(&b, "\nFrom nothing to the guest's first console line: %.1f ms for KVM, memory and image, and then %.1f ms of guest time (medians).\n",
			s.KVMNs.Median/1e6, s.GuestNs.Median/1e6)
	}
	return b.String()
}

// inGuest renders the hits without an exit.
func (r *Result) inGuest(b *strings.Builder) {
	if len(r.InGuest) == 0 {
		return
	}
	b.WriteString("| in the guest, CPL3 | a call, ns | of it the probe, ns | hand-written floor | ratio to it | hits | exits | records stored, lost |\n|---|---|---|---|---|---|---|---|\n")
	for _, x := range r.InGuest {
		if x.CallNs == nil {
			fmt.Fprintf(b, "| %s | unavailable: %s | - | - | - | - | - | - |\n", x.What, x.Unavailable)
			continue
		}
		floor, ratio, records := "-", "-", "-"
		if x.Floor != "" {
			floor, ratio = x.Floor, fmt.Sprintf("%.2f", x.FloorRatio)
		}
		if x.Stored+x.Lost > 0 {
			records = fmt.Sprintf("%d, %d", x.Stored, x.Lost)
		}
		fmt.Fprintf(b, "| %s: %s | %s | %.1f | %s | %s | %d | %d | %s |\n", x.Name, x.What, x.CallNs, x.OverNs, floor, ratio, x.Hits, x.Exits, records)
	}
	b.WriteString("\n")
}

// optimizer renders what making jumps costs.
func (r *Result) optimizer(b *strings.Builder) {
	o := r.Optimizer
	if o.OneNs == nil {
		fmt.Fprintf(b, "What optimizing costs was not measured: %s.\n\n", o.Unavailable)
		return
	}
	us := func(s *Spread) string {
		return fmt.Sprintf("%.0f us (%.0f to %.0f)", s.Median/1e3, s.Min/1e3, s.Max/1e3)
	}
	fmt.Fprintf(b, "Optimizing, on %d busy vCPUs, from asking them to stop until they ran again: one site %s; %d sites in %d stops %s in all; the longest single stop of the run %.0f us.\n\n",
		o.CPUs, us(o.OneNs), o.Sites, o.Stops, us(o.BatchNs), o.LongestNs/1e3)
}

// String renders a spread as "median (min to max)", with a digit more for small
// numbers.
func (s *Spread) String() string {
	f := "%.0f (%.0f to %.0f)"
	if cmp.Compare(s.Median, 100) < 0 {
		f = "%.1f (%.1f to %.1f)"
	}
	return fmt.Sprintf(f, s.Median, s.Min, s.Max)
}

// median returns the median of a row, or 0 where there is none.
func (r *Result) median(name string, cpl int) float64 {
	for _, row := range r.Rows {
		if row.Name == name && row.CPL == cpl && row.NsPerHit != nil {
			return row.NsPerHit.Median
		}
	}
	return 0
}
