package remote

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// ErrUnreachable is returned when no daemon answers on the socket, or the daemon went
// away before its answer was complete. The error also wraps the cause: syscall.ENOENT,
// ECONNREFUSED, EACCES or ENAMETOOLONG before a connection, io.ErrUnexpectedEOF and
// others afterwards.
var ErrUnreachable = errors.New("no daemon answers")

// ErrProtocol is returned for an answer that does not follow the protocol, because
// another program listens on the socket or the daemon has another version, and for an
// answer that is larger than the client's Bounds.
var ErrProtocol = errors.New("unexpected answer")

// ErrOldDaemon is returned for an answer of a daemon that is too old for this client:
// its API level is below api.OldestDaemon, or it reports none.
var ErrOldDaemon = errors.New("the daemon is too old")

// maxAnswer bounds an answer that is not a stream; a list of a million symbols fits.
const maxAnswer = 512 << 20

// Client talks to one daemon. Its methods may be called from several goroutines at the
// same time, except SetBounds and Close.
type Client struct {
	path string
	http *http.Client
	// base is the connection pool, kept for Close.
	base   *http.Transport
	closed func()
	bounds Bounds
}

// Bounds are limits for a daemon that is not trusted. The zero value has the limits
// for a daemon on this machine: 512 MiB for an answer, 256 MiB for a record, and no time
// limit. An answer that exceeds a limit in bytes is ErrProtocol.
type Bounds struct {
	Answer int64         // bytes of an answer that is not a stream; 0: 512 MiB
	Line   int           // bytes of a record of a stream; 0: 256 MiB
	Time   time.Duration // time limit for an answer that is not a stream; 0: only the context's
	All    *Room         // for the answers and long records of several clients together; nil: no limit
}

// Room is a budget of memory that several clients share, each by its Bounds. Its
// clients may be used at the same time.
type Room struct{ left atomic.Int64 }

// NewRoom returns a budget of n bytes. Answers that are not streams use it up for good,
// so make one for each group of requests; streams return their part.
func NewRoom(n int64) *Room {
	r := &Room{}
	r.left.Store(n)
	return r
}

// take takes bytes, and reports whether there was room for them.
func (r *Room) take(n int64) bool { return r == nil || r.left.Add(-n) >= 0 }

// give returns n bytes to the room.
func (r *Room) give(n int64) {
	if r != nil {
		r.left.Add(n)
	}
}

// errNoRoom is the error for a daemon that sends more than there is room for.
var errNoRoom = errors.New("the answers of all daemons are larger than there is room for")

// SetBounds sets the client's bounds and returns the client. It must not be called after
// the first request.
func (c *Client) SetBounds(b Bounds) *Client {
	c.bounds = b
	return c
}

// errSlowAnswer ends the wait for an answer.
var errSlowAnswer = errors.New("the daemon has not answered in time")

// New returns a client of the daemon whose unix socket is at path, a file path without
// unix://. It does not connect: errors, as for a path longer than 107 bytes, come from
// the first request.
func New(path string) *Client {
	return NewWithDial(path, func(ctx context.Context) (net.Conn, error) {
		if _, err := api.ParseSocket(path); err != nil {
			return nil, err
		}
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}, func() {})
}

// NewWithDial returns a client of the daemon at the other end of dial's connections.
// name takes the place of the socket's path in messages and in Path. The client calls
// dial for each connection that it needs, from several goroutines. Close calls closed,
// which must not be nil.
func NewWithDial(name string, dial func(context.Context) (net.Conn, error), closed func()) *Client {
	base := &http.Transport{
		DialContext:        func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		DisableCompression: true,
	}
	return &Client{path: name, base: base, http: &http.Client{Transport: base}, closed: closed}
}

// Path returns the socket's path, or the name that was given to NewWithDial.
func (c *Client) Path() string { return c.path }

// Close drops idle connections. It does not end requests and streams: cancel their
// contexts, or close the streams. Call it once, after the last request.
func (c *Client) Close() {
	c.base.CloseIdleConnections()
	c.closed()
}

