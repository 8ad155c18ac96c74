package web

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"
)

// Streams of the API use WebSockets: a browser has six HTTP/1.1 connections to
// one address for all of its windows together, and a stream uses one for as long
// as it runs.
//
// The first message of the page is an ask; the first of ours has the status, and
// all others parts of the answer. The page answers each with how many bytes it
// has processed, because a browser buffers messages without bound, even if the
// page does not process them.

// Limits of sockets.
const (
	askTime  = 10 * time.Second
	maxAhead = 512 << 10 // bytes that the page has not processed
	maxWrite = 64 << 10  // bytes of a message
	leftTime = time.Second
)

// ask is the first message.
type ask struct {
	Key    string          `json:"key"`
	Method string          `json:"method"`
	Path   string          `json:"path"` // with its query
	Body   json.RawMessage `json:"body"`
}

func (s *Site) serveSocket(w http.ResponseWriter, r *http.Request) {
	se := s.sessions.find(r)
	if se == nil || r.Header.Get("Origin") == "" {
		refuse(w, http.StatusUnauthorized, "the page has no valid token", "'guestprobe web' prints an address with a new one")
		return
	}
	trust(r)
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.open.Add(1)
		defer s.open.Done()
	}
	s.mu.Unlock()
	if closed {
		refuse(w, http.StatusServiceUnavailable, "the daemon is stopping", "")
		return
	}
	c, err := websocket.Accept(w, r, &websocket.AcceptOptions{CompressionMode: websocket.CompressionDisabled})
	if err != nil {
		return // it has answered
	}
	defer c.CloseNow()
	ctx, cancel := context.WithCancel(se.as(s.life))
	defer cancel()
	c.SetReadLimit(maxBody)
	var a ask
	first, end := context.WithTimeout(ctx, askTime)
	_, b, err := c.Read(first)
	end()
	if err != nil || json.Unmarshal(b, &a) != nil || !se.has(a.Key) {
		_ = c.Close(websocket.StatusPolicyViolation, "no valid token")
		return
	}
	if !strings.HasPrefix(a.Path, "/v1/") {
		_ = c.Close(websocket.StatusPolicyViolation, "no path of the API")
		return
	}
	in, err := http.NewRequestWithContext(ctx, a.Method, a.Path, bytes.NewReader(a.Body))
	if err != nil {
		_ = c.Close(websocket.StatusPolicyViolation, "no request")
		return
	}
	in.RequestURI, in.RemoteAddr, in.Host = a.Path, r.RemoteAddr, r.Host
	out := &answer{c: c, ctx: ctx, header: http.Header{}, stall: s.Stall, changed: make(chan struct{}, 1), deadline: time.Now().Add(s.Stall)}
	go func() {
		defer cancel()
		out.readDealt()
	}()
	s.API.ServeHTTP(out, in)
	out.WriteHeader(http.StatusOK)
	left, endLeft := context.WithTimeout(ctx, leftTime)
	defer endLeft()
	_ = c.Write(left, websocket.MessageText, []byte("{}")) // reports that it is complete
	_ = c.Close(websocket.StatusNormalClosure, "")
}

// answer is the http.ResponseWriter of a socket. The deadline may be set from any goroutine.
type answer struct {
	c      *websocket.Conn
	ctx    context.Context
	header http.Header
	status int
	stall  time.Duration

	mu       sync.Mutex
	ahead    int // bytes that were sent and not processed
	deadline time.Time
	stalled  bool // a write timed out: the rest, which is the end, is sent without waiting
	changed  chan struct{}
}

// Header implements http.ResponseWriter.
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *answer) WriteHeader(status int) {
	if a.status != 0 {
		return
	}
	a.status = status
	ctx, cancel := context.WithTimeout(a.ctx, a.stall)
	defer cancel()
	// An error means that the client is gone.
	_ = a.c.Write(ctx, websocket.MessageText, []byte(`{"status":`+strconv.Itoa(status)+`}`))
}

// Write waits until the page has processed most of the data that was sent
// before. If that takes until the deadline, it sends nothing of p and returns
// os.ErrDeadlineExceeded.
func (a *answer) Write(p []byte) (n int, err error) {
	a.WriteHeader(http.StatusOK)
	until, err := a.room(len(p))
	if err != nil {
		return 0, err
	}
	for n < len(p) {
		part := p[n:min(len(p), n+maxWrite)]
		ctx, cancel := context.WithDeadline(a.ctx, until)
		err := a.c.Write(ctx, websocket.MessageBinary, part)
		cancel()
		if err != nil {
			return n, err
		}
		n += len(part)
	}
	return n, nil
}

// room waits until there is room, and returns the deadline of the write.
func (a *answer) room(n int) (time.Time, error) {
	for {
		a.mu.Lock()
		until := a.deadline
		if until.IsZero() {
			until = time.Now().Add(a.stall)
		}
		if a.ahead < maxAhead || a.stalled {
			a.ahead += n
			a.mu.Unlock()
			return until, nil
		}
		wait := time.Until(until)
		if wait <= 0 {
			a.stalled = true
		}
		a.mu.Unlock()
		if wait <= 0 {
			return until, os.ErrDeadlineExceeded
		}
		clock := time.NewTimer(wait)
		select {
		case <-a.changed:
		case <-clock.C:
		case <-a.ctx.Done():
			clock.Stop()
			return until, a.ctx.Err()
		}
		clock.Stop()
	}
}

// readDealt reads how many bytes the page has processed, until the page is gone.
func (a *answer) readDealt() {
	for {
		kind, r, err := a.c.Reader(a.ctx)
		if err != nil {
			return
		}
		b, err := io.ReadAll(io.LimitReader(r, 32))
		n, err2 := strconv.Atoi(string(b))
		if err != nil || err2 != nil || kind != websocket.MessageText || n < 0 {
			return
		}
		a.mu.Lock()
		a.ahead = max(0, a.ahead-n)
		a.mu.Unlock()
		a.change()
	}
}

func (a *answer) change() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// SetWriteDeadline is called by http.ResponseController.
func (a *answer) SetWriteDeadline(t time.Time) error {
	a.mu.Lock()
	a.deadline = t
	a.mu.Unlock()
	a.change()
	return nil
}

// SetReadDeadline is called by http.ResponseController. It does nothing, because
// the body is already there.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// FlushError is called by http.ResponseController. It does nothing, because
// nothing is buffered.
func (a *answer) FlushError() error { return nil }
