package cli

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// statAnswer is the JSON output of stat.
type statAnswer struct {
	Probes []api.Probe   `json:"probes"`
	Kinds  []kindCounts  `json:"kinds"`
	CPUs   []api.CPUInfo `json:"cpus"`
}

func (a *app) stat() command.Spec {
	var perCPU, quiet bool
	return command.Spec{
		Use:   "stat [PROBE...]",
		Short: "Show counts: hits, misses, lost events, VM exits",
		Long: `Show the probes' counts. For each probe hits = handled + filtered + missed; lost counts
events for which a vCPU's ring had no room. For a function's return, hits are calls, and
missed includes calls that found no free instance. A second table shows the other calls:
handled = returned + abandoned (left in another way) + in use; the most instances that were
ever in use, and the limit. The next table has the sums for each kind of probe, by the letters
of list; its high water is the largest of a single probe. The last table has the VM exits of
each vCPU, and the number of exits per hit. --format kernel prints the kernel's
kprobe_profile; --quiet prints the first table only.

` + tableTemplateHelp + `

` + probeNames + ` Without a name all probes are shown.`,
		Example: `  guestprobe stat
  guestprobe stat --per-cpu myread
  guestprobe stat 'io/*'
  guestprobe stat --format '{{.Name}}: {{.Hits}} hits{{range .CPUs}}, {{.Hits}} on vCPU {{.CPU}}{{end}}'
  guestprobe stat --format json | jq '.kinds[] | select(.kind == "r")'`,
		Args:    command.ArgsBetween(0, -1, ""),
		Formats: []string{formatKernel},
		Row:     probeRow{},
		Flags: func(f *pflag.FlagSet) {
			a.fleet.addAll(f)
			f.BoolVar(&perCPU, "per-cpu", false, "one line per probe and vCPU")
			f.BoolVarP(&quiet, "quiet", "q", false, "only the counts of probes, without the tables below")
			addNoTrunc(f)
		},
		Complete: a.completeProbes(),
		Run: a.askAll(func(ctx context.Context, r *command.Run, m *members) (err error) {
			if err := rejectQuiet(r); err != nil {
				return err
			}
			if perCPU || r.Format == formatKernel {
				if m, err = m.requireOne("--per-cpu and --format " + formatKernel); err != nil {
					return err
				}
			}
			if r.Format == formatKernel {
				return kernelFile(ctx, r, m.all[0].Client, "profile")
			}
			return askEach(ctx, r, m, func(ctx context.Context, c *remote.Client) (s statAnswer, err error) {
				if s.Probes, err = c.Probes(ctx, r.Args...); err != nil || quiet || r.Templated() {
					return s, err
				}
				g, err := c.Guest(ctx)
				s.Kinds, s.CPUs = countKinds(s.Probes), g.CPUs
				return s, err
			}, func(o answersOf[statAnswer]) error { return printStat(r, o, perCPU, quiet) })
		}),
	}
}

// printStat prints the counts of daemons, with sums if there are several.
func printStat(r *command.Run, o answersOf[statAnswer], perCPU, quiet bool) error {
	probes := probesOf{answersOf[api.ProbeList]{alone: o.alone}}
	for _, a := range o.Daemons {
		if a.Answer != nil {
			probes.Daemons = append(probes.Daemons, answer[api.ProbeList]{Daemon: a.Daemon, Answer: &api.ProbeList{Probes: a.Answer.Probes}})
		}
	}
	ps, daemons := probes.probes()
	switch {
	case r.Templated():
		return probes.print(r, nil)
	case o.alone && quiet:
		return printStats(r, ps, perCPU)
	case o.alone:
		s := o.Daemons[0].Answer
		return r.Show(s, func() error { return s.print(r, perCPU) })
	}
	s := fleetStat{Daemons: o.Daemons, Total: totals(ps, daemons), Kinds: countKinds(ps)}
	return r.Show(s, func() error { return s.print(r, ps, daemons, quiet) })
}

// print prints the tables that are not empty.
func (s *statAnswer) print(r *command.Run, perCPU bool) error {
	if err := printStats(r, s.Probes, perCPU); err != nil {
		return err
	}
	for _, t := range []statTable{returnsTable(s.Probes), programsTable(s.Probes), kindsTable(s.Kinds), exitsTable(s.CPUs)} {
		if err := t.printBelow(r); err != nil {
			return err
		}
	}
	notePending(r, s.Probes)
	return nil
}

// statTable is a table that is not printed if it is empty.
type statTable struct {
	heading []string
	rows    [][]string
}

// printBelow prints the table after an empty line.
func (t statTable) printBelow(r *command.Run) error {
	if len(t.rows) == 0 {
		return nil
	}
	if err := r.Print("\n"); err != nil {
		return err
	}
	return r.Table(t.heading, t.rows)
}

func u64(v uint64) string { return strconv.FormatUint(v, 10) }

func printStats(r *command.Run, ps []api.Probe, perCPU bool) error {
	var rows [][]string
	for _, p := range ps {
		s := p.Stats
		rows = append(rows, []string{p.Name, "all", u64(s.Hits), u64(s.Handled), u64(s.Filtered), u64(s.Missed), u64(s.Lost)})
		if !perCPU {
			continue
		}
		for _, c := range s.CPUs {
			rows = append(rows, []string{p.Name, strconv.Itoa(c.CPU), u64(c.Hits), u64(c.Handled), u64(c.Filtered), u64(c.Missed), "-"})
		}
	}
	return r.Table([]string{"NAME", "VCPU", "HITS", "HANDLED", "FILTERED", "MISSED", "LOST"}, rows)
}

