package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func optimizationCommand(a *app) command.Spec {
	var now bool
	return command.Spec{
		Use:   "optimization [on|off]",
		Short: "Show or set whether probes become jumps (the global switch)",
		Long: `Show or set whether int3s are replaced by jumps where the code allows it, and what
that has cost. It is the kernel's sysctl debug.kprobes-optimization. Off takes
every jump away at once; on lets the next pass put them back. list shows
[OPTIMIZED], or in the column OPTIMIZED why a probe is not, and list PROBE says it in
a sentence.`,
		Args: command.OneArgOf("on", "off"),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&now, "now", false, "run the optimizer before the answer, instead of when its delay is over")
		},
		Complete: func(context.Context, []string, string) []string { return []string{"on", "off"} },
		Run: show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.Optimization, error) {
			if len(r.Args) == 0 && !now {
				return c.Optimization(ctx)
			}
			set := api.SetOptimization{Now: now}
			if len(r.Args) > 0 {
				on := r.Args[0] == "on"
				set.Enabled = &on
			}
			return c.SetOptimization(ctx, set)
		}, printOptimization),
	}
}

func printOptimization(r *command.Run, o api.Optimization) error {
	state := "off"
	if o.Enabled {
		state = "on"
	}
	us := func(ns int64) string { return time.Duration(ns).Round(time.Microsecond).String() }
	return r.Table([]string{"STATE", "NOW", "WAITING", "OPTIMIZED", "UNOPTIMIZED", "PASSES", "STOPPED", "LONGEST"}, [][]string{{
		state, strconv.Itoa(o.Now), strconv.Itoa(o.Waiting), fmt.Sprint(o.Optimized), fmt.Sprint(o.Unoptimized), fmt.Sprint(o.Passes),
		us(o.StoppedNs), us(o.LongestNs),
	}})
}
