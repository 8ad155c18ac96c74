package http

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func TestAccess(t *testing.T) {
	groups := func(uid uint32) []string {
		if uid == 7 {
			return []string{"70", "500"}
		}
		return nil
	}
	for _, tc := range []struct {
		name string
		a    access
		p    peer
		ok   bool
	}{
		{"own user", access{self: 1000, gid: -1}, peer{UID: 1000}, true},
		{"root", access{self: 1000, gid: -1}, peer{UID: 0}, true},
		{"other", access{self: 1000, gid: -1}, peer{UID: 1001, GID: 1000}, false},
		{"allowed", access{self: 1000, gid: -1, uids: []uint32{5, 1001}}, peer{UID: 1001}, true},
		{"not allowed", access{self: 1000, gid: -1, uids: []uint32{5}}, peer{UID: 6}, false},
		{"primary group", access{self: 1000, gid: 500}, peer{UID: 6, GID: 500}, true},
		{"other group", access{self: 1000, gid: 500}, peer{UID: 7, GID: 50}, true},
		{"no member", access{self: 1000, gid: 500}, peer{UID: 8, GID: 50}, false},
		{"group without number", access{self: 1000, gid: -1}, peer{UID: 8, GID: 1<<32 - 1}, false},
		{"no credentials", access{self: 0, gid: -1}, peer{err: errors.New("x")}, false},
		{"root of root", access{self: 0, gid: -1}, peer{UID: 1}, false},
	} {
		tc.a.groups = groups
		if err := tc.a.check(tc.p); (err == nil) != tc.ok {
			t.Errorf("%s: %v, want allowed = %v", tc.name, err, tc.ok)
		}
	}
}

func TestPeerOf(t *testing.T) {
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	out, err := net.Dial("unix", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	want := peer{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if got := peerOf(in); got != want {
		t.Errorf("peer %+v, want %+v", got, want)
	}
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if p := peerOf(a); p.err == nil {
		t.Errorf("a pipe has credentials: %+v", p)
	}
}

// TestForbidden makes the daemon believe that it runs as somebody else: our
// own requests are then a stranger's, unless we are root.
func TestForbidden(t *testing.T) {
	h := serveFake(t, nil)
	h.s.access = access{self: 1 << 20, gid: -1, groups: func(uint32) []string { return nil }}
	_, err := h.c.Guest(h.ctx)
	if os.Getuid() == 0 {
		if err != nil {
			t.Errorf("root is refused: %v", err)
		}
		return
	}
	if !errors.Is(err, api.ErrForbidden) {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(h.log.String(), "status=403") {
		t.Errorf("not logged:\n%s", h.log)
	}
}

// TestWhoIsLogged wants user and process of each change in the log, and no
// line for reading.
func TestWhoIsLogged(t *testing.T) {
	h := serveFake(t, nil)
	if _, err := h.c.Guest(h.ctx); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(h.log.String(), "path=/v1/guest ") {
		t.Errorf("reading is logged:\n%s", h.log)
	}
	if _, err := h.c.Pause(h.ctx); err != nil {
		t.Fatal(err)
	}
	h.stop() // the line comes behind the answer
	for _, want := range []string{"method=POST", "path=/v1/guest/pause", "status=200", "uid=", "pid="} {
		if !strings.Contains(h.log.String(), want) {
			t.Errorf("no %q in the log:\n%s", want, h.log)
		}
	}
}
