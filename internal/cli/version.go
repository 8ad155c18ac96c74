package cli

import (
	"context"
	"errors"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// versions are the versions of this program and of the daemon.
type versions struct {
	Client api.Version  `json:"client"`
	Daemon *api.Version `json:"daemon"` // nil: no daemon
}

func versionCommand(a *app) command.Spec {
	return command.Spec{
		Use:   "version",
		Short: "Show the versions of this program and of the daemon",
		Run: show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (versions, error) {
			out := versions{Client: api.Build()}
			out.Client.Oldest = api.OldestDaemon.String()
			v, err := c.Version(ctx)
			switch {
			case err == nil:
				out.Daemon = &v
			case errors.Is(err, remote.ErrUnreachable), errors.Is(err, remote.ErrOldDaemon):
				// Print our own version even if there is no daemon, or one that is too old.
				r.Note("guestprobe: %v", err)
			default:
				return out, err
			}
			return out, nil
		}, func(r *command.Run, vs versions) error {
			row := func(name string, v api.Version) []string { return []string{name, v.Version, v.Level, v.Git, v.Go} }
			rows := [][]string{row("guestprobe", vs.Client)}
			if vs.Daemon != nil {
				rows = append(rows, row("guestprobed", *vs.Daemon))
			}
			return r.Table([]string{"PROGRAM", "VERSION", "API", "GIT", "GO"}, rows)
		}),
	}
}
