package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

func (a *app) detachCmd() *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "detach PROBE... | --all",
		Short: "Detach probes and show their final counts",
		Long: `Detach probes by event, GROUP/EVENT or number. Probes that were found are
detached even when another one was not; the exit status is then 4.`,
		Example: `  guestprobe detach myread
  guestprobe detach --all`,
		Args: func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("say which probes, or --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachProbe(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) (api.Probe, error) {
				return c.Detach(ctx, name)
			}, func(ctx context.Context, c *client.Client) ([]api.Probe, error) { return c.DetachAll(ctx) })
		},
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "detach every probe")
	cmd.ValidArgsFunction = a.completeProbes
	return cmd
}

// eachProbe does one thing with each probe that args name, or with all of them
// when there are none, and prints what they are then. It goes on after an
// error, and returns the first.
func (a *app) eachProbe(ctx context.Context, args []string, one func(context.Context, *client.Client, string) (api.Probe, error), all func(context.Context, *client.Client) ([]api.Probe, error)) error {
	if err := a.wantFormat(); err != nil {
		return err
	}
	c, err := a.client()
	if err != nil {
		return err
	}
	defer c.Close()
	if len(args) == 0 {
		ps, err := all(ctx, c)
		if err != nil {
			return err
		}
		return a.printProbes(ps, nil)
	}
	var done []api.Probe
	var first error
	for _, name := range args {
		p, err := one(ctx, c, name)
		switch {
		case err == nil:
			done = append(done, p)
		case first == nil:
			first = err
		default:
			a.note("guestprobe: %v", err)
		}
		if errors.Is(err, client.ErrUnreachable) {
			break
		}
	}
	if len(done) > 0 {
		if err := a.printProbes(done, nil); err != nil {
			return err
		}
	}
	return first
}

func asWire(err error, wire **api.Error) bool { return errors.As(err, wire) }

func plural(n int, one string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, one)
	}
	return fmt.Sprintf("%d %ss", n, one)
}
