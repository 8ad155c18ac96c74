package command

import (
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// MakeRaw puts a terminal into raw mode until restore is called: without echo, line editing or changes to
// the output (cfmakeraw of termios(3)). If in is not a terminal it does nothing.
func MakeRaw(in io.Reader) (restore func(), terminal bool, err error) {
	f, ok := in.(*os.File)
	if !ok {
		return func() {}, false, nil
	}
	fd := int(f.Fd())
	was, err := unix.IoctlGetTermios(fd, unix.TCGETS)
	if err != nil {
		return func() {}, false, nil
	}
	raw := *was
	raw.Iflag &^= unix.IGNBRK | unix.BRKINT | unix.PARMRK | unix.ISTRIP | unix.INLCR | unix.IGNCR | unix.ICRNL | unix.IXON
	raw.Oflag &^= unix.OPOST
	raw.Lflag &^= unix.ECHO | unix.ECHONL | unix.ICANON | unix.ISIG | unix.IEXTEN
	raw.Cflag = raw.Cflag&^(unix.CSIZE|unix.PARENB) | unix.CS8
	raw.Cc[unix.VMIN], raw.Cc[unix.VTIME] = 1, 0
	if err := unix.IoctlSetTermios(fd, unix.TCSETS, &raw); err != nil {
		return func() {}, false, fmt.Errorf("terminal: %w", err)
	}
	return func() { _ = unix.IoctlSetTermios(fd, unix.TCSETS, was) }, true, nil
}

// Width returns the number of columns of a terminal, or 80 if w is not a terminal.
func Width(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil && size.Col > 0 {
			return int(size.Col)
		}
	}
	return 80
}
