package cli

import (
	"context"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// probeNames is the help of commands that take the names of probes.
const probeNames = `A probe is named by its number, by EVENT or GROUP/EVENT, which means every probe of that
event, by GROUP/ for all of a group, or by a pattern of EVENT or GROUP/EVENT with * ? [a-z].
Every name must mean some probe: it is done to all of them or to none.`

func (a *app) detach() command.Spec {
	s := a.onProbes(command.Spec{
		Use:   "detach PROBE... | --all",
		Short: "Detach probes and show their final counts",
		Long: "Detach probes and show their final counts. Calls that a return probe followed at that time\n" +
			"return without it, and are counted: handled = returned + abandoned + under way.\n\n" + probeNames + "\n\n" +
			"With --fleet the NAME of 'attach --keep' takes back what was left to the fleet by it, in all daemons, and those that\n" +
			"come later do not attach it.",
		Example: `  guestprobe detach myread
  guestprobe detach 'io/*' 7
  guestprobe detach --all`,
	}, func(ctx context.Context, c *remote.Client, names []string) ([]api.Probe, error) {
		if len(names) == 0 {
			return c.DetachAll(ctx)
		}
		return c.DetachMany(ctx, names...)
	})
	s.Run = a.orKept(s.Run)
	return s
}

func (a *app) enable() command.Spec {
	return a.setEnabled(true, "enable PROBE... | --all", "Arm disabled probes again")
}

func (a *app) disable() command.Spec {
	return a.setEnabled(false, "disable PROBE... | --all", "Disarm probes without forgetting them")
}

func (a *app) setEnabled(on bool, use, short string) command.Spec {
	return a.onProbes(command.Spec{
		Use:   use,
		Short: short,
		Long:  short + ". A probe that is so already stays so.\n\n" + probeNames,
	}, func(ctx context.Context, c *remote.Client, names []string) ([]api.Probe, error) {
		return c.Patch(ctx, api.PatchProbe{Enabled: &on}, names...)
	})
}

func (a *app) filter() command.Spec {
	var clear, all bool
	return command.Spec{
		Use:   "filter PROBE... EXPRESSION | --all EXPRESSION | --clear PROBE...",
		Short: "Change the filter of probes that are attached",
		Long: "Change the filter of probes that are attached, as writing to an event's filter file does in\n" +
			"the kernel: 0 is no filter, as is --clear. The guest stands still for the moment: a hit\n" +
			"has met the old filter or the new one. Counts go on. An expression that does not suit one of the\n" +
			"probes changes none. The expression is as for attach --filter.\n\n" + probeNames,
		Example: `  guestprobe filter myread 'count > 100 && fd != 3'
  guestprobe filter --clear 'io/*'`,
		Args: command.Between(0, -1, ""),
		Flags: func(f *pflag.FlagSet) {
			f.BoolVar(&clear, "clear", false, "take the filter away; every argument is a probe")
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
				return nil, command.Usagef("say which probes, or --all")
			}
			return func(ctx context.Context, c *remote.Client) ([]api.Probe, error) {
				return c.Patch(ctx, api.PatchProbe{Filter: &expr}, names...)
			}, nil
		}),
	}
}

// onProbes makes the command that does one thing with the probes that its arguments
// name, or with no names with all of them, and prints what they are then.
func (a *app) onProbes(s command.Spec, do func(ctx context.Context, c *remote.Client, names []string) ([]api.Probe, error)) command.Spec {
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

// doing does something with probes of a daemon, and returns what they are then.
type doing func(context.Context, *remote.Client) ([]api.Probe, error)

// askProbes has daemons do what the command line says, and prints what the probes are then.
func (a *app) askProbes(what func(*command.Run) (doing, error)) func(context.Context, *command.Run) error {
	return a.askAll(func(ctx context.Context, r *command.Run, m *members) error {
		do, err := what(r)
		if err != nil {
			return err
		}
		return doAndPrint(ctx, r, m, do)
	})
}

// doAndPrint has daemons do something with their probes, and prints what these are then.
func doAndPrint(ctx context.Context, r *command.Run, m *members, do doing) error {
	return each(ctx, r, m, func(ctx context.Context, c *remote.Client) (l api.ProbeList, err error) {
		l.Probes, err = do(ctx, c)
		return l, err
	}, func(o answersOf[api.ProbeList]) error { return probesOf{o}.print(r, nil) })
}
