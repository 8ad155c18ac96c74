package cli

import (
	"bytes"
	"io"
	"unicode/utf8"

	"github.com/guestprobe/guestprobe/internal/command"
)

// textWriter writes text that may be the guest's: on a terminal as command.Clean has it, elsewhere as it is. One goroutine at a time
// may use it.
type textWriter struct {
	out   io.Writer
	clean bool
	part  []byte // of a character that is not all there
}

// guestText is for text that may be the guest's, and goes to out.
func guestText(r *command.Run, out io.Writer) *textWriter {
	return &textWriter{out: out, clean: command.Terminal(out) && !r.WantsJSON()}
}

// printGuestText prints text that may be the guest's.
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

// flush writes what is there of a character whose rest will not come.
func (w *textWriter) flush() error {
	if len(w.part) == 0 {
		return nil // to write nothing would empty a file
	}
	_, err := io.WriteString(w.out, command.Clean(string(w.part)))
	w.part = nil
	return err
}
