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

// leave is the key that leaves a console on a terminal: control and ].
const leave = 0x1d

// errLeft is the end of a console that its user has left.
var errLeft = errors.New("left by its user")

func (a *app) console() command.Spec {
	var follow, interactive bool
	return command.Spec{
		Use:   "console",
		Short: "Print what the guest has written to its console",
		Long: `Print what is kept of the guest's console output; with --follow go on until the
guest ends. On a terminal, control characters of the guest are shown as \xNN.

With --interactive go on, too, and type what comes from standard input. On a
terminal every key goes to the guest, but control and ], which leaves the console,
and what the guest writes goes to the terminal as it is. Guests that read no
console, the built-in one for instance, refuse what is typed.`,
		Flags: func(f *pflag.FlagSet) {
			f.BoolVarP(&follow, "follow", "f", false, "go on with new output")
			f.BoolVarP(&interactive, "interactive", "i", false, "go on with new output, and type standard input")
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
			return printConsole(r, s, false)
		}),
	}
}

// typeAt prints the console's output as it is and types standard input, until the guest ends or the
// user leaves.
func typeAt(ctx context.Context, r *command.Run, c *remote.Client) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s, err := c.ConsoleBytes(ctx)
	if err != nil {
		return err
	}
	defer s.Close()
	restore, terminal, err := command.Raw(r.Stdin)
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
		// At the end of a file the output goes on: there may be an answer.
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
	err = printConsole(r, s, true)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) && !errors.Is(cause, errLeft) {
		return cause
	}
	return err
}

// readTyped passes on what it reads, up to the end or the key that leaves. That is seen even when the guest
// does not read: then keys of a terminal that nobody has room for are lost, as on any.
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

// crlf writes to a terminal in raw mode, which does not go back to the first column by itself.
type crlf struct{ io.Writer }

func (w crlf) Write(p []byte) (int, error) {
	if _, err := w.Writer.Write(bytes.ReplaceAll(p, []byte("\n"), []byte("\r\n"))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// printConsole prints a console stream to its end, one of ConsoleBytes when typed: then control
// characters come out as they are.
func printConsole(r *command.Run, s *remote.Stream, typed bool) error {
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
		case errors.Is(err, io.EOF), errors.Is(err, context.Canceled), errors.Is(err, errLeft):
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
