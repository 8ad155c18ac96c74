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

// firstFD is the first descriptor that a manager passes (sd_listen_fds(3)).
const firstFD = 3

// Manager is the service manager that has started this process and wants to be
// notified of its state. The zero value is no manager. Its methods may be called
// from any goroutine.
type Manager struct {
	addr     *net.UnixAddr // nil: no manager
	watchdog time.Duration
}

// FromEnv returns the manager that an environment names (sd_notify(3), sd_watchdog_enabled(3)).
func FromEnv(getenv func(string) string) (*Manager, error) {
	m := &Manager{}
	path := getenv("NOTIFY_SOCKET")
	switch {
	case path == "":
		return m, nil
	case path[0] != '/' && path[0] != '@':
		return nil, fmt.Errorf("NOTIFY_SOCKET %q: neither a path nor an abstract name", path)
	}
	m.addr = &net.UnixAddr{Name: path, Net: "unixgram"}
	if usec := getenv("WATCHDOG_USEC"); usec != "" && isOurs(getenv("WATCHDOG_PID")) {
		n, err := strconv.ParseInt(usec, 10, 64)
		if err != nil || n <= 0 || n > int64(24*time.Hour/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC %q: not a number of microseconds up to a day", usec)
		}
		m.watchdog = time.Duration(n) * time.Microsecond
	}
	return m, nil
}

// isOurs reports whether a process number in the environment is ours, or is not there.
func isOurs(pid string) bool { return pid == "" || pid == strconv.Itoa(os.Getpid()) }

// Present reports whether a manager wants to be notified.
func (m *Manager) Present() bool { return m.addr != nil }

// Path returns where the manager listens: a path, an abstract name that begins
// with @, or "" without a manager.
func (m *Manager) Path() string {
	if m.addr == nil {
		return ""
	}
	return m.addr.Name
}

// Watchdog returns after how long without a message the manager considers us
// dead; 0: never.
func (m *Manager) Watchdog() time.Duration { return m.watchdog }

// Assignments of Tell.
const (
	Ready    = "READY=1"
	Stopping = "STOPPING=1"
	Alive    = "WATCHDOG=1"
)

// Status is an assignment of Tell: a line for people.
func Status(line string) string { return "STATUS=" + strings.ReplaceAll(line, "\n", " ") }

// Reloading returns an assignment for Tell, with the time that it requires.
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

// Listens reports whether the manager passes us a socket (sd_listen_fds(3)).
func Listens(getenv func(string) string) bool {
	return getenv("LISTEN_FDS") != "" && isOurs(getenv("LISTEN_PID"))
}

// Listener returns the one listening unix socket that the manager has passed, or
// nil without one (sd_listen_fds(3)).
func Listener(getenv func(string) string) (*net.UnixListener, error) {
	n := getenv("LISTEN_FDS")
	if !Listens(getenv) {
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
