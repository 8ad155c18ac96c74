package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/files"
	"github.com/guestprobe/guestprobe/internal/timeline"
)

func (a *app) convert() command.Spec {
	var clock string
	return command.Spec{
		Use:   "convert [flags] IN [OUT]",
		Short: "Make another form of a saved trace",
		Long: `Make another form of a trace that 'guestprobe trace --format json' has saved. IN - is
standard input, and without OUT it is written to standard output. The name of OUT says the
format where --format does not: .pftrace, .dat, .chrome.json, .ndjson, .txt.

` + timelineHelp + `
Text (--format table) is what trace would have shown.

A trace that was cut off, even within a line, is converted as far as it goes, and that is
told. Another file is refused with the line that is none of a trace.`,
		Example: `  guestprobe convert t.ndjson t.pftrace
  guestprobe trace -c 10 --format json | guestprobe convert --format chrome - t.json`,
		Args:    command.Between(1, 2, "say which saved trace"),
		Formats: timeline.Formats,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&clock, "time", timeline.ClockBoot, "`what` times of text are: boot, relative or wall, as for trace")
		},
		Run: func(ctx context.Context, r *command.Run) (err error) {
			out := ""
			if len(r.Args) > 1 {
				out = r.Args[1]
			}
			if !r.Given("format") {
				if r.Format = timeline.FormatOf(out); r.Format == "" {
					return command.Usagef("say the format: %s, %s or %s", strings.Join(timeline.Formats, ", "), formatJSON, formatTable)
				}
			}
			if err := clockFits(r, clock); err != nil {
				return err
			}
			if err := notForTerminal(r, out); err != nil {
				return err
			}
			in, done, err := openTrace(ctx, r, r.Args[0], out)
			if err != nil {
				return err
			}
			defer done()
			w := r.Stdout
			if out != "" {
				f, err := files.Create(ctx, out)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, f.Close()) }()
				w = f
			}
			buffered := bufio.NewWriter(w)
			defer func() { err = errors.Join(err, buffered.Flush()) }()
			to, err := traceWriter(r.Format, buffered, timeline.TextOptions{Clock: clock, Color: r.Colors(w), Header: r.Headings(), Totals: true}, false)
			if err != nil {
				return err
			}
			err = eachRecord(ctx, r, in, to.Write)
			return errors.Join(err, to.Close())
		},
	}
}

// openTrace opens a saved trace, "-" for standard input, that is not the file out, and returns what
// closes it.
func openTrace(ctx context.Context, r *command.Run, path, out string) (*timeline.Reader, func(), error) {
	if path == "-" {
		// The end of ctx ends the wait for who types.
		end, feed := io.Pipe()
		go func() {
			_, err := io.Copy(feed, r.Stdin)
			feed.CloseWithError(err)
		}()
		stop := context.AfterFunc(ctx, func() { end.CloseWithError(context.Cause(ctx)) })
		return timeline.NewReader(end), func() { stop(); end.Close() }, nil
	}
	f, _, err := files.Open(path)
	if err != nil {
		return nil, nil, err
	}
	if out != "" {
		from, err := f.Stat()
		to, missing := os.Stat(out)
		if err == nil && missing == nil && os.SameFile(from, to) {
			f.Close()
			return nil, nil, command.Usagef("%s and %s are one file", path, out)
		}
	}
	return timeline.NewReader(f), func() { f.Close() }, nil
}

// eachRecord calls f for each record of a saved trace, and tells where it was cut off.
func eachRecord(ctx context.Context, r *command.Run, in *timeline.Reader, f func(*timeline.Record) error) error {
	for {
		rec, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, timeline.ErrCut) && in.Half:
			r.Note("The trace was cut off: it has no end, and its last line is not whole and left out.")
			return nil
		case errors.Is(err, timeline.ErrCut):
			r.Note("The trace was cut off: it has no end.")
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", r.Args[0], err)
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		if err := f(rec); err != nil {
			return err
		}
	}
}
