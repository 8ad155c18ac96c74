package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

func (a *app) enableCmd() *cobra.Command {
	return a.setEnabledCmd(true, "enable PROBE...", "Arm disabled probes again")
}

func (a *app) disableCmd() *cobra.Command {
	return a.setEnabledCmd(false, "disable PROBE...", "Disarm probes without forgetting them")
}

func (a *app) setEnabledCmd(on bool, use, short string) *cobra.Command {
	return &cobra.Command{
		Use:   use,
		Short: short,
		Long:  short + ", by event, GROUP/EVENT or number. A probe that is so already stays so.",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.eachProbe(cmd.Context(), args, func(ctx context.Context, c *client.Client, name string) (api.Probe, error) {
				return c.SetEnabled(ctx, name, on)
			}, nil)
		},
		ValidArgsFunction: a.completeProbes,
	}
}
