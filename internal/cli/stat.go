package cli

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
)

func (a *app) statCmd() *cobra.Command {
	var perCPU bool
	cmd := &cobra.Command{
		Use:   "stat [PROBE...]",
		Short: "Show counts: hits, misses, lost events, VM exits",
		Long: `Show what the probes have counted. For each probe hits = handled + filtered +
missed; lost counts events that found no room in a vCPU's ring. For a function's
return, hits are calls, missed are also those that found no free instance, and a
second table shows what became of the others: handled = returned + abandoned
(left in another way) + in use; the most that were ever in use, and how many may be.
The next table has the sums of each kind of probe, by the letters of list; its
high water is the largest of a single probe. Below stand the VM exits of each vCPU,
and how many of them each hit took. --format kernel prints the kernel's
kprobe_profile.`,
		Example: `  guestprobe stat
  guestprobe stat --per-cpu myread
  guestprobe stat --format json | jq '.kinds[] | select(.kind == "r")'`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat("kernel"); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx := cmd.Context()
			if a.format == "kernel" {
				text, err := c.KernelList(ctx, "profile")
				if err != nil {
					return err
				}
				_, err = fmt.Fprint(a.env.Stdout, clean(text))
				return err
			}
			var ps []api.Probe
			if len(args) == 0 {
				if ps, err = c.Probes(ctx); err != nil {
					return err
				}
			}
			for _, name := range args {
				p, err := c.Probe(ctx, name)
				if err != nil {
					return err
				}
				ps = append(ps, p)
			}
			g, err := c.Guest(ctx)
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.printJSON(struct {
					Probes []api.Probe   `json:"probes"`
					Kinds  []kindCounts  `json:"kinds"`
					CPUs   []api.CPUInfo `json:"cpus"`
				}{ps, countKinds(ps), g.CPUs})
			}
			if err := a.printStats(ps, perCPU); err != nil {
				return err
			}
			if err := a.printReturns(ps); err != nil {
				return err
			}
			if err := a.printPrograms(ps); err != nil {
				return err
			}
			if err := a.printKinds(ps); err != nil {
				return err
			}
			fmt.Fprintln(a.env.Stdout)
			return a.printExits(g.CPUs)
		},
		ValidArgsFunction: a.completeProbes,
	}
	cmd.Flags().BoolVar(&perCPU, "per-cpu", false, "one line per probe and vCPU")
	return cmd
}

func u64(v uint64) string { return strconv.FormatUint(v, 10) }

func (a *app) printStats(ps []api.Probe, perCPU bool) error {
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
	return a.table([]string{"NAME", "VCPU", "HITS", "HANDLED", "FILTERED", "MISSED", "LOST"}, rows)
}

// printReturns prints what became of the calls that return probes follow, if
// there are any.
func (a *app) printReturns(ps []api.Probe) error {
	var rows [][]string
	for _, p := range ps {
		if p.Kind == "r" {
			rows = append(rows, []string{
				p.Name, u64(p.Stats.Handled), u64(p.Stats.Returns), u64(p.Stats.Abandoned),
				strconv.Itoa(p.InUse), strconv.Itoa(p.HighWater), strconv.Itoa(p.MaxActive),
			})
		}
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.env.Stdout)
	return a.table([]string{"NAME", "HANDLED", "RETURNED", "ABANDONED", "IN-USE", "HIGH-WATER", "MAX"}, rows)
}

// kindCounts are the sums of all probes of one kind.
type kindCounts struct {
	Kind      string `json:"kind"` // as api.Probe.Kind
	Probes    int    `json:"probes"`
	Enabled   int    `json:"enabled"`
	Hits      uint64 `json:"hits"`
	Handled   uint64 `json:"handled"`
	Filtered  uint64 `json:"filtered"`
	Missed    uint64 `json:"missed"`
	Lost      uint64 `json:"lost"`
	InUse     int    `json:"inUse"`     // kind r: calls that are followed now
	HighWater int    `json:"highWater"` // kind r: the most that one probe ever followed
}

// countKinds returns the sums of every kind, in the order of api.Kinds.
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
			k.Hits += p.Stats.Hits
			k.Handled += p.Stats.Handled
			k.Filtered += p.Stats.Filtered
			k.Missed += p.Stats.Missed
			k.Lost += p.Stats.Lost
			k.InUse += p.InUse
			k.HighWater = max(k.HighWater, p.HighWater)
		}
	}
	return out
}

// printKinds prints the sums of the kinds that there are.
func (a *app) printKinds(ps []api.Probe) error {
	var rows [][]string
	for _, k := range countKinds(ps) {
		if k.Probes == 0 {
			continue
		}
		use, high := "-", "-"
		if k.Kind == "r" {
			use, high = strconv.Itoa(k.InUse), strconv.Itoa(k.HighWater)
		}
		rows = append(rows, []string{
			k.Kind, strconv.Itoa(k.Probes), strconv.Itoa(k.Enabled), u64(k.Hits), u64(k.Handled), u64(k.Filtered), u64(k.Missed), u64(k.Lost), use, high,
		})
	}
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(a.env.Stdout)
	return a.table([]string{"KIND", "PROBES", "ENABLED", "HITS", "HANDLED", "FILTERED", "MISSED", "LOST", "IN-USE", "HIGH-WATER"}, rows)
}

func (a *app) printExits(cpus []api.CPUInfo) error {
	var rows [][]string
	for _, c := range cpus {
		ratio := "-"
		if c.Hits > 0 {
			ratio = fmt.Sprintf("%.2f", float64(c.TrapExits)/float64(c.Hits))
		}
		rows = append(rows, []string{strconv.Itoa(c.CPU), c.State, u64(c.Total), u64(c.Hits), u64(c.TrapExits), ratio, u64(c.InPlace), u64(c.Foreign), u64(c.Ticks)})
	}
	return a.table([]string{"VCPU", "STATE", "EXITS", "HITS", "TRAP-EXITS", "EXITS/HIT", "IN-PLACE", "FOREIGN", "TICKS"}, rows)
}
