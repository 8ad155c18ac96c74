package cli

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// overrideFlags configure overrides: functions that return a value without running.
type overrideFlags struct {
	unsafe      bool
	value       string
	probability string
	times       int64
	interval    uint64
	after, seed uint64
	set         *pflag.FlagSet
}

func (o *overrideFlags) add(f *pflag.FlagSet) {
	o.set = f
	f.StringVar(&o.value, "override", "", "with --unsafe, at a function's entry: it returns `N` without running; N is a number, or an error as -ENOENT")
	f.StringVar(&o.probability, "probability", "100", "with --override: override `P` percent of the hits, chosen at random")
	f.Int64Var(&o.times, "times", -1, "with --override: override at most `N` times, -1 for no limit")
	f.Uint64Var(&o.interval, "interval", 1, "with --override: override only hits whose `number` is a multiple of this")
	f.Uint64Var(&o.after, "after", 0, "with --override: skip the first `N` hits")
	f.Uint64Var(&o.seed, "seed", 0, "with --override: make the random choices of an earlier run with this `seed`, which its output shows; 0 for a new one")
	f.BoolVar(&o.unsafe, "unsafe", false, "the probes may change what the guest does: --override, or programs that call override_return")
}

// aboutOverride are the flags that need --override. The first one also works with programs.
var aboutOverride = []string{"unsafe", "probability", "times", "interval", "after", "seed"}

// rejectAlone returns an error if one of the named flags was given.
func (o *overrideFlags) rejectAlone(names ...string) error {
	for _, name := range names {
		if o.set.Changed(name) {
			return command.Usagef("--%s: it goes with --override N", name)
		}
	}
	return nil
}

// override returns the requested override, or nil.
func (o *overrideFlags) override() (*api.Override, error) {
	if o.set == nil {
		return nil, nil // the command does not have these flags
	}
	if !o.set.Changed("override") {
		return nil, o.rejectAlone(aboutOverride...)
	}
	v, err := parseResult(o.value)
	if err != nil {
		return nil, err
	}
	percent, err := strconv.ParseFloat(strings.TrimSuffix(o.probability, "%"), 64)
	if err != nil || !(percent >= 0 && percent <= 100) {
		return nil, command.Usagef("--probability %q: not 0 to 100 percent", o.probability)
	}
	if o.times < -1 {
		return nil, command.Usagef("--times %d: neither -1, for no limit, nor how many", o.times)
	}
	return &api.Override{Value: v, Probability: &percent, Times: &o.times, Interval: o.interval, After: o.after, Seed: o.seed}, nil
}

// maxErrno is the largest errno of Linux (include/linux/err.h).
const maxErrno = 4095

// parseResult parses a function's result: a number, or the name of an errno.
func parseResult(s string) (int64, error) {
	if name, ok := strings.CutPrefix(s, "-E"); ok {
		for n := syscall.Errno(1); n <= maxErrno; n++ {
			if unix.ErrnoName(n) == "E"+name || n == unix.EOPNOTSUPP && name == "OPNOTSUPP" {
				return -int64(n), nil
			}
		}
		return 0, command.Usagef("--override %q: no such error", s)
	}
	v, err := parseArg(s)
	if err != nil {
		return 0, command.Usagef("--override %q: neither a 64-bit number nor an error, as -ENOENT", s)
	}
	return int64(v), nil
}

// overrideAgain returns the flags that repeat an override.
func overrideAgain(o *api.ProbeOverride) []string {
	out := []string{"--unsafe", fmt.Sprintf("--override %d", o.Value)}
	if p := *o.Probability; p != 100 {
		out = append(out, "--probability "+strconv.FormatFloat(p, 'g', -1, 64), fmt.Sprintf("--seed %d", o.Seed))
	}
	if *o.Times >= 0 {
		out = append(out, fmt.Sprintf("--times %d", *o.Times))
	}
	if o.Interval > 1 {
		out = append(out, fmt.Sprintf("--interval %d", o.Interval))
	}
	if o.After > 0 {
		out = append(out, fmt.Sprintf("--after %d", o.After))
	}
	return out
}

// overrideFlag formats an override for a list of probes, with the number of injected results.
func overrideFlag(o *api.ProbeOverride) string {
	done := command.Plural(o.Injected, "time")
	if *o.Times >= 0 {
		done = fmt.Sprintf("%d of %s", o.Injected, command.Plural(*o.Times, "time"))
	}
	return fmt.Sprintf("[OVERRIDE %d, %s]", o.Value, done)
}

// noteOverrides lists the functions that return without running, and the flags that repeat
// the override.
func noteOverrides(r *command.Run, ps []api.Probe) {
	for _, p := range ps {
		if p.Override != nil {
			r.Note("%s has %s return %d without running (%s).", command.Clean(p.Name), command.Clean(place(p)), p.Override.Value, strings.Join(overrideAgain(p.Override), " "))
		}
	}
}
