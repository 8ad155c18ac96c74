package service

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// firstFD is the first descriptor that a manager gives (sd_listen_fds(3)).
const firstFD = 3

// Manager is who has started this process and wants to know how it is. The zero value is nobody. Its methods may be called
// from any goroutine.
type Manager struct {
	addr     *net.UnixAddr // nil: nobody listens
	watchdog time.Duration
}

// Of returns the manager that an environment names (sd_notify(3), sd_watchdog_enabled(3)).
func Of(getenv func(string) string) (*Manager, error) {
	m := &Manager{}
	path := getenv("NOTIFY_SOCKET")
	switch {
	case path == "":
		return m, nil
	case path[0] != '/' && path[0] != '@':
		return nil, fmt.Errorf("NOTIFY_SOCKET %q: neither a path nor an abstract name", path)
	}
	m.addr = &net.UnixAddr{Name: path, Net: "unixgram"}
	if usec := getenv("WATCHDOG_USEC"); usec != "" && forUs(getenv("WATCHDOG_PID")) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC %q: not a number of microseconds up to a day", usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	return m, nil
}

// forUs reports whether a process number in the environment is ours, or is not there.
func forUs(pid string) bool { return pid == "" || pid == strconv.Itoa(os.Getpid()) }

// There reports whether somebody wants to be told.
func (m *Manager) There() bool { return m.addr != nil }

// Path is where the manager listens: a path, an abstract name that begins with @, or "" where there is none.
func (m *Manager) Path() string {
	if m.addr == nil {
		return ""
	}
	return m.addr.Name
}

// Watchdog is after what time without a word the manager takes us for dead; 0: never.
func (m *Manager) Watchdog() time.Duration { return m.watchdog }

// Assignments of Tell.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1"
)

// Status is an assignment of Tell: a line for people.
func Status(line string) string { return "STATUS=" + strings.ReplaceAll(line, "\n", " ") }

// Reloading is an assignment of Tell, with the time that is to go with it.
func Reloading() string {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // it is always there
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// Tell sends assignments in one datagram. It does not wait for a manager that does not read.
func (m *Manager) Tell(assignments ...string) error {
	if m.addr == nil {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, m.addr)
	if err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	defer c.Close()
	_ = c.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := c.Write([]byte(strings.Join(assignments, "\n"))); err != nil {
		return fmt.Errorf("notify: %w", err)
	}
	return nil
}

// Listener returns the one listening unix socket that the manager has given, or nil where it has given none (sd_listen_fds(3)).
func Listener(getenv func(string) string) (*net.UnixListener, error) {
	n := getenv("LISTEN_FDS")
	if n == "" || !forUs(getenv("LISTEN_PID")) {
		return nil, nil
	}
	if n != "1" {
		return nil, fmt.Errorf("LISTEN_FDS %q: want one socket", n)
	}
	f := os.NewFile(firstFD, "given")
	defer f.Close() // the listener has a descriptor of its own
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("the socket of the service manager: %w", err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok || !strings.HasPrefix(ul.Addr().String(), "/") {
		return nil, errors.Join(fmt.Errorf("the socket of the service manager: %v is no unix socket with a path", l.Addr()), l.Close())
	}
	ul.SetUnlinkOnClose(false)
	return ul, nil
}
