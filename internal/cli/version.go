package cli

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/client"
)

func (a *app) versionCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the versions of this program and of the daemon",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := a.wantFormat(); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			defer c.Close()
			out := struct {
				Client api.Version  `json:"client"`
				Daemon *api.Version `json:"daemon"`
			}{Client: api.Build()}
			v, err := c.Version(cmd.Context())
			switch {
			case err == nil:
				out.Daemon = &v
			case errors.Is(err, client.ErrUnreachable):
				// Our own version is worth knowing without a daemon.
				a.note("guestprobe: %v", err)
			default:
				return err
			}
			if a.format == "json" {
				return a.printJSON(out)
			}
			row := func(name string, v api.Version) []string { return []string{name, v.Version, v.API[0], v.Git, v.Go} }
			rows := [][]string{row("guestprobe", out.Client)}
			if out.Daemon != nil && len(out.Daemon.API) > 0 {
				rows = append(rows, row("guestprobed", *out.Daemon))
			}
			return a.table([]string{"PROGRAM", "VERSION", "API", "GIT", "GO"}, rows)
		},
	}
}