// do sends one request and returns the answer if its status is below 400, otherwise
// the error in its envelope.
func (c *Client) do(ctx context.Context, method, path string, query url.Values, in any) (*http.Response, error) {
	var body io.Reader
	kind := "application/json"
	if raw, ok := in.(io.Reader); ok {
		body, kind = raw, api.SnapshotType
	} else if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		body = bytes.NewReader(b)
	}
	// HTTP requires a host; it is not used.
	u := "http://guestprobed" + path
	if len(query) > 0 {
		u += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, u, body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	req.Header.Set("User-Agent", "guestprobe/"+api.Build().Version)
	req.Header.Set(api.LevelHeader, api.Current.String())
	if in != nil {
		req.Header.Set("Content-Type", kind)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.transportError(ctx, method, path, err)
	}
	if err := c.age(resp); err != nil {
		resp.Body.Close()
		return nil, err
	}
	if resp.StatusCode < 400 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, c.transportError(ctx, method, path, err)
	}
	var envelope api.ErrorBody
	if err := json.Unmarshal(b, &envelope); err != nil || envelope.Error.Code == "" {
		return nil, fmt.Errorf("%s %s on %s: %w: status %s without an error envelope", method, path, c.path, ErrProtocol, resp.Status)
	}
	return nil, &envelope.Error
}

// age rejects the answer of a daemon that is too old. A daemon that does not send the
// header is older than the header, unless the answer is an error: invalid HTTP
// requests are answered before a daemon's handler runs.
func (c *Client) age(resp *http.Response) error {
	said := resp.Header.Get(api.LevelHeader)
	if said == "" && resp.StatusCode >= 400 {
		return nil
	}
	l, err := api.ParseLevel(said)
	switch {
	case said == "":
		return fmt.Errorf("%w: what answers on %s does not say which level of the API it speaks, and this guestprobe needs %s: start guestprobed of version %s there, or use the guestprobe that came with it", ErrOldDaemon, c.path, api.OldestDaemon, api.Build().Version)
	case err != nil:
		return fmt.Errorf("%s: %w: %w", c.path, ErrProtocol, err)
	case l.Before(api.OldestDaemon):
		return fmt.Errorf("%w: the one on %s speaks level %s of the API, and this guestprobe needs %s: start guestprobed of version %s there, or use the guestprobe that came with it", ErrOldDaemon, c.path, l, api.OldestDaemon, api.Build().Version)
	}
	return nil
}

// transportError distinguishes a daemon that is not there from one that went away
// during the request, and from a caller that gave up.
func (c *Client) transportError(ctx context.Context, method, path string, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("%s %s: %w", method, path, context.Cause(ctx))
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return fmt.Errorf("%w on %s: %w", ErrUnreachable, c.path, op.Err)
	}
	var bad *api.SocketPathError
	if errors.As(err, &bad) {
		return fmt.Errorf("%w: %w", ErrUnreachable, bad)
	}
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w on %s: %s %s: %w", ErrUnreachable, c.path, method, path, err)
}

// failing keeps the error that ended reading from r, so that a copy can distinguish
// it from an error of its writer.
type failing struct {
	r   io.Reader
	err error
}

func (f *failing) Read(b []byte) (int, error) {
	n, err := f.r.Read(b)
	if err != nil && err != io.EOF {
		f.err = err
	}
	return n, err
}

// answer reads a body up to the bounds.
func (c *Client) answer(body io.Reader) ([]byte, error) {
	most := cmp.Or(c.bounds.Answer, maxAnswer)
	r := io.LimitReader(body, most+1)
	var b bytes.Buffer
	for { // not at once: claim only as much of the shared room as has arrived
		n, err := io.CopyN(&b, r, 64<<10)
		switch {
		case !c.bounds.All.take(n):
			return nil, fmt.Errorf("%w: %w", ErrProtocol, errNoRoom)
		case int64(b.Len()) > most:
			return nil, fmt.Errorf("%w: an answer of more than %d bytes", ErrProtocol, most)
		case errors.Is(err, io.EOF):
			return b.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
}

// call is do for answers that are one JSON value; out may be nil.
func (c *Client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	if t := c.bounds.Time; t > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, t, fmt.Errorf("%w: not within %v", errSlowAnswer, t))
		defer cancel()
	}
	resp, err := c.do(ctx, method, path, query, in)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := c.answer(resp.Body)
	switch {
	case errors.Is(err, ErrProtocol):
		return fmt.Errorf("%s %s on %s: %w", method, path, c.path, err)
	case err != nil:
		return c.transportError(ctx, method, path, err)
	}
	if out == nil {
		return nil
	}
	if s, ok := out.(*string); ok && !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
		*s = string(b)
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("%s %s on %s: %w: %w", method, path, c.path, ErrProtocol, err)
	}
	return nil
}
