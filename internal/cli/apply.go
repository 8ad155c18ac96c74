package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// maxList is the longest list of commands, in bytes.
const maxList = 2 << 20

func (a *app) apply() command.Spec {
	var probes probeFlags
	return command.Spec{
		Use:   "apply [flags] [FILE]",
		Short: "Attach and detach what a file says, all or nothing",
		Long: `Carry out the commands of a file, one a line, or of standard input, which - stands for
as well: definitions and deletions as for attach, in their order. Lines may be blank; #
begins a comment. All of them are carried out or none; an error names the line. The
flags are about every definition.`,
		Example: `  guestprobe apply probes.txt
  guestprobe list --format defs | sed 's/^[^#]/!&/' | guestprobe apply`,
		Args:  command.ArgsBetween(0, 1, ""),
		Files: []string{"file"},
		Flags: func(f *pflag.FlagSet) { probes.add(f) },
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			name, in := "standard input", r.Stdin
			if len(r.Args) > 0 && r.Args[0] != "-" {
				name, in = r.Args[0], nil
			}
			text, err := files.Input(ctx, in, name, maxList)
			if err != nil {
				return err
			}
			commands, lines := commandsOf(string(text))
			if len(commands) == 0 {
				r.Note("%s has no command.", command.Clean(name))
				return printAttached(r, probesAlone(api.ProbeList{Probes: []api.Probe{}}))
			}
			list, err := probes.attach(ctx, r, c, commands)
			var wire *api.Error
			if errors.As(err, &wire) && wire.Index != nil && *wire.Index < len(lines) {
				return fmt.Errorf("%s:%d: %w", name, lines[*wire.Index], err)
			} else if err != nil {
				return err
			}
			return printAttached(r, probesAlone(list))
		}),
	}
}

// commandsOf returns the lines of text that contain a command, and their line numbers.
func commandsOf(text string) (commands []string, lines []int) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		if c, _, _ := strings.Cut(line, "#"); strings.TrimSpace(c) != "" {
			commands, lines = append(commands, strings.TrimRight(line, "\r\n")), append(lines, n)
		}
	}
	return commands, lines
}
