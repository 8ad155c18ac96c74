package http

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// dial connects and sends text as it is.
func (h *harness) dial(text string) net.Conn {
	h.Helper()
	c, err := net.Dial("unix", h.path)
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { c.Close() })
	if _, err := io.WriteString(c, text); err != nil {
		h.Fatal(err)
	}
	return c
}

// answer reads an answer's status and body.
func (h *harness) answer(c net.Conn) (int, string) {
	h.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// waitFor waits for something that other goroutines bring about.
func (h *harness) waitFor(what string, is func() bool) {
	h.Helper()
	for !is() {
		select {
		case <-h.ctx.Done():
			h.Fatalf("%s: not in time", what)
		case <-time.After(time.Millisecond):
		}
	}
}

func isCode(err error, code api.Code) bool {
	var wire *api.Error
	return errors.As(err, &wire) && wire.Code == code
}

// TestWaitingConnectionsGo: connections that wait for their client, in a header, between
// requests or in a body, deny nobody; those that are served do.
func TestWaitingConnectionsGo(t *testing.T) {
	const limit = 4
	h := serveFake(t, func(o *options) { o.maxConns, o.bodyTime = limit, time.Hour })
	for range limit {
		h.dial("")
		h.dial("GET /v1/guest HTTP/1.1\r\n")
		h.dial("POST /v1/probes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
		if _, body := h.answer(h.dial("GET /v1/guest HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")); !strings.Contains(body, `"state"`) {
			t.Errorf("%s", body)
		}
	}
	h.c.Close()
	var streams []io.Closer
	for range limit {
		s := h.stream(h.ctx, api.StreamEvents{})
		next[api.Start](h, s, api.RecordStart)
		streams = append(streams, s)
	}
	for range 3 * spare {
		if _, err := h.c.Guest(h.ctx); err != nil && !isCode(err, api.CodeTooMany) {
			t.Fatalf("with %d streams: %v", limit, err)
		}
	}
	if _, err := h.c.Guest(h.ctx); !isCode(err, api.CodeTooMany) {
		t.Errorf("with %d streams: %v", limit, err)
	}
	streams[0].Close()
	h.waitFor("room again", func() bool { _, err := h.c.Guest(h.ctx); return err == nil })
}

// TestBodies: what the bodies of requests take together is bounded, and given back.
func TestBodies(t *testing.T) {
	h := serveFake(t, func(o *options) { o.maxBodies, o.bodyTime = maxFileBody, time.Hour })
	const most = maxFileBody - 1<<20
	upload := func(n int) net.Conn {
		return h.dial(fmt.Sprintf("POST /v1/programs HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", maxFileBody) + strings.Repeat(" ", n))
	}
	first := upload(most)
	h.waitFor("the first upload", func() bool { return h.s.conns.bodies.Load() == most })
	second := upload(1<<20 + 1)
	if status, body := h.answer(second); status != http.StatusTooManyRequests || !strings.Contains(body, "--max-bodies") {
		t.Errorf("the second upload: %d %s", status, body)
	}
	first.Close()
	second.Close()
	h.waitFor("room again", func() bool { return h.s.conns.bodies.Load() == 0 })
	h.attach("p:a vfs_read")
}

func TestBodyThatDoesNotCome(t *testing.T) {
	h := serveFake(t, func(o *options) { o.bodyTime = 10 * time.Millisecond })
	status, body := h.answer(h.dial("POST /v1/probes HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"))
	if status != http.StatusRequestTimeout || !strings.Contains(body, "the body has not come within 10ms") {
		t.Errorf("%d %s", status, body)
	}
	h.attach("p:a vfs_read")
}

// shortenStall gives clients 50 ms from now on to read some of an answer. What came before may have needed longer on a slow
// machine.
func (h *harness) shortenStall() {
	short := *h.s.limits.Load()
	short.stall = 50 * time.Millisecond
	h.s.limits.Store(&short)
}

// TestStreamThatIsNotRead: a stream whose client does not read is ended, and says why and
// what was lost when it is read after all.
func TestStreamThatIsNotRead(t *testing.T) {
	h := serveFake(t, nil)
	h.attach("p:a schedule")
	h.shortenStall()
	c := h.dial("GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
	h.waitFor("the subscription", func() bool { return h.listeners() == 1 })
	hits := uint64(0)
	h.waitFor("its end", func() bool {
		for range 1000 {
			if h.listeners() == 1 {
				h.g.hit(t, 0, "schedule", 0, nil)
				hits++
			}
		}
		return strings.Contains(h.log.String(), "its client does not read")
	})
	end, read := h.readLate(c, api.RecordHit)
	if end.Reason != api.EndSlow || end.Delivered != read || end.Delivered+end.Lost > hits || end.Lost == 0 {
		t.Errorf("end %+v; read %d of %d hits", end, read, hits)
	}
}

// readLate reads a stream that is over: its end, and how many records of type of it has.
func (h *harness) readLate(c net.Conn, of api.RecordType) (end api.End, read uint64) {
	h.Helper()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		h.Fatal(err)
	}
	defer resp.Body.Close()
	var last api.Record
	for dec := json.NewDecoder(resp.Body); ; {
		var r api.Record
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			h.Fatalf("behind a record %s: %v", last.Type, err)
		}
		if last = r; r.Type == of {
			read++
		}
	}
	if last.Type != api.RecordEnd {
		h.Fatalf("last record %s %s", last.Type, last.Data)
	}
	return decode[api.End](h, last), read
}

// TestStopUnread: a client that is behind when the daemon stops, and reads no more until
// the daemon has ended, finds the end, and what it did not get counted as lost.
func TestStopUnread(t *testing.T) {
	const records = 20_000
	line := func(h *harness) { h.g.print(strings.Repeat("x", 100)) }
	for _, tc := range []struct {
		name, path string
		of         api.RecordType
		before     int // of the records: they are there when the stream begins
		one        func(*harness)
	}{
		{"events", "events", api.RecordHit, 0, func(h *harness) { h.g.hit(h.T, 0, "schedule", 0, nil) }},
		{"console", "guest/console?follow=true", api.RecordConsole, 0, line},
		{"console's history", "guest/console?follow=true", api.RecordConsole, records, line},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := serveFake(t, func(o *options) { o.writeTime = 50 * time.Millisecond })
			h.attach("p:a schedule")
			for range tc.before {
				tc.one(h)
			}
			c := h.dial("GET /v1/" + tc.path + " HTTP/1.1\r\nHost: x\r\n\r\n")
			h.waitFor("the stream", func() bool {
				h.s.streams.mu.Lock()
				defer h.s.streams.mu.Unlock()
				return len(h.s.streams.open) == 1
			})
			for range records - tc.before {
				tc.one(h)
			}
			h.stop()
			end, read := h.readLate(c, tc.of)
			if end.Reason != api.EndShutdown || end.Delivered != read || end.Delivered+end.Lost != records || end.Lost == 0 {
				t.Errorf("end %+v; read %d of %d", end, read, records)
			}
		})
	}
}

