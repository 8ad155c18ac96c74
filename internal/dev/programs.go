package dev

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/bpftest"
	"github.com/guestprobe/guestprobe/internal/inguest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

// programRuns is how often each program runs.
const programRuns = 2

func programsSpec() command.Spec {
	var count, cpl int
	var seed uint64
	var budget int64
	return command.Spec{
		Use:   "programs",
		Short: "Compare interpreter and compiled code on random programs in a guest",
		Long: `Generate random eBPF programs, run each in the interpreter and, compiled, in a small
guest, and compare result, fault, stack, context and every byte of the maps. The
first difference ends the command, with a listing of the program and its number.
Programs that the checker rejects or that only the host can run are counted.`,
		Example: `  gpdev programs --count 100000
  gpdev programs --cpl 0 --seed 4711 --count 1`,
		Flags: func(f *pflag.FlagSet) {
			f.IntVar(&count, "count", 1000, "`number` of seeds; each makes a long program and a small one")
			f.Uint64Var(&seed, "seed", 0, "`number` of the first one (default: a random one)")
			f.IntVar(&cpl, "cpl", 3, "`privilege` in the guest, 0 or 3")
			f.Int64Var(&budget, "budget", 3000, "`instructions` after which a run is ended")
		},
		Run: func(ctx context.Context, r *command.Run) (err error) {
			switch {
			case count < 1:
				return command.Usagef("--count %d: not at least 1", count)
			case cpl != 0 && cpl != 3:
				return command.Usagef("--cpl %d: not 0 or 3", cpl)
			case budget < 1:
				return command.Usagef("--budget %d: not at least 1", budget)
			}
			if !r.Given("seed") {
				seed = rand.Uint64()
			}
			r.Note("programs %d to %d at CPL%d", seed, seed+uint64(count)-1, cpl)
			g, err := inguest.New(inguest.Options{CPL: cpl})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, g.Close()) }()
			w := bpftest.Twin{Runner: g, Budget: budget}
			for i := range uint64(count) {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				if err := w.CompareSeed(seed+i, programRuns); err != nil {
					return err
				}
			}
			return r.Show(w.Tally, func() error { return printTally(r, &w.Tally) })
		},
	}
}

func printTally(r *command.Run, t *bpftest.Tally) error {
	n := strconv.Itoa
	return r.Table([]string{"SMALL", "REFUSED", "HOST-ONLY", "RUNS", "FAULTS"},
		[][]string{{n(t.Small), n(t.Refused), n(t.HostOnly), n(t.Runs), n(t.Runs - t.Ended[bpf.NoFault.String()])}})
}
