package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/top"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// topFlags are the flags of top.
type topFlags struct {
	batch    bool
	count    uint64
	interval time.Duration
	sort     string
	back     bool
}

// topSorts maps values of --sort to columns.
var topSorts = map[string]string{"rate": "HITS/S", "hits": "HITS", "missed": "MISSED", "lost": "LOST", "mean": "MEAN", "p99": "P99", "name": "NAME"}

func (a *app) top() command.Spec {
	var flags topFlags
	return command.Spec{
		Use:   "top [flags] [PROBE...]",
		Short: "Watch what probes count: rates, durations, VM exits",
		Long: `Watch the attached probes, the one with the most hits a second first: their rates, what they
have missed and lost, for return probes the mean and the 99th percentile of how long calls
took, where handlers run (guest, or host: at a VM exit) and how hits come there (jump or
int3), and what the vCPUs leave the guest for, a second. ? shows the keys; enter looks into a
probe: its durations, its last hits, and its callers if they are asked for.

Durations are of the last ten intervals. Of fast functions only a few hundred calls in each
interval are timed, so that watching costs the guest little; slow functions are then sampled too.
TIMED is the share of the calls that were timed.

--batch prints tables instead, one for each interval, --count of them; with --format json a line
for each, and with a template a line for each probe. It is for output that is not a terminal.

` + tableTemplateHelp + `

` + probeNames + ` Without a name all probes are shown, including probes attached later.`,
		Example: `  guestprobe top --batch --count 3 --interval 500ms
  guestprobe top --batch -n 1 --format '{{.Name}} {{.Rate}} {{.P99NS}}'`,
		Args: command.ArgsBetween(0, -1, ""),
		Row:  top.Row{},
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&flags.batch, "batch", "b", false, "print tables, one after another")
			f.Uint64VarP(&flags.count, "count", "n", 0, "of --batch: end after this `many`")
			f.DurationVar(&flags.interval, "interval", time.Second, "show the counts of this `duration`, again and again")
			f.StringVar(&flags.sort, "sort", "rate", "`what` to sort by: rate, hits, missed, lost, mean, p99 or name")
			f.BoolVar(&flags.back, "reverse", false, "sort the other way around")
		},
		Complete: a.completeProbes(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			if err := flags.check(r); err != nil {
				return err
			}
			if flags.batch {
				return flags.tables(ctx, r, c)
			}
			return flags.watch(ctx, r, c)
		}),
	}
}

// check validates the flags and the terminal.
func (f *topFlags) check(r *command.Run) error {
	in, _ := r.Stdin.(*os.File)
	least, most := api.MinInterval*time.Millisecond, api.MaxInterval*time.Millisecond
	switch {
	case topSorts[f.sort] == "":
		return command.Usagef("--sort %q: not rate, hits, missed, lost, mean, p99 or name", f.sort)
	case f.interval < least || f.interval > most:
		return command.Usagef("--interval %v: not %v to %v", f.interval, least, most)
	case f.batch:
		return nil
	case r.Given("count") || r.Given("format"):
		return command.Usagef("--count and --format are for --batch")
	case !command.Terminal(r.Stdout) || !command.Terminal(in):
		return command.Usagef("standard input and output are not a terminal: 'guestprobe top --batch' prints tables")
	case plainTerminals[r.Getenv("TERM")]:
		return command.Usagef("the terminal cannot move its cursor (TERM=%s): 'guestprobe top --batch' prints tables", r.Getenv("TERM"))
	}
	return nil
}

// plainTerminals are values of TERM for terminals that cannot move the cursor, and for unknown ones
// (term(7)).
var plainTerminals = map[string]bool{"": true, "dumb": true, "unknown": true}

// request returns the request for the counts that top shows.
func (f *topFlags) request(r *command.Run) api.StreamCounts {
	return api.StreamCounts{Names: r.Args, IntervalMS: int(f.interval.Milliseconds()), Durations: true}
}

