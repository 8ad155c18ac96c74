package cli

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// probeNames is the help for arguments that are names of probes.
const probeNames = `A probe is named by its number; by EVENT or GROUP/EVENT, for every probe of that event; by
GROUP/ for every probe of a group; or by a pattern of EVENT or GROUP/EVENT with * ? [a-z].
Every name must match a probe: the command applies to all of the probes or to none.`

func (a *app) detach() command.Spec {
	s := a.probesCommand(command.Spec{
		Cures: map[string]string{"-q": ">/dev/null leaves the table out", "--quiet": ">/dev/null leaves the table out"},
		Use:   "detach PROBE... | --all",
		Short: "Detach probes and show their final counts",
		Long: "Detach probes and show their final counts. Calls that a return probe followed at that time\n" +
			"return without it, and are counted: handled = returned + abandoned + under way.\n\n" + probeNames + "\n\n" +
			"With --fleet, the NAME of 'attach --keep' withdraws the definitions kept under it: all daemons detach their probes,\n" +
			"and daemons that join later do not attach them.",
		Example: `  guestprobe detach myread
  guestprobe detach 'io/*' 7
  guestprobe detach --all`,
	}, func(ctx context.Context, c *remote.Client, names []string) ([]api.Probe, error) {
		if len(names) == 0 {
			return c.DetachAll(ctx)
		}
		return c.DetachMany(ctx, names...)
	})
	s.Run = a.endKeptOrRun(s.Run)
	return s
}

func (a *app) enable() command.Spec {
	return a.setEnabled(true, "enable PROBE... | --all", "Arm disabled probes again")
}

func (a *app) disable() command.Spec {
	return a.setEnabled(false, "disable PROBE... | --all", "Disarm probes, keeping them attached")
}

func (a *app) setEnabled(on bool, use, short string) command.Spec {
	return a.probesCommand(command.Spec{
		Use:   use,
		Short: short,
		Long:  short + ". Probes that are already in that state stay unchanged.\n\n" + probeNames,
	}, func(ctx context.Context, c *remote.Client, names []string) ([]api.Probe, error) {
		return c.Patch(ctx, api.PatchProbe{Enabled: &on}, names...)
	})
}

func (a *app) filter() command.Spec {
	var clear, all bool
	return command.Spec{
		Use:   "filter PROBE... EXPRESSION | --all EXPRESSION | --clear PROBE...",
		Short: "Change the filter of attached probes",
		Long: "Change the filter of attached probes, as writing to an event's filter file does in the\n" +
			"kernel: 0 removes the filter, as --clear does. The guest pauses for a moment: each hit\n" +
			"meets either the old filter or the new one. The counts are kept. If the expression does not\n" +
			"fit one of the probes, no probe changes. The expression is as for attach --filter.\n\n" + probeNames,
		Example: `  guestprobe filter myread 'count > 100 && fd != 3'
  guestprobe filter --clear 'io/*'`,
		Args: command.ArgsBetween(0, -1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&clear, "clear", false, "remove the filter; every argument is a probe")
			f.BoolVarP(&all, "all", "a", false, "every probe")
		},
		Complete: a.completeProbes(),
		Run: a.askProbes(func(r *command.Run) (doing, error) {
			names, expr := r.Args, ""
			if !clear {
				if len(names) == 0 {
					return nil, command.Usagef("say what the filter is to be, or --clear")
				}
				names, expr = names[:len(names)-1], names[len(names)-1]
			}
			if all == (len(names) > 0) {
				if len(r.Args) == 1 {
					return nil, command.Usagef("give the filter as well, as in: guestprobe filter %[1]s 'count > 100'; --clear %[1]s removes it", r.Args[0])
				}
				return nil, command.Usagef("say which probes, or --all")
			}
			return func(ctx context.Context, c *remote.Client) ([]api.Probe, error) {
				return c.Patch(ctx, api.PatchProbe{Filter: &expr}, names...)
			}, nil
		}),
	}
}

// probesCommand returns a command that applies do to the named probes, or to all with --all,
// and prints their state afterwards.
func (a *app) probesCommand(s command.Spec, do func(ctx context.Context, c *remote.Client, names []string) ([]api.Probe, error)) command.Spec {
	var all bool
	s.Args = func([]string) error { return nil }
	s.Flags = func(f *pflag.FlagSet) { f.BoolVarP(&all, "all", "a", false, "every probe") }
	s.Complete = a.completeProbes()
	s.Run = a.askProbes(func(r *command.Run) (doing, error) {
		if all == (len(r.Args) > 0) {
			return nil, command.Usagef("say which probes, or --all")
		}
		return func(ctx context.Context, c *remote.Client) ([]api.Probe, error) { return do(ctx, c, r.Args) }, nil
	})
	return s
}

// doing changes probes of a daemon and returns their new state.
type doing func(context.Context, *remote.Client) ([]api.Probe, error)

// askProbes returns a command that has daemons apply what to their probes, and prints the probes' new state.
func (a *app) askProbes(what func(*command.Run) (doing, error)) func(context.Context, *command.Run) error {
	return a.askAll(func(ctx context.Context, r *command.Run, m *members) error {
		do, err := what(r)
		if err != nil {
			return err
		}
		return doAndPrint(ctx, r, m, do)
	})
}

// doAndPrint has daemons apply do to their probes, and prints the probes' new state.
func doAndPrint(ctx context.Context, r *command.Run, m *members, do doing) error {
	return askEach(ctx, r, m, func(ctx context.Context, c *remote.Client) (l api.ProbeList, err error) {
		l.Probes, err = do(ctx, c)
		return l, err
	}, func(o answersOf[api.ProbeList]) error { return probesOf{o}.print(r, nil) })
}
