package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// conns bounds the number of connections and the memory of request bodies. It is
// the server's listener. When there is no room for a new connection, it closes
// the one that has waited longest for its client, between requests or for the
// rest of one. The new connection is rejected only if all others are being
// served.
type conns struct {
	net.Listener
	limits *atomic.Pointer[limits] // the server's

	bodies atomic.Int64 // bytes in memory

	mu   sync.Mutex
	open map[*conn]bool
}

// spare is how many connections are accepted above the limit, only to tell their
// clients about it.
const spare = 32

// conn is one connection, of the socket or of the fleet.
type conn struct {
	net.Conn
	of      *conns
	refused bool      // it is above the limit
	waiting bool      // for its client; conns.mu guards this and the following fields
	since   time.Time // since when it waits, or does not
}

// Accept returns the next connection.
func (cs *conns) Accept() (net.Conn, error) {
	for {
		nc, err := cs.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &conn{Conn: nc, of: cs, waiting: true, since: time.Now()}
		if cs.admit(c) {
			return c, nil
		}
		nc.Close()
	}
}

// admit makes room for c, and reports whether it can be served.
func (cs *conns) admit(c *conn) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	most := cs.limits.Load().conns
	all := slices.Collect(maps.Keys(cs.open))
	if served := slices.DeleteFunc(slices.Clone(all), func(c *conn) bool { return c.refused }); len(served) >= most {
		idle := slices.DeleteFunc(served, func(c *conn) bool { return !c.waiting })
		if len(idle) > 0 {
			oldest := slices.MinFunc(idle, func(a, b *conn) int { return a.since.Compare(b.since) })
			delete(cs.open, oldest)
			oldest.Conn.Close()
		} else if c.refused = true; len(all) >= most+spare {
			return false
		}
	}
	cs.open[c] = true
	return true
}

// Close closes the connection.
func (c *conn) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// wait records whether the connection waits for its client.
func (c *conn) wait(waiting bool) {
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.waiting, c.since = waiting, time.Now()
}

type connKey struct{}

// withConn is the server's ConnContext. It stores the connection in its
// requests' context, and asks the kernel once for the client's identity.
func withConn(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := nc.(*conn); ok {
		ctx = context.WithValue(ctx, connKey{}, c)
		nc = c.Conn
	}
	return withPeer(ctx, nc)
}

// awaitRoom waits until the client has read enough that the connection has room
// for the pending write and for the end of a stream after it. It returns
// os.ErrDeadlineExceeded when the client does not read.
func (c *conn) awaitRoom() error {
	switch nc := c.Conn.(type) {
	case *fleet.Conn:
		return nc.AwaitRoom()
	case *net.UnixConn:
		raw, err := nc.SyscallConn()
		if err != nil {
			return err
		}
		return raw.Write(func(fd uintptr) bool {
			room, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF)
			taken, err2 := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
			return err != nil || err2 != nil || taken <= room/2
		})
	}
	return nil
}

// requestConn returns the connection of a request, or nil in a test without one.
func requestConn(r *http.Request) *conn {
	c, _ := r.Context().Value(connKey{}).(*conn)
	return c
}

// begin is called before a request is served, and its result end after that. An
// error rejects the request.
func begin(w http.ResponseWriter, r *http.Request) (end func(), err error) {
	c := requestConn(r)
	if c == nil {
		return func() {}, nil
	}
	cs := c.of
	if c.refused {
		w.Header().Set("Connection", "close")
		return func() {}, &api.Error{
			Code: api.CodeTooMany, Errno: "EMFILE", Message: fmt.Sprintf("%d connections are served already", cs.limits.Load().conns),
			Detail: "end some, or start guestprobed with a larger --max-connections",
		}
	}
	b := &body{ReadCloser: r.Body, c: c, rc: http.NewResponseController(w)}
	if r.ContentLength != 0 {
		r.Body = b
		// The server itself reads the part of a body that a handler leaves, too.
		_ = b.rc.SetReadDeadline(time.Now().Add(cs.limits.Load().bodyTime))
	}
	c.wait(false)
	return func() {
		cs.bodies.Add(-b.read)
		c.wait(true)
	}, nil
}

// body counts the bytes that are read from a request's body.
type body struct {
	io.ReadCloser
	c    *conn
	rc   *http.ResponseController
	read int64
}

// Read reads the bytes that arrive in time and fit into the limit.
func (b *body) Read(p []byte) (int, error) {
	cs := b.c.of
	b.c.wait(true)
	n, err := b.ReadCloser.Read(p)
	b.c.wait(false)
	b.read += int64(n)
	switch sum, lim := cs.bodies.Add(int64(n)), cs.limits.Load(); {
	case sum > lim.bodies && n > 0:
		_ = b.rc.SetReadDeadline(time.Now()) // the rest is not read
		return 0, &api.Error{
			Code: api.CodeTooMany, Errno: "ENOMEM", Message: fmt.Sprintf("the bodies of all requests have more than %s together", formatSize(uint64(lim.bodies))),
			Detail: "try again, or start guestprobed with a larger --max-bodies",
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return n, &api.Error{
			Code: api.CodeTooSlow, Errno: "ETIMEDOUT", Message: fmt.Sprintf("the body has not come within %v", lim.bodyTime),
			Detail: "guestprobed's --body-timeout sets the time",
		}
	case errors.Is(err, io.EOF):
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}
