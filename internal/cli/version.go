package cli

import (
	"context"
	"errors"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// versions are those of this program and of the daemon.
type versions struct {
	Client api.Version  `json:"client"`
	Daemon *api.Version `json:"daemon"` // nil: there is none
}

func (a *app) version() command.Spec {
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
				// Our own version is worth knowing without a daemon, and with one that we refuse.
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
