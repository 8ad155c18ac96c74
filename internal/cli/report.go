package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/report"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
)

func reportCommand() command.Spec {
	var values int
	return command.Spec{
		Local: true,
		Use:   "report FILE",
		Short: "Sum up a saved trace",
		Long: `Sum up a trace that 'guestprobe trace --format json' has saved, without a daemon. FILE - is
standard input. For each probe it shows the events, their share and rate, the longest time
between two events, and how long calls took: for return probes, and for probes at a function's
ret if its entry has a probe too. The most frequent values of each argument follow, the busiest
tasks and vCPUs, the longest times without an event, and where events were lost.

The sums close: events in FILE + events that trace did not show + events missing in
FILE = events that the daemon delivered. Together with the lost events, these are all events.
Means, minima and maxima are exact, quantiles to 0.8 percent. For an argument the 1000 most
frequent values are kept. If there are more values, the counts are estimates by the
Space-Saving algorithm, marked with ~: they are upper limits, as JSON says.

A truncated trace, even one cut within a line, is summed up as far as it goes, and
guestprobe reports this. A file that is not a trace is rejected, and the error names the line.

` + tableTemplateHelp,
		Example: `  guestprobe report t.ndjson
  guestprobe report --format '{{.Probe}} {{.Events}}' t.ndjson
  guestprobe trace -c 100 --format json | guestprobe report -`,
		Args: command.ArgsBetween(1, 1, "say which saved trace"),
		Row:  report.Probe{},
		Flags: func(f *pflag.FlagSet) {
			f.IntVarP(&values, "top", "n", 5, "`how many` values of each argument, and tasks")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if values < 0 {
				return command.Usagef("--top %d: not a number from 0 on", values)
			}
			in, done, err := openTrace(ctx, r, r.Args[0], "")
			if err != nil {
				return err
			}
			defer done()
			b := report.New()
			if err := forEachRecord(ctx, r, in, func(rec *timeline.Record) error { b.Add(rec); return nil }); err != nil {
				return err
			}
			rep := b.Report(values, in)
			if r.Templated() {
				return command.PrintRows(r, rep.Probes)
			}
			return r.Show(rep, func() error { return printReport(r, rep) })
		},
	}
}

// printReport prints a report as tables.
func printReport(r *command.Run, rep *report.Report) error {
	ended := "cut off"
	if rep.Ended != "" {
		ended = rep.Ended
	}
	head := fmt.Sprintf("%s in %s, %.2f a second, %d lost (%s)", command.Plural(rep.Events, "event"), seconds(rep.DurationNS), rep.Rate, rep.Lost, command.Clean(ended))
	for _, n := range []struct {
		n    uint64
		what string
	}{
		{rep.Unshown, u64(rep.Unshown) + " not shown when it was saved"}, {rep.Late, u64(rep.Late) + " late"}, {rep.Boots, command.Plural(rep.Boots, "boot") + " of the guest"},
		{rep.Stops, command.Plural(rep.Stops, "stop") + " of vCPUs"}, {rep.Others, u64(rep.Others) + " of further probes"},
	} {
		if n.n > 0 {
			head += "; " + n.what
		}
	}
	if err := r.Print("%s\n", head); err != nil {
		return err
	}
	var probes, took, args [][]string
	for _, p := range rep.Probes {
		probes = append(probes, []string{p.Probe, p.Stage, u64(p.Events), fmt.Sprintf("%.2f", p.Share), fmt.Sprintf("%.2f", p.Rate), seconds(p.FirstNS), seconds(p.LastNS), seconds(p.GapNS)})
		if l := p.Latency; l != nil {
			took = append(took, []string{p.Probe, u64(l.Count), micros(l.MeanNS), micros(l.MinNS), micros(l.P50NS), micros(l.P90NS), micros(l.P99NS), micros(l.MaxNS), l.From})
		}
		for _, a := range p.Args {
			mark := ""
			if !a.Exact {
				mark = "~"
			}
			for _, v := range a.Values {
				args = append(args, []string{p.Probe, a.Name, v.Value, mark + u64(v.Count), share(v.Count, p.Events)})
			}
			if a.Others > 0 {
				args = append(args, []string{p.Probe, a.Name, "(others)", mark + u64(a.Others), share(a.Others, p.Events)})
			}
		}
	}
	var where, gaps, boots, losses [][]string
	for _, c := range rep.CPUs {
		where = append(where, []string{"vCPU " + strconv.Itoa(c.CPU), u64(c.Events), share(c.Events, rep.Events)})
	}
	for _, t := range rep.Tasks {
		where = append(where, []string{t.Value, u64(t.Count), share(t.Count, rep.Events)})
	}
	for _, g := range rep.Gaps {
		gaps = append(gaps, []string{seconds(g.FromNS), seconds(g.NS)})
	}
	for _, ns := range rep.BootsNS {
		boots = append(boots, []string{seconds(ns)})
	}
	for _, l := range rep.Losses {
		losses = append(losses, []string{seconds(l.AfterNS), u64(l.Lost)})
	}
	if rep.LossesLeft > 0 {
		losses = append(losses, []string{"(" + command.Plural(rep.LossesLeft, "time") + " more)"})
	}
	for _, t := range []struct {
		heading []string
		rows    [][]string
	}{
		{[]string{"PROBE", "STAGE", "EVENTS", "SHARE%", "PER-SECOND", "FIRST", "LAST", "LONGEST-GAP"}, probes},
		{[]string{"PROBE", "CALLS", "MEAN-US", "MIN-US", "P50-US", "P90-US", "P99-US", "MAX-US", "FROM"}, took},
		{[]string{"PROBE", "ARGUMENT", "VALUE", "EVENTS", "SHARE%"}, args},
		{[]string{"WHERE", "EVENTS", "SHARE%"}, where},
		{[]string{"GAP-START", "LENGTH"}, gaps},
		{[]string{"BOOTED-AT"}, boots},
		{[]string{"LOST-AFTER", "EVENTS"}, losses},
	} {
		if len(t.rows) == 0 {
			continue
		}
		if err := r.Print("\n"); err != nil {
			return err
		}
		if err := r.Table(t.heading, t.rows); err != nil {
			return err
		}
	}
	return nil
}

// seconds formats a time in seconds with microseconds.
func seconds(ns int64) string { return fmt.Sprintf("%.6fs", time.Duration(ns).Seconds()) }

// micros formats a time in microseconds with nanoseconds.
func micros(ns uint64) string { return fmt.Sprintf("%d.%03d", ns/1000, ns%1000) }

// share formats n as a percentage of all.
func share(n, all uint64) string { return fmt.Sprintf("%.2f", float64(n)/float64(max(all, 1))*100) }