// returnsTable shows how the calls that return probes followed ended.
func returnsTable(ps []api.Probe) statTable {
	t := statTable{heading: []string{"NAME", "HANDLED", "RETURNED", "ABANDONED", "IN-USE", "HIGH-WATER", "MAX"}}
	for _, p := range ps {
		if p.Kind == "r" {
			t.rows = append(t.rows, []string{
				p.Name, u64(p.Stats.Handled), u64(p.Stats.Returns), u64(p.Stats.Abandoned),
				strconv.Itoa(p.InUse), strconv.Itoa(p.HighWater), strconv.Itoa(p.MaxActive),
			})
		}
	}
	return t
}

// underWayTable shows the calls of return probes that were detached while calls were
// in progress.
func underWayTable(ps []api.Probe) statTable {
	t := statTable{heading: []string{"NAME", "HANDLED", "RETURNED", "ABANDONED", "UNDER-WAY"}}
	for _, p := range ps {
		if s := p.Stats; s.UnderWay != 0 {
			t.rows = append(t.rows, []string{p.Name, u64(s.Handled), u64(s.Returns), u64(s.Abandoned), u64(s.UnderWay)})
		}
	}
	return t
}

// programsTable shows the counts of programs.
func programsTable(ps []api.Probe) statTable {
	t := statTable{heading: []string{"PROGRAM", "PLACE", "RUNS", "IN-GUEST", "FAULTS", "MISSED", "LAST-FAULT"}}
	for _, p := range ps {
		g := p.Program
		if g == nil {
			continue
		}
		fault := g.Fault
		if fault == "" {
			fault = "-"
		}
		t.rows = append(t.rows, []string{p.Name, p.Runs, u64(g.Runs), u64(g.InGuest), u64(g.Faults), u64(g.Missed), strings.TrimPrefix(fault, "run program: ")})
	}
	return t
}

// kindCounts are the sums of all probes of one kind.
type kindCounts struct {
	Kind      string `json:"kind"` // a kind of api.Probe.Kind
	Probes    int    `json:"probes"`
	Enabled   int    `json:"enabled"`
	Hits      uint64 `json:"hits"`
	Handled   uint64 `json:"handled"`
	Filtered  uint64 `json:"filtered"`
	Missed    uint64 `json:"missed"`
	Lost      uint64 `json:"lost"`
	InUse     int    `json:"inUse"`     // kind r: calls in progress
	HighWater int    `json:"highWater"` // kind r: maximum number of calls that one probe followed
}

// countKinds returns the sums of each kind, in the order of api.Kinds. The sums saturate, because a fleet's daemon can send any numbers.
func countKinds(ps []api.Probe) []kindCounts {
	out := make([]kindCounts, len(api.Kinds))
	for i := range out {
		k := &out[i]
		k.Kind = api.Kinds[i : i+1]
		for _, p := range ps {
			if p.Kind != k.Kind {
				continue
			}
			k.Probes++
			if p.Enabled && !p.Gone {
				k.Enabled++
			}
			k.Hits = command.Sum(k.Hits, p.Stats.Hits)
			k.Handled = command.Sum(k.Handled, p.Stats.Handled)
			k.Filtered = command.Sum(k.Filtered, p.Stats.Filtered)
			k.Missed = command.Sum(k.Missed, p.Stats.Missed)
			k.Lost = command.Sum(k.Lost, p.Stats.Lost)
			if k.InUse += max(p.InUse, 0); k.InUse < 0 {
				k.InUse = math.MaxInt
			}
			k.HighWater = max(k.HighWater, p.HighWater)
		}
	}
	return out
}

// kindsTable shows the sums of the kinds that have probes.
func kindsTable(kinds []kindCounts) statTable {
	t := statTable{heading: []string{"KIND", "PROBES", "ENABLED", "HITS", "HANDLED", "FILTERED", "MISSED", "LOST", "IN-USE", "HIGH-WATER"}}
	for _, k := range kinds {
		if k.Probes == 0 {
			continue
		}
		use, high := "-", "-"
		if k.Kind == "r" {
			use, high = strconv.Itoa(k.InUse), strconv.Itoa(k.HighWater)
		}
		t.rows = append(t.rows, []string{
			k.Kind, strconv.Itoa(k.Probes), strconv.Itoa(k.Enabled), u64(k.Hits), u64(k.Handled), u64(k.Filtered), u64(k.Missed), u64(k.Lost), use, high,
		})
	}
	return t
}

// exitsTable shows the VM exits of each vCPU.
func exitsTable(cpus []api.CPUInfo) statTable {
	t := statTable{heading: []string{"VCPU", "STATE", "EXITS", "HITS", "TRAP-EXITS", "EXITS/HIT", "IN-PLACE", "FOREIGN", "TICKS"}}
	for _, c := range cpus {
		ratio := "-"
		if c.Hits > 0 {
			ratio = fmt.Sprintf("%.2f", float64(c.TrapExits)/float64(c.Hits))
		}
		t.rows = append(t.rows, []string{strconv.Itoa(c.CPU), c.State, u64(c.Total), u64(c.Hits), u64(c.TrapExits), ratio, u64(c.InPlace), u64(c.Foreign), u64(c.Ticks)})
	}
	return t
}
