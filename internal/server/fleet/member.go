package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/micro"
	"github.com/nats-io/nuid"
)

// prefix is the beginning of all our subjects, and the name of the service.
const prefix = "guestprobe"

// connectEnd is the end of the subject at which a daemon accepts connections.
const connectEnd = "connect"

// serviceVersion is the version of a daemon's messages to the fleet. Another
// first number is an incompatible protocol.
const serviceVersion = "1.0.0"

// maxWaiting bounds how many connections wait to be accepted.
const maxWaiting = 64

// Member is a daemon in the fleet. It is a listener for connections over the
// fleet.
type Member struct {
	n          *Network
	svc        micro.Service
	id         string
	labels     Labels
	publishing sync.WaitGroup

	mu         sync.Mutex
	publishers map[*Publisher]struct{}
	closed     bool
	queue      chan *Conn
	end        chan struct{}
}

// Join registers a daemon with its labels, name among them, as a service that others discover.
func (n *Network) Join(l Labels) (*Member, error) {
	m := &Member{n: n, publishers: map[*Publisher]struct{}{}, queue: make(chan *Conn, maxWaiting), end: make(chan struct{})}
	meta := maps.Clone(l)
	for _, name := range Own {
		if meta[name] != "" {
			meta[name] = cleanLabel(meta[name])
		}
	}
	m.labels = meta
	var err error
	if m.svc, err = micro.AddService(n.nc, micro.Config{Name: prefix, Version: serviceVersion, Description: "probes on a KVM guest", Metadata: meta, StatsHandler: func(*micro.Endpoint) any { return m.state() }}); err != nil {
		return nil, fmt.Errorf("join the fleet: %w", err)
	}
	m.id = m.svc.Info().ID
	err = m.svc.AddEndpoint(connectEnd, micro.HandlerFunc(m.connect), micro.WithEndpointSubject(Daemon{ID: m.id}.subject()), micro.WithEndpointQueueGroupDisabled())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("join the fleet: %w", err), m.svc.Stop())
	}
	info, err := json.Marshal(m.svc.Info())
	if err == nil {
		err = n.nc.Publish(arrivedSubject, info)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("join the fleet: %w", err), m.svc.Stop())
	}
	return m, nil
}

// connect answers a request for a connection.
func (m *Member) connect(r micro.Request) {
	to, why := m.admit(r.Data())
	_ = r.RespondJSON(welcome{To: to, Error: why}) // a client that is gone has no connection
}

// admit creates a connection for a client, or returns why not.
func (m *Member) admit(body []byte) (to, why string) {
	var h hello
	if len(body) > 4<<10 || json.Unmarshal(body, &h) != nil {
		return "", "not a request for a connection"
	}
	if h.Version != packetVersion {
		return "", fmt.Sprintf("connections of version %d are not known here, only of %d", h.Version, packetVersion)
	}
	// A client must not be able to make us write to anything but an inbox.
	if !strings.HasPrefix(h.From, nats.InboxPrefix) || !subject(h.From) {
		return "", "the subject is no inbox"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return "", "the daemon is stopping"
	}
	if len(m.queue) == cap(m.queue) {
		return "", "too many connections wait to be served"
	}
	at := prefix + "." + m.id + "." + nuid.Next()
	c, err := m.n.link(at, h.From, ends{local: address(at), remote: address(cleanLabel(h.Who)), window: maxWindow, told: minWindow, limit: uint64(clampWindow(h.Window))})
	if err != nil {
		return "", err.Error()
	}
	m.queue <- c
	return at, ""
}

// Accept implements net.Listener.
func (m *Member) Accept() (net.Conn, error) {
	select {
	case c := <-m.queue:
		return c, nil
	case <-m.end:
		return nil, net.ErrClosed
	}
}

// Close leaves the fleet: the daemon can no longer be found, and accepts no
// connection. Existing connections continue.
func (m *Member) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return net.ErrClosed
	}
	m.closed = true
	close(m.end)
	for len(m.queue) > 0 {
		_ = (<-m.queue).Close()
	}
	return m.svc.Stop()
}

// Meant reports whether a condition chooses this daemon.
func (m *Member) Meant(w Where) bool { return w.Match(m.labels) }

// Name returns the daemon's name in the fleet.
func (m *Member) Name() string { return m.labels["name"] }

// ID returns an ID that no other run of a daemon has.
func (m *Member) ID() string { return m.id }

// State is a daemon's description of its present state.
type State struct {
	Unkept *Unkept `json:"unkept,omitempty"`
}

func (m *Member) state() State { return State{m.Unkept()} }

// AwaitPublished waits until a server has stored everything that publishers were
// given, or until ctx ends.
func (m *Member) AwaitPublished(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		m.publishing.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Addr implements net.Listener.
func (m *Member) Addr() net.Addr { return address(Daemon{ID: m.id}.subject()) }
