package dev

import (
	"context"
	"os"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/hostdoc"
)

func hostsSpec() command.Spec {
	return command.Spec{
		Use:   "hosts DIRECTORY",
		Short: "Write docs/hosts.md from recorded runs of doctor",
		Long: `Print the document about hosts from the records in DIRECTORY. Each record is the
output of 'guestprobe doctor --format json' (scripts/hosts.sh records them).`,
		Example: `  gpdev hosts docs/hosts`,
		Args:    command.ArgsBetween(1, 1, "say where the records are: DIRECTORY"),
		Plain:   true,
		Run: func(_ context.Context, r *command.Run) error {
			all, err := hostdoc.Load(os.DirFS(r.Args[0]))
			if err != nil {
				return err
			}
			return r.Print("%s", hostdoc.Render(all))
		},
	}
}
