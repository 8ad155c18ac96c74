package dev

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/guestprobe/guestprobe/internal/cli"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleetd"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
)

func manSpec() command.Spec {
	return command.Spec{
		Use:     "man DIRECTORY",
		Short:   "Write the manual pages of the programs",
		Long:    `Write a manual page for each command into DIRECTORY, generated from its help.`,
		Example: `  gpdev man /usr/share/man/man1`,
		Args:    command.ArgsBetween(1, 1, "say where to: DIRECTORY"),
		Plain:   true,
		Run: func(_ context.Context, r *command.Run) error {
			for _, p := range []command.Program{cli.Program(), daemon.Program(nil), fleetd.Program()} {
				for name, text := range p.Manuals() {
					if err := os.WriteFile(filepath.Join(r.Args[0], name+".1"), []byte(text), 0o644); err != nil {
						return fmt.Errorf("man: %w", err)
					}
				}
			}
			return nil
		},
	}
}
