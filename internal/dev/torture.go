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
	"github.com/guestprobe/guestprobe/internal/dev/torture"
)

func tortureSpec() command.Spec {
	var o torture.Options
	var seed, guests uint64
	var way, classes string
	return command.Spec{
		Use:   "torture",
		Short: "Generate guests, probe them, and compare them with native runs",
		Long: `Generate guests with user or kernel code that is difficult for probes: random control
flow with tables and constants in text, computed jumps, overlapping instructions,
code that is rewritten, stacks that are not aligned or end right below, pages that are
mapped on first access, alignment checks, single-stepping, exceptions, signals at any
place. Each guest runs without probes, with probes from its first instruction to its
exit, or with probes that are attached and detached. Registers, memory, every
exception, and the counts of probes that were attached all the time must be the same
as in a native run under ptrace without probes; the text must be unchanged.

Classes add:

  saves      snapshots at random moments; machines continue from them, with and without probes
  steps      vCPUs are stepped, or run to an address, at random moments
  watches    watches of descriptor tables, page tables and stacks
  aliases    text that is mapped a second time, and run there
  moves      stacks that move under calls; functions that return twice
  rewrites   text that can be written, and instructions that rewrite the next one
  tracers    a tracer of the guest's own: int3s, poked instructions, text that is written back
  places     instructions that leave their own address in a register

The first guest that differs ends the command, with its seed.`,
		Example: `  gpdev torture --guests 100000
  gpdev torture --seed 634 --guests 1 --how probed`,
		Flags: func(f *pflag.FlagSet) {
			f.Uint64Var(&guests, "guests", 2000, "`number` of guests")
			f.Uint64Var(&seed, "seed", 0, "the first guest's `number`; the others follow (default: a random one)")
			f.StringVar(&way, "how", "", "run all guests this `way`: unprobed, probed, changing, saved or stepped (default: all of them in turn)")
			f.StringVar(&classes, "classes", torture.Classes.String(), "classes: a `list` of names, or none")
			f.IntVar(&o.VCPUs, "vcpus", 2, "`number` of vCPUs, 1 to 8")
			f.DurationVar(&o.Tick, "tick", torture.DefaultTick, "`time` between timer interrupts")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if o.VCPUs < 1 || o.VCPUs > 8 {
				return command.Usagef("--vcpus %d: not 1 to 8", o.VCPUs)
			}
			var err error
			if o.Classes, err = torture.ParseClasses(classes); err != nil {
				return command.Usagef("--classes: %v", err)
			}
			if !r.Given("seed") {
				seed = uint64(rand.Uint32())
			}
			how := func(seed uint64) torture.How { return torture.HowOf(seed, o.Classes) }
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

// printTorture prints the totals, and each kind of probe.
func printTorture(r *command.Run, s torture.Summary) error {
	if err := r.Print("%d guests with %d tasks: %d instructions, %d exceptions, %d ticks, %d signals; %d changes of probes, %d watches; "+
		"%d snapshots, %d continued; %d steps, %d runs to an address; none differs\n\n",
		s.Guests, s.Tasks, s.Instructions, s.Exceptions, s.Ticks, s.Signals, s.Changes, s.Watches, s.Saves, s.Continued, s.Steps, s.Runs); err != nil {
		return err
	}
	var rows [][]string
	for _, k := range slices.Sorted(maps.Keys(s.Probes)) {
		rows = append(rows, []string{k, strconv.Itoa(s.Probes[k]), fmt.Sprint(s.Hits[k])})
	}
	return r.Table([]string{"KIND, PLAN", "PROBES", "HITS"}, rows)
}
