package service

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func env(vars ...string) func(string) string {
	return func(name string) string {
		for _, v := range vars {
			if value, ok := strings.CutPrefix(v, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

func TestOf(t *testing.T) {
	pid := strconv.Itoa(os.Getpid())
	for _, c := range []struct {
		env      []string
		there    bool
		watchdog time.Duration
		err      string
	}{
		{nil, false, 0, ""},
		{[]string{"NOTIFY_SOCKET=/x"}, true, 0, ""},
		{[]string{"NOTIFY_SOCKET=@x", "WATCHDOG_USEC=2000000"}, true, 2 * time.Second, ""},
		{[]string{"NOTIFY_SOCKET=/x", "WATCHDOG_USEC=2000000", "WATCHDOG_PID=" + pid}, true, 2 * time.Second, ""},
		{[]string{"NOTIFY_SOCKET=/x", "WATCHDOG_USEC=2000000", "WATCHDOG_PID=1"}, true, 0, ""},
		{[]string{"WATCHDOG_USEC=2000000"}, false, 0, ""},
		{[]string{"NOTIFY_SOCKET=x"}, false, 0, `NOTIFY_SOCKET "x": neither a path nor an abstract name`},
		{[]string{"NOTIFY_SOCKET=/x", "WATCHDOG_USEC=-1"}, false, 0, `WATCHDOG_USEC "-1": not a number of microseconds up to a day`},
	} {
		m, err := FromEnv(env(c.env...))
		if err != nil || c.err != "" {
			if err == nil || err.Error() != c.err {
				t.Errorf("%v: %v, want %s", c.env, err, c.err)
			}
			continue
		}
		if m.Present() != c.there || m.Watchdog() != c.watchdog {
			t.Errorf("%v: %v, %v", c.env, m.Present(), m.Watchdog())
		}
	}
}

func TestTell(t *testing.T) {
	for _, name := range []string{filepath.Join(t.TempDir(), "notify"), "@guestprobe-test-" + strconv.Itoa(os.Getpid())} {
		c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		m, err := FromEnv(env("NOTIFY_SOCKET=" + name))
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Tell(Ready, Status("two\nlines")); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		n, err := c.Read(b)
		if got := string(b[:n]); err != nil || got != "READY=1\nSTATUS=two lines" {
			t.Errorf("%q, %v", got, err)
		}
	}
	m := &Manager{}
	if err := m.Tell(Ready); err != nil {
		t.Error(err)
	}
}

func TestListenerOfOthers(t *testing.T) {
	for _, vars := range [][]string{nil, {"LISTEN_FDS=1", "LISTEN_PID=1"}} {
		if l, err := Listener(env(vars...)); l != nil || err != nil {
			t.Errorf("%v: %v, %v", vars, l, err)
		}
	}
	if _, err := Listener(env("LISTEN_FDS=2")); err == nil || err.Error() != `LISTEN_FDS "2": want one socket` {
		t.Error(err)
	}
}