// TestStopManyUnread: 600 clients of whom none reads, as many of streams as there may be,
// hold up neither each other nor the daemon's end.
func TestStopManyUnread(t *testing.T) {
	const clients = 600
	h := serveFake(t, func(o *options) { o.maxConns, o.writeTime, o.stallTime = clients+1, 50*time.Millisecond, time.Hour })
	h.attach("p:a schedule")
	for i := range clients {
		path := "events"
		if i >= maxStreams {
			path = "symbols"
		}
		h.dial("GET /v1/" + path + " HTTP/1.1\r\nHost: x\r\n\r\n")
	}
	h.waitFor("the streams", func() bool {
		h.s.streams.mu.Lock()
		defer h.s.streams.mu.Unlock()
		return len(h.s.streams.open) == maxStreams
	})
	for range 3000 { // more than a socket holds
		h.g.hit(t, 0, "schedule", 0, nil)
	}
	start := time.Now()
	h.stop()
	t.Logf("stopped in %v", time.Since(start))
}

// TestTraceOfMany: among 20,000 probes that are attached a stream of all has each hit.
func TestTraceOfMany(t *testing.T) {
	h := serveFake(t, nil)
	const probes, at = 20_000, 10
	for i := range at {
		var defs []string
		for j := range probes / at {
			defs = append(defs, fmt.Sprintf("p:n%d_%d schedule", i, j))
		}
		h.attach(defs...)
	}
	h.attach("p:hit vfs_read")
	start := time.Now()
	s := h.stream(h.ctx, api.StreamEvents{})
	if got := len(next[api.Start](h, s, api.RecordStart).Probes); got != probes+1 {
		t.Errorf("a stream of %d probes", got)
	}
	for range 3 {
		h.g.hit(t, 0, "vfs_read", 0, nil)
		if hit := next[api.Hit](h, s, api.RecordHit); hit.Probe != "kprobes/hit" {
			t.Errorf("hit of %s", hit.Probe)
		}
	}
	t.Logf("the stream's first hits in %v", time.Since(start))
}

// TestAnswerThatIsNotRead: the room of an answer that nobody reads is given back.
func TestAnswerThatIsNotRead(t *testing.T) {
	h := serveFake(t, nil)
	var defs []string
	for i := range 2000 {
		defs = append(defs, fmt.Sprintf("p:e%d vfs_read", i))
	}
	h.attach(defs...)
	h.c.Close()
	h.shortenStall()
	h.dial("GET /v1/probes HTTP/1.1\r\nHost: x\r\n\r\n")
	open := func() int {
		h.s.conns.mu.Lock()
		defer h.s.conns.mu.Unlock()
		return len(h.s.conns.open)
	}
	h.waitFor("the connection's end", func() bool { return open() == 0 })
}
