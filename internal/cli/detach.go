package cli

import (
	"context"
	"errors"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
	"github.com/guestprobe/guestprobe/internal/command"
)

func (a *app) detach() command.Spec {
	var all bool
	return command.Spec{
		Use:   "detach PROBE... | --all",
		Short: "Detach probes and show their final counts",
		Long: `Detach probes by event, GROUP/EVENT or number. Probes that were found are
detached even when another one was not; the exit status is then 4.`,
		Example: `  guestprobe detach myread
  guestprobe detach --all`,
		Args:     func([]string) error { return nil },
		Flags:    func(f *pflag.FlagSet) { f.BoolVarP(&all, "all", "a", false, "detach every probe") },
		Complete: a.completeProbes(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) error {
			if all == (len(r.Args) > 0) {
				return command.Usagef("say which probes, or --all")
			}
			if all {
				ps, err := c.DetachAll(ctx)
				if err != nil {
					return err
				}
				return printProbes(r, ps)
			}
			return eachProbe(r, func(name string) (api.Probe, error) { return c.Detach(ctx, name) })
		}),
	}
}

func (a *app) enable() command.Spec {
	return a.setEnabled(true, "enable PROBE...", "Arm disabled probes again")
}

func (a *app) disable() command.Spec {
	return a.setEnabled(false, "disable PROBE...", "Disarm probes without forgetting them")
}

func (a *app) setEnabled(on bool, use, short string) command.Spec {
	return command.Spec{
		Use:      use,
		Short:    short,
		Long:     short + ", by event, GROUP/EVENT or number. A probe that is so already stays so.",
		Args:     command.Between(1, -1, "say which probes"),
		Complete: a.completeProbes(),
		Run: a.ask(func(ctx context.Context, r *command.Run, c *client.Client) error {
			return eachProbe(r, func(name string) (api.Probe, error) { return c.SetEnabled(ctx, name, on) })
		}),
	}
}

// eachProbe does one thing with each probe that the arguments name, and prints
// what they are then. It goes on after an error, and returns the first.
func eachProbe(r *command.Run, one func(name string) (api.Probe, error)) error {
	var done []api.Probe
	var first error
	for _, name := range r.Args {
		p, err := one(name)
		switch {
		case err == nil:
			done = append(done, p)
		case first == nil:
			first = err
		default:
			r.Note("guestprobe: %v", err)
		}
		if errors.Is(err, client.ErrUnreachable) {
			break
		}
	}
	if len(done) > 0 {
		if err := printProbes(r, done); err != nil {
			return err
		}
	}
	return first
}
