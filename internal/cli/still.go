package cli

import (
	"context"
	"slices"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// noteStill says of a guest in which nothing runs why, so that an empty result is not a surprise. An error is not
// reported: it is the next request's.
func noteStill(ctx context.Context, r *command.Run, c *remote.Client) {
	g, err := c.Guest(ctx)
	switch {
	case err != nil:
	case g.State == "paused":
		r.Note("The guest is paused: 'guestprobe guest resume' continues it.")
	case g.State == "exited", g.State == "crashed":
		r.Note("The guest has %s: 'guestprobe guest reset' boots it again.", g.State)
	case len(g.CPUs) > 0 && !slices.ContainsFunc(g.CPUs, func(v api.CPUInfo) bool { return v.State != "stopped" }):
		r.Note("All vCPUs are stopped ('guestprobe guest status' says where): 'guestprobe guest resume' continues them.")
	}
}
