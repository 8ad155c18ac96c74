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
Below the probes stand the VM exits of each vCPU, and how many of them each hit took.
--format kernel prints the kernel's kprobe_profile.`,
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
					CPUs   []api.CPUInfo `json:"cpus"`
				}{ps, g.CPUs})
			}
			if err := a.printStats(ps, perCPU); err != nil {
				return err
			}
			if err := a.printReturns(ps); err != nil {
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
