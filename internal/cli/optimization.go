package cli

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
)

func (a *app) optimizationCmd() *cobra.Command {
	var now bool
	c := &cobra.Command{
		Use:   "optimization [on|off]",
		Short: "Show or set whether probes become jumps (the global knob)",
		Long: `Show or set whether int3s are replaced by jumps where the code allows it, and what
that has cost. It is the kernel's sysctl debug.kprobes-optimization. Off takes
every jump away at once; on lets the next pass put them back. list shows
[OPTIMIZED], or in the column OPTIMIZED why a probe is not.`,
		Args:      cobra.MatchAll(cobra.MaximumNArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"on", "off"},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			var o api.Optimization
			if len(args) == 0 && !now {
				o, err = c.Optimization(cmd.Context())
			} else {
				set := api.SetOptimization{Now: now}
				if len(args) > 0 {
					on := args[0] == "on"
					set.Enabled = &on
				}
				o, err = c.SetOptimization(cmd.Context(), set)
			}
			if err != nil {
				return err
			}
			if a.format == "json" {
				return a.printJSON(o)
			}
			state := "off"
			if o.Enabled {
				state = "on"
			}
			count := func(n uint64) string { return strconv.FormatUint(n, 10) }
			return a.table([]string{"STATE", "NOW", "WAITING", "OPTIMIZED", "UNOPTIMIZED", "PASSES", "STOPPED", "LONGEST"}, [][]string{{
				state, strconv.Itoa(o.Now), strconv.Itoa(o.Waiting), count(o.Optimized), count(o.Unoptimized), count(o.Passes),
				fmt.Sprint(time.Duration(o.StoppedNs).Round(time.Microsecond)), fmt.Sprint(time.Duration(o.LongestNs).Round(time.Microsecond)),
			}})
		},
	}
	c.Flags().BoolVar(&now, "now", false, "run the optimizer before the answer, instead of when its delay is over")
	return c
}

// optimized is whether a probe's site has a jump, or why not.
func optimized(p api.Probe) string {
	switch {
	case p.Optimized:
		return "yes"
	case p.Unoptimized != nil:
		return p.Unoptimized.Reason
	}
	return "-"
}
