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

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/timeline"
)

func convertCommand() command.Spec {
	var clock string
	return command.Spec{
		Local: true,
		Use:   "convert [flags] IN [OUT]",
		Short: "Convert a saved trace to another format",
		Long: `Convert a trace that 'guestprobe trace --format json' has saved. IN - is standard input;
without OUT the result is written to standard output. Without --format the name of OUT
selects the format: .pftrace, .dat, .trace.json (.chrome.json), .ndjson, .txt.

` + timelineHelp + `
Text (--format table) is what trace would have shown.

A truncated trace, even one cut within a line, is converted as far as it goes, and guestprobe
reports this. It also reports the number of events that are missing in the file. A file that
is not a trace is rejected: the error names the line, and OUT stays unchanged.`,
		Example: `  guestprobe convert t.ndjson t.pftrace
  guestprobe trace -c 10 --format json | guestprobe convert --format chrome - t.json`,
		Args:    command.ArgsBetween(1, 2, "say which saved trace"),
		Formats: timeline.Formats,
		Flags: func(f *pflag.FlagSet) {
			f.StringVar(&clock, "time", timeline.ClockBoot, "the `clock` of the times in text: boot, relative or wall, as for trace")
		},
		Run: func(ctx context.Context, r *command.Run) error {
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
			if err := rejectTerminal(r, out); err != nil {
				return err
			}
			in, done, err := openTrace(ctx, r, r.Args[0], out)
			if err != nil {
				return err
			}
			defer done()
			if out == "" {
				return convertTo(ctx, r, in, r.Stdout, clock)
			}
			return writeWhole(ctx, out, func(w io.Writer) error { return convertTo(ctx, r, in, w, clock) })
		},
	}
}

// convertTo writes a trace in the chosen format, and prints a note about missing parts.
func convertTo(ctx context.Context, r *command.Run, in *timeline.Reader, w io.Writer, clock string) error {
	command.PaceGarbage(100)
	buffered := bufio.NewWriter(w)
	to, err := traceWriter(r.Format, buffered, timeline.TextOptions{Clock: clock, Color: r.Colors(w), Header: r.Headings(), Totals: true}, false)
	if err != nil {
		return err
	}
	// Close and Flush write too. If one step fails, errors of later ones have the same cause, so keep the first.
	err = forEachRecord(ctx, r, in, to.Write)
	if e := to.Close(); err == nil {
		err = e
	}
	if e := buffered.Flush(); err == nil {
		err = e
	}
	return err
}

// writeWhole replaces the file at path with the output of write, or leaves it unchanged if write fails. If path exists and is
// not a regular file but a pipe, for example, writeWhole writes to it directly.
func writeWhole(ctx context.Context, path string, write func(io.Writer) error) error {
	was, err := os.Stat(path)
	if err == nil && !was.Mode().IsRegular() {
		f, err := files.Create(ctx, path)
		if err != nil {
			return err
		}
		err = write(f)
		if e := f.Close(); err == nil {
			err = e
		}
		return err
	}
	return files.Replace(path, 0o666, func(f *os.File) error {
		if err == nil {
			if err := f.Chmod(was.Mode().Perm()); err != nil {
				return err
			}
		}
		return write(f)
	})
}

// openTrace opens a saved trace, or standard input for "-", and returns a function that closes it. It returns an error if the
// trace and out are the same file.
func openTrace(ctx context.Context, r *command.Run, path, out string) (*timeline.Reader, func(), error) {
	if path == "-" {
		// End the read from a terminal when ctx ends.
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

// forEachRecord calls f for each record of a saved trace. It notes if the trace was cut off, and how many events are
// missing.
func forEachRecord(ctx context.Context, r *command.Run, in *timeline.Reader, f func(*timeline.Record) error) error {
	for {
		rec, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			switch {
			case in.Missing > 0:
				r.Note("%s %s missing in the file: the daemon has delivered more.", command.Plural(in.Missing, "event"), command.IsOrAre(in.Missing))
			case in.Missing < 0:
				r.Note("The file has %s more than the daemon has delivered.", command.Plural(-in.Missing, "event"))
			}
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
