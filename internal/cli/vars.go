package cli

import (
	"cmp"
	"context"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func (a *app) vars() command.Spec {
	return command.Spec{
		Use:   "vars FUNCTION[+OFFSET]|ADDRESS|FILE:LINE|inline:FUNCTION",
		Short: "List the variables that a probe can fetch",
		Long: `List the variables and parameters that the code sees at a place, the innermost first, each
with its type, its function, and its location there, as definitions write it, or the reason why its value is not
available. Definitions take them by name: 'p fork.c:2674 args->flags'. The guest's image, or the
file that guestprobed --debug names, must have debug information.`,
		Example: `  guestprobe vars vfs_read+0x10
  guestprobe vars fs.c:71`,
		Args:     command.ArgsBetween(1, 1, "say one place: FUNCTION[+OFFSET], ADDRESS, FILE:LINE or inline:FUNCTION"),
		Complete: a.completeSymbols(),
		Run: show(a, func(ctx context.Context, r *command.Run, c *remote.Client) (api.VariableList, error) {
			return c.Variables(ctx, r.Args[0])
		}, printVariables),
	}
}

func printVariables(r *command.Run, l api.VariableList) error {
	for _, p := range l.Places {
		source := ""
		if p.Source != "" {
			source = " (" + p.Source + ")"
		}
		if err := r.Print("%s\n", command.Clean(p.Symbol+source)); err != nil {
			return err
		}
		var rows [][]string
		for _, v := range p.Variables {
			rows = append(rows, []string{v.Name, v.Type, v.Function, cmp.Or(v.Where, v.Why)})
		}
		if err := r.Table([]string{"NAME", "TYPE", "OF", "WHERE"}, rows); err != nil {
			return err
		}
	}
	if l.More {
		r.Note("There are more places.")
	}
	return nil
}
