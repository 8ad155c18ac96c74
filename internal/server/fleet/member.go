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

// prefix is what all subjects of ours begin with, and the name of the service.
const prefix = "guestprobe"

// connectEnd is the end of the subject that a daemon takes connections at.
const connectEnd = "connect"

// serviceVersion is that of what a daemon says to the fleet; a higher first number is something else.
const serviceVersion = "1.0.0"

// maxWaiting bounds how many connections wait to be accepted.
const maxWaiting = 64

// Member is a daemon in the fleet. It is a listener of the connections that come over the fleet.
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
			meta[name] = tidied(meta[name])
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

// admit makes a connection for who asks, or says why not.
func (m *Member) admit(body []byte) (to, why string) {
	var h hello
	if len(body) > 4<<10 || json.Unmarshal(body, &h) != nil {
		return "", "not a request for a connection"
	}
	if h.Version != packetVersion {
		return "", fmt.Sprintf("connections of version %d are not known here, only of %d", h.Version, packetVersion)
	}
	// Whoever asks cannot have us write anywhere else than to an inbox.
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
	c, err := m.n.link(at, h.From, ends{local: address(at), remote: address(tidied(h.Who)), window: maxWindow, told: minWindow, limit: uint64(bounded(h.Window))})
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

// Close leaves the fleet: nobody finds the daemon any more, and no connection is taken. Those there are go on.
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

// Name is what the daemon is called in the fleet.
func (m *Member) Name() string { return m.labels["name"] }

// ID is what no other run of a daemon has.
func (m *Member) ID() string { return m.id }

// State is what a daemon says of itself now.
type State struct {
	Unkept *Unkept `json:"unkept,omitempty"`
}

func (m *Member) state() State { return State{m.Unkept()} }

// Published waits until all that publishers were given is kept by a server, or until ctx ends.
func (m *Member) Published(ctx context.Context) {
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
