package http

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/service"
	"github.com/guestprobe/guestprobe/probe/session"
)

// statusEvery is how often the state that is reported to the service manager is
// checked for changes.
const statusEvery = time.Second

// status returns the daemon's state in a line.
func (s *server) status() string {
	line := fmt.Sprintf("guest %s, %s", s.guest.State().Phase, command.Plural(len(s.probes.Probes()), "probe"))
	if n := len(s.scripts.list()); n > 0 {
		line += ", " + command.Plural(n, "script")
	}
	if n := len(s.state.PendingNames()); n > 0 {
		line += fmt.Sprintf("; %d not restored", n)
	}
	return line
}

// tellManager reports the daemon's state to the service manager, from READY on,
// until ctx ends. It notifies the watchdog only after a request on the daemon's
// own socket was answered, which shows that connections are accepted and the
// guest's state is available.
func (s *server) tellManager(ctx context.Context, path string) {
	tell := func(assignments ...string) {
		if err := s.manager.Tell(assignments...); err != nil {
			s.log.Warn("service manager", "err", err)
		}
	}
	last := s.status()
	tell(service.Ready, service.Status(last))
	ticks := time.NewTicker(statusEvery)
	defer ticks.Stop()
	var dog <-chan time.Time
	period := s.manager.Watchdog() / 2
	if period > 0 {
		t := time.NewTicker(period)
		defer t.Stop()
		dog = t.C
	}
	client := &http.Client{Timeout: period, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}}
	defer client.CloseIdleConnections()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.guest.Changed():
		case <-ticks.C:
		case <-dog:
			if err := checkAnswering(ctx, client); err != nil {
				s.log.Error("the daemon does not answer itself: its service manager is not told that it lives", "err", err)
			} else {
				tell(service.Alive)
			}
		}
		if now := s.status(); now != last {
			last = now
			tell(service.Status(now))
		}
	}
}

// tellEnd reports that the daemon stops. It saves the clients' attachments, or
// logs which of them are lost.
func (s *server) tellEnd() {
	status := "stopping"
	if s.state != nil {
		if err := s.state.Write(); err != nil && !errors.Is(err, session.ErrClosed) {
			s.log.Error("what clients have attached cannot be kept", "err", err)
			status = "stopping; what clients have attached cannot be kept: " + err.Error()
		}
	} else if lost := s.restorer.reportLost(); lost > 0 {
		status = fmt.Sprintf("stopping; lost of what clients have attached: %d", lost)
	}
	if err := s.manager.Tell(service.Stopping, service.Status(status)); err != nil {
		s.log.Warn("service manager", "err", err)
	}
}

// checkAnswering requests the guest's state. Any answer will do, even that there
// are too many connections.
func checkAnswering(ctx context.Context, c *http.Client) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guestprobed/v1/guest", nil)
	if err != nil {
		return err
	}
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}

// inheritSocket returns the socket that a service manager has created, or nil
// without one. Its mode, group and removal are the manager's. It sets the
// socket's path in the options. The lock file beside the socket shows that a
// daemon runs, so 'guestprobe ps' does not have to connect, which would start
// one. The lock is missing where the folder is not writable.
func inheritSocket(o *options, log *slog.Logger, getenv func(string) string) (*socket, error) {
	l, err := service.Listener(getenv)
	if l == nil || err != nil {
		return nil, err
	}
	path := l.Addr().String()
	if o.socket != "" && o.socket != path {
		l.Close()
		return nil, o.placeError(command.Usagef("--socket %s: the service manager gives %s; leave it out", o.socket, path))
	}
	o.socket = path
	s := &socket{listener: l, path: path, given: true}
	if s.lock, err = lockSocket(path); errors.Is(err, errSocketLive) {
		l.Close()
		return nil, err
	} else if err != nil {
		log.Warn("'guestprobe ps' will take the daemon for one that is not started", "err", err)
	}
	return s, nil
}
