package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// fileFlag declares the flag for giveFiles.
func fileFlag(f *pflag.FlagSet, files *[]string) {
	f.StringArrayVar(files, "file", nil, "for PATH:SYMBOL of a Linux guest: take the names of its file PATH from COPY, a copy of the file, its separate debug information or a part of that (.dwo, .dwp), `PATH=COPY`; may be repeated")
}

// giveFiles sends the daemon copies of the guest's files, each given as PATH=COPY.
func giveFiles(ctx context.Context, r *command.Run, c *remote.Client, files []string) error {
	for _, f := range files {
		path, from, ok := strings.Cut(f, "=")
		if !ok || !strings.HasPrefix(path, "/") || from == "" {
			return command.Usagef("--file %q: want PATH=COPY, with the PATH of a file in the guest, as /usr/bin/cat=cat", f)
		}
		b, err := readObject(ctx, from)
		if err != nil {
			return fmt.Errorf("--file: %w", err)
		}
		g, err := c.GiveFile(ctx, api.GiveFile{Path: path, Copy: b})
		switch {
		case err != nil:
			return fmt.Errorf("--file %s: %w", from, err)
		case isAwaited(g):
			r.Note("The guest does not have %s in memory yet: its probes are put there within 0.1 s when it has, if it is the same file.", command.Clean(g.Path))
		}
	}
	return nil
}

// isAwaited reports whether the guest may get the file later. A part of debug information, which has no functions, has no place in the
// guest.
func isAwaited(g api.GivenFile) bool { return !g.Present && (!g.NamesOnly || g.Functions > 0) }
