package dev

import (
	"context"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/dev/openapi"
)

func openapiSpec() command.Spec {
	return command.Spec{
		Use:   "openapi DIRECTORY",
		Short: "Write docs/openapi.yaml from the daemon's routes and types",
		Long: `Print the OpenAPI document of the daemon. Its paths come from the daemon's route table,
its schemas from the types of package probe/remote/api and from the comments in their
source, which is below DIRECTORY.`,
		Example: `  gpdev openapi .`,
		Args:    command.ArgsBetween(1, 1, "name the directory of the checkout: DIRECTORY"),
		Plain:   true,
		Run: func(_ context.Context, r *command.Run) error {
			text, err := openapi.Generate(r.Args[0])
			if err != nil {
				return err
			}
			return r.Print("%s", text)
		},
	}
}
