package dev

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/soak"
)

func soakSpec() command.Spec {
	var o soak.Options
	return command.Spec{
		Use:   "soak",
		Short: "Attach probes at random under load, kill clients and daemons, and check everything",
		Long: `Start separate guestprobed processes with the built-in guest, whose self-checking
workload runs. Several clients attach, detach, enable, disable and trace probes at
random, on any instruction of the guest; they run scripts, save and inspect the
guest, and stop and step its vCPUs. Clients are killed and cut off in the middle of
streams, one never reads, and the daemon is stopped with SIGTERM and SIGKILL and
started again. After each phase the command checks that the guest had no wrong
result and still works, that every byte of its text is restored, that every hit,
event and map value is accounted for, that no probe, goroutine or descriptor is
left, and that memory does not grow.

The seed determines the actions of each client and their order; it is printed, and
--seed repeats them. The exit status is 0 only if all checks succeed; otherwise the
logs of the daemons are kept, and their location is printed.`,
		Example: `  gpdev soak --duration 10m --vcpus 8
  gpdev soak --seed 42 --format json > result.json`,
		Flags: func(f *pflag.FlagSet) {
			f.DurationVar(&o.Duration, "duration", soak.DefaultDuration, "how long clients are at work, a `duration`; starts, stops and checks come on top")
			f.IntSliceVar(&o.VCPUs, "vcpus", soak.DefaultVCPUs, "`sizes` of the guest, one after the other")
			f.Uint64Var(&o.Seed, "seed", 0, "`number` that decides what clients do (default: a random one)")
			f.IntVar(&o.Clients, "clients", soak.DefaultClients, "`number` of clients at work at a time")
		},
		Run: func(ctx context.Context, r *command.Run) error {
			if !r.Given("seed") {
				o.Seed = rand.Uint64()
			}
			return runSoak(ctx, r, o)
		},
	}
}

var errSoak = errors.New("the soak has found failures")

func runSoak(ctx context.Context, r *command.Run, o soak.Options) (err error) {
	if o.Daemon, err = command.Find("guestprobed"); err != nil {
		return err
	}
	if o.CLI, err = command.Find("guestprobe"); err != nil {
		return err
	}
	if o.Dir, err = os.MkdirTemp("", "gpsoak-"); err != nil {
		return err
	}
	r.Note("seed %d: %s on %v vCPUs, %s", o.Seed, o.Duration, o.VCPUs, command.Plural(o.Clients, "client"))
	o.Progress = func(line string) { r.Note("%s", line) }
	res, err := soak.Run(ctx, o)
	interrupted := err != nil && ctx.Err() != nil
	if res == nil || len(res.Failures()) == 0 && (err == nil || interrupted) {
		os.RemoveAll(o.Dir)
	} else {
		r.Note("the daemons' logs are in %s", o.Dir)
	}
	if res == nil {
		return command.Usagef("%w", err)
	}
	for _, f := range res.Failures() {
		r.Note("FAILED: %s", f)
	}
	err = errors.Join(err, r.Show(res, func() error { return printSoak(r, res) }))
	if err == nil && !res.Passed {
		return fmt.Errorf("%w; --seed %d does the same again", errSoak, res.Seed)
	}
	return err
}

// printSoak prints a line per phase.
func printSoak(r *command.Run, res *soak.Result) error {
	u := func(n uint64) string { return strconv.FormatUint(n, 10) }
	row := func(name string, t soak.Tally, seconds float64, verdict string) []string {
		ops, refused := t.Operations()
		return []string{
			name, fmt.Sprintf("%.1f", seconds), strconv.Itoa(ops), strconv.Itoa(refused), u(t.Attached), u(t.Hits), u(t.Missed), u(t.Events), u(t.Lost),
			strconv.Itoa(t.Cut + t.Killed), verdict,
		}
	}
	var rows [][]string
	for _, p := range res.Phases {
		verdict := "ok"
		if len(p.Failures) > 0 {
			verdict = "FAILED: " + strings.SplitN(p.Failures[0], "\n", 2)[0]
		}
		rows = append(rows, row(p.Name, p.Tally, p.Seconds, verdict))
	}
	verdict := "ok"
	if !res.Passed {
		verdict = "FAILED"
	}
	rows = append(rows, row("all", res.Total, res.Seconds, verdict))
	return r.Table([]string{"PHASE", "SECONDS", "OPS", "REFUSED", "PROBES", "HITS", "MISSED", "EVENTS", "LOST", "CUT", "RESULT"}, rows)
}
