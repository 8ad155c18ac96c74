package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/nats-io/nats.go"
)

// hello is the body of a request for a connection.
type hello struct {
	Version int    `json:"version"`
	From    string `json:"from"`   // subject for the daemon's data
	Window  int    `json:"window"` // the client's receive window in bytes
	Who     string `json:"who"`    // as the client gives it
}

// welcome is the answer to a hello.
type welcome struct {
	To    string `json:"to"` // subject for the client's data
	Error string `json:"error,omitempty"`
}

// ErrOther is wrapped by errors of Dial to a daemon with an incompatible
// version.
var ErrOther = errors.New("another version of the fleet's protocol")

// address is a subject.
type address string

// Network implements net.Addr.
func (address) Network() string { return "nats" }

// String implements net.Addr.
func (a address) String() string { return string(a) }

// link creates a connection whose other end listens at a subject, and which
// listens at a subject of its own.
func (n *Network) link(local, remote string, e ends) (c *Conn, err error) {
	var sub *nats.Subscription
	c = newConn(e, func(p []byte) {
		// A packet that cannot be published is lost, and is sent again.
		_ = n.nc.PublishMsg(&nats.Msg{Subject: remote, Reply: local, Data: p})
	}, func() {
		_ = sub.Unsubscribe()
		n.mu.Lock()
		delete(n.conns, c)
		n.mu.Unlock()
	})
	sub, err = n.nc.Subscribe(local, func(m *nats.Msg) {
		if len(m.Data) == 0 && m.Header.Get("Status") == noResponders {
			c.noteMissing()
			return
		}
		c.receive(m.Data)
	})
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.conns[c] = struct{}{}
	n.mu.Unlock()
	c.start()
	return c, nil
}

// noResponders is the status of the message that comes back when a subject has
// no listener (NATS' protocol, HMSG 503).
const noResponders = "503"

// Dial connects to a daemon; window is how many of its bytes may be in flight.
func (n *Network) Dial(ctx context.Context, d Daemon, window int) (*Conn, error) {
	if !d.compatible() {
		return nil, fmt.Errorf("%w: %s speaks %s, and we %s: use the guestprobe that came with its guestprobed", ErrOther, d.Name, d.Speaks, serviceVersion)
	}
	inbox := n.nc.NewInbox()
	window = clampWindow(window)
	host, _ := os.Hostname()
	body, err := json.Marshal(hello{Version: packetVersion, From: inbox, Window: window, Who: fmt.Sprintf("pid %d on %s", os.Getpid(), host)})
	if err != nil {
		return nil, err
	}
	msg, err := n.nc.RequestWithContext(ctx, d.subject(), body)
	switch {
	case errors.Is(err, nats.ErrNoResponders):
		return nil, fmt.Errorf("%s is gone", d.Name)
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s does not answer: %w", d.Name, context.Cause(ctx))
	case err != nil:
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	var w welcome
	if len(msg.Data) > maxInfo {
		return nil, fmt.Errorf("%s: not the answer of a daemon: %d bytes", d.Name, len(msg.Data))
	}
	if err := json.Unmarshal(msg.Data, &w); err != nil {
		return nil, fmt.Errorf("%s: not the answer of a daemon: %w", d.Name, err)
	}
	if w.Error != "" {
		return nil, fmt.Errorf("%s: %s", d.Name, plainText(w.Error))
	}
	if !strings.HasPrefix(w.To, prefix+"."+d.ID+".") || !subject(w.To) {
		return nil, fmt.Errorf("%s: not the answer of a daemon: it listens at %q", d.Name, w.To)
	}
	c, err := n.link(inbox, w.To, ends{local: address(inbox), remote: address(d.Name), window: window, limit: minWindow})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", d.Name, err)
	}
	return c, nil
}

// subject reports whether s is one subject, without wildcards.
func subject(s string) bool {
	return len(s) <= 256 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' || r == '*' || r == '>' }) &&
		!strings.Contains(s, "..") && !strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".")
}
