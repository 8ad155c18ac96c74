package cli

import (
	"bytes"
	"io"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/internal/command"
)

// textWriter writes text that may come from the guest. On a terminal it escapes control characters with command.Clean. Only one
// goroutine at a time may use it.
type textWriter struct {
	out   io.Writer
	clean bool
	part  []byte // start of an incomplete character
}

// guestText returns a writer to out for text that may come from the guest.
func guestText(r *command.Run, out io.Writer) *textWriter {
	return &textWriter{out: out, clean: command.Terminal(out) && !r.WantsJSON()}
}

// printGuestText prints text that may come from the guest.
func printGuestText(r *command.Run, text string) error {
	w := guestText(r, r.Stdout)
	if _, err := io.WriteString(w, text); err != nil {
		return err
	}
	return w.flush()
}

// Write implements io.Writer.
func (w *textWriter) Write(b []byte) (int, error) {
	if !w.clean {
		return w.out.Write(b)
	}
	text := append(w.part, b...)
	whole := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if at := len(text) - i; utf8.RuneStart(text[at]) {
			if !utf8.FullRune(text[at:]) {
				whole = at
			}
			break
		}
	}
	w.part = bytes.Clone(text[whole:])
	_, err := io.WriteString(w.out, command.Clean(string(text[:whole])))
	return len(b), err
}

// flush writes an incomplete character at the end of the text.
func (w *textWriter) flush() error {
	if len(w.part) == 0 {
		return nil // do not write: even an empty write would truncate a file
	}
	_, err := io.WriteString(w.out, command.Clean(string(w.part)))
	w.part = nil
	return err
}