// tables prints a table per interval, up to --count.
func (f *topFlags) tables(ctx context.Context, r *command.Run, c *remote.Client) error {
	over, enough := context.WithCancel(ctx)
	defer enough()
	var rates top.Rates
	printed := uint64(0)
	end, err := follow(ctx, over, c, func(life context.Context) (*remote.Stream, error) { return c.Counts(life, f.request(r)) }, func(api.Record, api.Start) error { return nil }, func(rec api.Record) error {
		if rec.Type != api.RecordCounts || f.count > 0 && printed == f.count {
			return nil
		}
		n, err := data[api.Counted](rec)
		if err != nil || !rates.Add(n) {
			return err
		}
		m := rates.Moment()
		if m.Seconds == 0 {
			return nil // the first counts have no rates
		}
		top.Sort(m.Probes, topSorts[f.sort], f.back)
		if printed++; printed == f.count {
			enough()
		}
		return printMoment(r, m, printed > 1)
	})
	switch {
	case err != nil:
		return err
	case f.count > 0 && printed == f.count:
		return nil
	}
	return topEnd(ctx, r, end)
}

// topEnd reports why the counts ended, unless the user stopped them.
func topEnd(ctx context.Context, r *command.Run, end api.End) error {
	switch {
	case ctx.Err() != nil, end.Reason == api.EndAsked:
		return nil
	case end.Reason == endCutOff, end.Reason == api.EndShutdown:
		return fmt.Errorf("%w any more: the daemon has ended", remote.ErrUnreachable)
	}
	noteEnd(r, end, "")
	return nil
}

// printMoment prints the counts of one interval.
func printMoment(r *command.Run, m top.Moment, below bool) error {
	switch {
	case r.Templated():
		return command.PrintRows(r, m.Probes)
	case r.WantsJSON():
		enc := json.NewEncoder(r.Stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(m)
	}
	if below {
		if err := r.Print("\n"); err != nil {
			return err
		}
	}
	if r.Headings() {
		if err := r.Print("# guest %s, %s in %.3fs: %s hits a second, %d missed, %d lost\n", m.State, command.Plural(len(m.Probes), "probe"), m.Seconds, top.Number(m.Rate), m.Missed, m.Lost); err != nil {
			return err
		}
	}
	var rows [][]string
	for _, p := range m.Probes {
		rows = append(rows, []string{p.Name, p.Kind, top.Number(p.Rate), u64(p.Hits), u64(p.Missed), u64(p.Lost), top.Share(p), top.Duration(p.MeanNS), top.Duration(p.P99NS), p.Runs, p.By, p.Place})
	}
	if err := r.Table([]string{"NAME", "K", "HITS/S", "HITS", "MISSED", "LOST", "TIMED", "MEAN", "P99", "RUNS", "BY", "PLACE"}, rows); err != nil {
		return err
	}
	return topExits(m.CPUs).printBelow(r)
}

// topExits shows the rates of exits by vCPU, with a column for each exit reason that occurred.
func topExits(cpus []top.CPU) statTable {
	t := statTable{heading: []string{"VCPU", "STATE", "EXITS/S"}}
	var reasons []string
	for _, c := range cpus {
		for _, e := range c.Exits {
			if !slices.Contains(reasons, e.Reason) {
				reasons = append(reasons, e.Reason)
			}
		}
	}
	slices.Sort(reasons)
	for _, reason := range reasons {
		t.heading = append(t.heading, strings.ToUpper(reason))
	}
	for _, c := range cpus {
		row := []string{strconv.Itoa(c.CPU), c.State, top.Number(c.Rate)}
		for _, reason := range reasons {
			i := slices.IndexFunc(c.Exits, func(e top.Exit) bool { return e.Reason == reason })
			if i < 0 {
				row = append(row, "0")
				continue
			}
			row = append(row, top.Number(c.Exits[i].Rate))
		}
		t.rows = append(t.rows, row)
	}
	return t
}
