package command

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newTerminal returns both ends of a pseudo-terminal.
func newTerminal(t *testing.T) (far, terminal *os.File) {
	t.Helper()
	far, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { far.Close() })
	n, err := unix.IoctlGetInt(int(far.Fd()), unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(int(far.Fd()), unix.TIOCSPTLCK, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	return far, terminal
}

// Keys arrive at once and unchanged, and restore resets the terminal.
func TestRaw(t *testing.T) {
	far, terminal := newTerminal(t)
	modes := func() unix.Termios {
		m, err := unix.IoctlGetTermios(int(terminal.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return *m
	}
	before := modes()
	restore, is, err := MakeRaw(terminal)
	if !is || err != nil {
		t.Fatalf("terminal %v, error %v", is, err)
	}
	const keys = "\x03\r\x1a\x11\x04" // characters that a cooked terminal handles itself, without a newline
	if _, err := far.WriteString(keys); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(keys))
	for n := 0; n < len(keys); {
		m, err := terminal.Read(got[n:])
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	if string(got) != keys {
		t.Errorf("read %q, want %q", got, keys)
	}
	restore()
	if after := modes(); after != before {
		t.Errorf("modes %+v, want %+v", after, before)
	}
	if _, is, err := MakeRaw(strings.NewReader("")); is || err != nil {
		t.Errorf("a reader: terminal %v, error %v", is, err)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, is, err := MakeRaw(null); is || err != nil {
		t.Errorf("%s: terminal %v, error %v", os.DevNull, is, err)
	}
}
