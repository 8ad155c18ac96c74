package web

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// maxStrangers bounds the connections of clients that have not shown that they
// may use the page. The kernel does not know the user of a TCP connection, so
// all of them count as one peer.
const maxStrangers = 256

// Limited is a listener that bounds connections. A connection is a stranger's
// until Trust. There may be a bounded number of strangers at a time, and a new
// one replaces the oldest, so idle connections keep no client out. Trusted
// connections have a bound of their own; beyond it, the one that was trusted
// first is closed.
type Limited struct {
	net.Listener
	strangers, trusted int // at most

	mu    sync.Mutex
	known []*limitedConn // the oldest first
	other []*limitedConn // likewise
}

// Limit returns a listener that bounds the connections of l.
func Limit(l net.Listener, most int) *Limited {
	return &Limited{Listener: l, strangers: max(1, min(maxStrangers, most)), trusted: max(1, most)}
}

// limitedConn is a connection of a Limited.
type limitedConn struct {
	net.Conn
	of *Limited
}

// Accept implements net.Listener.
func (l *Limited) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &limitedConn{nc, l}
	l.mu.Lock()
	l.other = append(l.other, c)
	var gone *limitedConn
	if len(l.other) > l.strangers {
		gone = l.other[0]
		l.other = drop(l.other, gone)
	}
	l.mu.Unlock()
	if gone != nil {
		gone.Conn.Close()
	}
	return c, nil
}

// drop removes a connection.
func drop(cs []*limitedConn, c *limitedConn) []*limitedConn {
	for i, x := range cs {
		if x == c {
			return append(cs[:i:i], cs[i+1:]...)
		}
	}
	return cs
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	c.of.mu.Lock()
	c.of.other, c.of.known = drop(c.of.other, c), drop(c.of.known, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// trust moves the connection to the trusted ones, unless it is closed.
func (c *limitedConn) trust() {
	l := c.of
	l.mu.Lock()
	n := len(l.other)
	l.other = drop(l.other, c)
	var gone *limitedConn
	if len(l.other) < n {
		if l.known = append(l.known, c); len(l.known) > l.trusted {
			gone = l.known[0]
			l.known = drop(l.known, gone)
		}
	}
	l.mu.Unlock()
	if gone != nil {
		gone.Conn.Close()
	}
}

type limitKey struct{}

// withLimit is the ConnContext of servers on a Limited.
func withLimit(ctx context.Context, nc net.Conn) context.Context {
	if c, ok := nc.(*limitedConn); ok {
		return context.WithValue(ctx, limitKey{}, c)
	}
	return ctx
}

// trust records that a request comes from a browser that has shown a token.
func trust(r *http.Request) {
	if c, ok := r.Context().Value(limitKey{}).(*limitedConn); ok {
		c.trust()
	}
}
