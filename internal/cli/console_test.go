package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// Only on a terminal the leave key leaves. It drops keys typed before it that are read together with it.
// The end of a file is not an error, a failed read is.
func TestReadTyped(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name     string
		in       io.Reader
		terminal bool
		want     string
		err      error
	}{
		{"terminal", io.MultiReader(strings.NewReader("ls\r"), strings.NewReader("\x03"), strings.NewReader("x\x1dy")), true, "ls\r\x03", errLeft},
		{"pipe", strings.NewReader("ls\n\x1dy"), false, "ls\n\x1dy", nil},
		{"nothing", strings.NewReader(""), false, "", nil},
		{"long", strings.NewReader(strings.Repeat("0123456789", 2000)), false, strings.Repeat("0123456789", 2000), nil},
		{"broken", io.MultiReader(strings.NewReader("a"), readerOf{broken}), false, "a", broken},
	} {
		t.Run(tt.name, func(t *testing.T) {
			typed, end := make(chan []byte), make(chan error, 1)
			if tt.terminal {
				typed = make(chan []byte, 8)
			}
			go func() { end <- readTyped(patience.Context(t), tt.in, tt.terminal, typed) }()
			var got []byte
			for b := range typed {
				got = append(got, b...)
			}
			if err := <-end; string(got) != tt.want || !errors.Is(err, tt.err) {
				t.Errorf("typed %.40q, %v; want %.40q, %v", got, err, tt.want, tt.err)
			}
		})
	}
	// With a full buffer, keys of a terminal are dropped, and a pipe is read until ctx ends.
	if err := readTyped(patience.Context(t), io.MultiReader(strings.NewReader("a"), strings.NewReader("\x1d")), true, make(chan []byte)); !errors.Is(err, errLeft) {
		t.Errorf("a terminal that nobody takes from: %v", err)
	}
	ctx, cancel := context.WithCancel(patience.Context(t))
	cancel()
	if err := readTyped(ctx, strings.NewReader("a"), false, make(chan []byte)); err != nil {
		t.Errorf("a pipe that nobody takes from: %v", err)
	}
}

// readerOf is a reader that fails.
type readerOf struct{ error }

func (r readerOf) Read([]byte) (int, error) { return 0, r.error }

func TestCRLF(t *testing.T) {
	var out bytes.Buffer
	if n, err := io.WriteString(crlf{&out}, "a\nb\n\nc"); n != 6 || err != nil || out.String() != "a\r\nb\r\n\r\nc" {
		t.Errorf("%d bytes, %v: %q", n, err, out.String())
	}
}
