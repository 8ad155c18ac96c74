package gdb

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestStream: what waits at a connection ends with what is to end it, and nothing else does.
func TestStream(t *testing.T) {
	pair := func() (link, net.Conn) {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		var conns [2]net.Conn
		for i, fd := range fds {
			f := os.NewFile(uintptr(fd), "socket")
			if conns[i], err = net.FileConn(f); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		s, release, err := newStream(conns[0])
		if err != nil {
			t.Fatal(err)
		}
		if _, ours := s.(*stream); !ours {
			t.Fatalf("%T", s)
		}
		t.Cleanup(func() { release(); release(); conns[1].Close() })
		return s, conns[1]
	}
	type result struct {
		n   int
		err error
	}
	read := func(s link) chan result {
		c := make(chan result, 1)
		go func() {
			n, err := s.Read(make([]byte, 4))
			c <- result{n, err}
		}()
		return c
	}
	is := func(what string, got result, n int, err error) {
		t.Helper()
		if got.n != n || !errors.Is(got.err, err) {
			t.Errorf("%s: %d, %v, want %d, %v", what, got.n, got.err, n, err)
		}
	}
	s, peer := pair()
	for range 3 {
		c := read(s)
		peer.Write([]byte("abcdef"))
		is("read", <-c, 4, nil)
		is("the rest", <-read(s), 2, nil)
		c = read(s)
		if err := s.SetReadDeadline(time.Unix(1, 0)); err != nil {
			t.Fatal(err)
		}
		is("with a deadline", <-c, 0, os.ErrDeadlineExceeded)
		peer.Write([]byte("xy"))
		is("with a deadline, and something to be read", <-read(s), 0, os.ErrDeadlineExceeded)
		if err := s.SetReadDeadline(time.Time{}); err != nil {
			t.Fatal(err)
		}
		is("without one again", <-read(s), 2, nil)
	}
	c := read(s)
	peer.Close()
	is("the peer is gone", <-c, 0, io.EOF)
	if _, err := s.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("write to nobody: %v", err)
	}

	s, peer = pair()
	done := make(chan result, 1)
	go func() { // more than the socket takes
		n, err := s.Write(make([]byte, 64<<20))
		done <- result{n, err}
	}()
	b := make([]byte, 1<<10)
	if _, err := io.ReadFull(peer, b); err != nil {
		t.Fatal(err)
	}
	c = read(s)
	for range 2 {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	is("read, closed", <-c, 0, io.EOF)
	if r := <-done; r.n == 64<<20 || !errors.Is(r.err, net.ErrClosed) {
		t.Errorf("write, closed: %d, %v", r.n, r.err)
	}
	ours, theirs := net.Pipe()
	defer theirs.Close()
	if s, _, err := newStream(ours); err != nil || s != link(ours) {
		t.Errorf("a pipe: %v, %v", s, err)
	}
}
