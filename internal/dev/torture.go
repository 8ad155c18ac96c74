package dev

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/torture"
)

func tortureSpec() command.Spec {
	var o torture.Options
	var seed, guests uint64
	var way string
	return command.Spec{
		Use:   "torture",
		Short: "Make guests up, probe them, and hold what they do against native runs",
		Long: `Generate guests whose code, user or kernel, does what breaks probes: random control flow with
tables and constants in text, computed jumps, overlapping instructions, code that
is rewritten, stacks that are not aligned or end right below, pages that come when
they are touched, alignment checks, single-stepping, exceptions, signals at any
place. Each runs without probes, with probes from its first instruction to its end,
or with probes that come and go. Registers, memory and every exception must be what
a native run under ptrace says, which knows nothing of probes; so must the counts
of probes that were there all the time; and the text must be what it was.

The first guest that differs ends the command, with its seed.`,
		Example: `  gpdev torture --guests 100000
  gpdev torture --seed 634 --guests 1 --how probed`,
		Flags: func(f *pflag.FlagSet) {
			f.Uint64Var(&guests, "guests", 2000, "`number` of guests")
			f.Uint64Var(&seed, "seed", 0, "the first guest's `number`; the others follow (default: a random one)")
			f.StringVar(&way, "how", "", "run all guests this `way`: unprobed, probed or changing (default: all of them in turn)")
			f.IntVar(&o.VCPUs, "vcpus", 2, "`number` of vCPUs, 1 to 8")
			f.DurationVar(&o.Tick, "tick", torture.DefaultTick, "`time` between timer interrupts")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if o.VCPUs < 1 || o.VCPUs > 8 {
				return command.Usagef("--vcpus %d: not 1 to 8", o.VCPUs)
			}
			if !r.Given("seed") {
				seed = uint64(rand.Uint32())
			}
			how := torture.HowOf
			if r.Given("how") {
				h, err := torture.ParseHow(way)
				if err != nil {
					return command.Usagef("--how %v", err)
				}
				how = func(uint64) torture.How { return h }
			}
			return runTorture(ctx, r, o, seed, guests, how)
		},
	}
}

func runTorture(ctx context.Context, r *command.Run, o torture.Options, seed, guests uint64, how func(uint64) torture.How) error {
	t, err := torture.New(o)
	if err != nil {
		return err
	}
	defer t.Close()
	r.Note("guests %d to %d", seed, seed+guests-1)
	for n, last := uint64(0), time.Now(); n < guests; n++ {
		if err := t.Run(ctx, seed+n, how(seed+n)); err != nil {
			if ctx.Err() != nil {
				break
			}
			return err
		}
		if time.Since(last) > 10*time.Second {
			last = time.Now()
			r.Note("%d guests", n+1)
		}
	}
	s := t.Summary()
	return r.Show(s, func() error { return printTorture(r, s) })
}

// printTorture prints what was run, and each kind of probe.
func printTorture(r *command.Run, s torture.Summary) error {
	if err := r.Print("%d guests with %d tasks: %d instructions, %d exceptions, %d ticks, %d signals; %d changes of probes; none differs\n\n",
		s.Guests, s.Tasks, s.Instructions, s.Exceptions, s.Ticks, s.Signals, s.Changes); err != nil {
		return err
	}
	var rows [][]string
	for _, k := range slices.Sorted(maps.Keys(s.Probes)) {
		rows = append(rows, []string{k, strconv.Itoa(s.Probes[k]), fmt.Sprint(s.Hits[k])})
	}
	return r.Table([]string{"KIND, PLAN", "PROBES", "HITS"}, rows)
}
