package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// leave is the key that leaves a console on a terminal: Ctrl-].
const leave = 0x1d

// errLeft ends a console that the user has left.
var errLeft = errors.New("left by its user")

func (a *app) console() command.Spec {
	var follow, interactive bool
	return command.Spec{
		Use:   "console",
		Short: "Print the guest's console output",
		Long: `Print the guest's console output, as much of it as the daemon keeps; with --follow also
print new output until the guest ends. On a terminal, control characters of the guest are
shown as \xNN.

With --interactive also print new output, and send standard input to the guest. On a
terminal every key goes to the guest, except Ctrl-], which leaves the console, and the
guest's output goes to the terminal unchanged. Guests that do not read their console, such
as the built-in one, reject input.`,
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "print new output too, until the guest ends")
			f.BoolVarP(&interactive, "interactive", "i", false, "print new output too, and send standard input to the guest")
		},
		Run: a.ask(func(ctx context.Context, r *command.Run, c *remote.Client) error {
			if interactive {
				return typeAt(ctx, r, c)
			}
			s, err := c.Console(ctx, follow)
			if err != nil {
				return err
			}
			defer s.Close()
			return printConsole(ctx, r, s, false)
		}),
	}
}

// typeAt prints the console's output unchanged and sends standard input to it, until the guest ends or the
// user leaves.
func typeAt(ctx context.Context, r *command.Run, c *remote.Client) error {
	parent := ctx
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.ConsoleBytes(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	restore, terminal, err := command.MakeRaw(r.Stdin)
	if err != nil {
		return err
	}
	defer restore()
	if terminal {
		calm := *r
		calm.Stderr = crlf{r.Stderr}
		r = &calm
		r.Note("Control and ] leaves the console.")
	}
	typed := make(chan []byte, 256)
	go func() {
		// Keep printing after the end of input: the guest may still answer.
		if err := readTyped(ctx, r.Stdin, terminal, typed); err != nil {
			cancel(err)
		}
	}()
	go func() {
		for b := range typed {
			if err := c.Type(ctx, b); err != nil {
				cancel(err)
				return
			}
		}
	}()
	err = printConsole(ctx, r, s, true)
	if parent.Err() != nil { // Ctrl-C or a signal: the normal end
		return nil
	}
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errLeft) {
		return cause
	}
	return err
}

// readTyped forwards its input until the end or the leave key. It keeps reading when the guest does not, so that the leave
// key works: then keys from a terminal that do not fit into the buffer are lost, as on any terminal.
func readTyped(ctx context.Context, in io.Reader, terminal bool, typed chan<- []byte) error {
	defer close(typed)
	for {
		b := make([]byte, 4096)
		n, err := in.Read(b)
		b = b[:n]
		if i := bytes.IndexByte(b, leave); terminal && i >= 0 {
			return errLeft
		}
		if terminal {
			select {
			case typed <- b:
			default:
			}
		} else {
			select {
			case typed <- b:
			case <-ctx.Done():
				return nil
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("standard input: %w", err)
		}
	}
}

// crlf writes to a terminal in raw mode, in which a line feed does not return to the first column.
type crlf struct{ io.Writer }

func (w crlf) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printConsole prints a console stream until it ends. With typed the stream must be one of ConsoleBytes, and control
// characters are printed unchanged.
func printConsole(ctx context.Context, r *command.Run, s *remote.Stream, typed bool) error {
	var lines io.Writer = r.Stdout
	terminal, what := command.Terminal(r.Stdout), "console line"
	if typed {
		what = "console byte"
		if terminal {
			lines = crlf{r.Stdout}
		}
	}
	for {
		rec, err := s.Next()
		switch {
		case errors.Is(err, io.EOF), err != nil && ctx.Err() != nil: // the end of the output, or Ctrl-C
			return nil
		case err != nil:
			return err
		}
		if r.WantsJSON() {
			if err := json.NewEncoder(r.Stdout).Encode(rec); err != nil {
				return err
			}
			continue
		}
		switch rec.Type {
		case api.RecordConsole:
			var l api.Console
			if err := json.Unmarshal(rec.Data, &l); err != nil {
				return fmt.Errorf("%w: %w", remote.ErrProtocol, err)
			}
			text := l.Text + string(l.Bytes)
			if terminal && !typed {
				text = command.Clean(text)
			}
			if !l.Partial {
				text += "\n"
			}
			if _, err := io.WriteString(lines, text); err != nil {
				return err
			}
		case api.RecordOutput:
			o, err := data[api.Output](rec)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(r.Stdout, o.Text+string(o.Bytes)); err != nil {
				return err
			}
		case api.RecordLost:
			noteLost(r, rec, what)
		case api.RecordEnd:
			end, err := data[api.End](rec)
			if err != nil {
				return err
			}
			noteEnd(r, end, api.EndHistory)
		}
	}
}
