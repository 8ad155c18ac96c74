package http

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/guestprobe/guestprobe/internal/server/saved"
	"github.com/guestprobe/guestprobe/internal/testing/patience"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func TestMain(m *testing.M) {
	if how := os.Getenv(triesEnv); how != "" {
		os.Exit(triesMain(how))
	}
	if os.Getenv(servesEnv) != "" {
		os.Exit(Main(nil))
	}
	if dir := os.Getenv(natsEnv); dir != "" {
		os.Exit(natsMain(dir))
	}
	goleak.VerifyTestMain(m)
}

// harness is a daemon on a socket, over a fake guest.
type harness struct {
	*testing.T
	g      *fakeGuest
	s      *server
	c      *remote.Client
	log    *syncBuffer
	path   string
	ctx    context.Context
	kept   *saved.Store       // of --state, or nil
	cancel context.CancelFunc // is SIGTERM
	done   chan error         // the end of server.run
}

// syncBuffer may be written and read from several goroutines.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// serveFake starts a daemon with a running fake guest.
func serveFake(t *testing.T, change func(*options)) *harness {
	t.Helper()
	o := defaultOptions()
	o.vcpus = 2
	if change != nil {
		change(&o)
	}
	return serveGuest(t, newFakeGuest(t, o.vcpus), o)
}

// serveGuest starts a daemon with a guest that is not running yet.
func serveGuest(t *testing.T, g *fakeGuest, o options) *harness {
	t.Helper()
	h := newHarness(t)
	h.g = g
	return h.serve(g, o)
}

// newHarness returns a harness whose daemon does not run yet.
func newHarness(t *testing.T) *harness {
	return &harness{T: t, log: &syncBuffer{}, path: filepath.Join(t.TempDir(), "s"), done: make(chan error, 1)}
}

// logger returns the daemon's log, which goes to h.log.
func (h *harness) logger() *slog.Logger { return slog.New(slog.NewTextHandler(h.log, nil)) }

// serve starts the daemon with a guest that is not running yet, and lets that run, unless it
// is to be paused. The
// daemon ends with the test, before what the guest's maker has cleaned up behind it.
func (h *harness) serve(g Guest, o options) *harness {
	h.Helper()
	var life context.Context
	life, h.cancel = context.WithCancel(context.Background())
	h.ctx = patience.Context(h.T)
	h.s = newServer(h.logger(), o, g, func() uint64 { return 0 })
	h.s.useState(h.kept)
	sock, err := listen(h.ctx, h.path, -1, nil)
	if err != nil {
		h.Fatal(err)
	}
	if !o.paused {
		if err := g.Resume(); err != nil {
			h.Fatal(err)
		}
	}
	ready := make(chan struct{})
	go func() { h.done <- h.s.run(life, sock, func() { close(ready) }) }()
	<-ready
	h.c = remote.New(h.path)
	h.Cleanup(func() {
		h.c.Close()
		h.stop()
		sock.Close()
	})
	return h
}

// stop is SIGTERM; it returns when the daemon has ended. It may be repeated.
func (h *harness) stop() {
	h.Helper()
	h.cancel()
	if err := <-h.done; err != nil {
		h.Errorf("daemon ended with %v", err)
	}
	h.done <- nil
}

// rawRequest sends a request as it is and returns the answer's status and body.
func (h *harness) rawRequest(method, path, body string) (int, string) {
	h.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", h.path)
	}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(h.ctx, method, "http://x"+path, strings.NewReader(body))
	if err != nil {
		h.Fatal(err)
	}
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		h.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		h.Fatalf("%s %s: %v", method, path, err)
	}
	checkDescribed(h, req, resp.StatusCode, string(b))
	return resp.StatusCode, string(b)
}

// attach attaches definitions that must be all right.
func (h *harness) attach(defs ...string) []api.Probe {
	h.Helper()
	var specs []api.ProbeSpec
	for _, d := range defs {
		specs = append(specs, api.ProbeSpec{Def: d})
	}
	ps, err := h.c.Attach(h.ctx, specs...)
	if err != nil {
		h.Fatal(err)
	}
	return ps
}

// next returns the next record of type want, skipping heartbeats.
func next[T any](h *harness, s *remote.Stream, want api.RecordType) T {
	h.Helper()
	for {
		r, err := s.Next()
		if err != nil {
			h.Fatalf("want a record %q: %v", want, err)
		}
		if r.Type == api.RecordHeartbeat && want != r.Type {
			continue
		}
		if r.Type != want {
			h.Fatalf("record %s %s, want %q", r.Type, r.Data, want)
		}
		return decode[T](h, r)
	}
}

// decode reads the data of a record.
func decode[T any](h *harness, r api.Record) (v T) {
	h.Helper()
	if err := json.Unmarshal(r.Data, &v); err != nil {
		h.Fatalf("record %s: %v", r.Type, err)
	}
	return v
}

// checkIdentical checks that the guest's text is its image's.
func (h *harness) checkIdentical(want bool) {
	h.Helper()
	t, err := h.c.Text(h.ctx)
	if err != nil {
		h.Fatal(err)
	}
	if t.Identical != want {
		h.Errorf("text identical = %v, want %v; ranges %v", t.Identical, want, t.Ranges)
	}
}

// listeners returns how many streams want all events.
func (h *harness) listeners() int64 {
	all, _ := h.s.probes.Listeners()
	return all
}

// holdChanges keeps all changes of probes waiting until release is called.
func (h *harness) holdChanges() (release func()) {
	held, let := make(chan struct{}), make(chan struct{})
	var done sync.WaitGroup
	done.Go(func() {
		if err := h.s.probes.RunExclusive(func() error { close(held); <-let; return nil }); err != nil {
			h.Error(err)
		}
	})
	<-held
	return func() { close(let); done.Wait() }
}
