package http

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/service"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe/remote/api"
	"github.com/guestprobe/guestprobe/probe/session"
)

// Times of the server.
const (
	headerTime   = 10 * time.Second // for a client to send its request's header
	idleTime     = 5 * time.Minute  // of a connection between requests
	shutdownTime = 3 * time.Second  // for requests that run when the daemon stops, once the probes are out
)

// server serves one guest. Its own methods are about the daemon's life: start,
// end, reloads, the fleet, debuggers, the jail, and routes about the process.
// The parts serve all other requests (doc.go).
type server struct {
	*inspector
	*runControl
	*probeHost
	*scriptHost
	*eventHost
	*restorer
	*saver
	*scrapes
	log      *slog.Logger
	opt      *options
	access   access
	streams  *streams
	limits   atomic.Pointer[limits]
	conns    *conns
	leaving  func()                   // leaves the fleet: clients no longer find this daemon there
	followed atomic.Pointer[followed] // nil: not in a fleet
	monitor  Monitor                  // nil: no monitor commands
	page     page
	pid      int

	args      []string // of the command line
	hangups   <-chan os.Signal
	logLevel  *slog.LevelVar
	reopenLog func() error
	manager   *service.Manager

	begin func(debuggers *socket) error // runs once all sockets are there, before clients are served; may be nil

	stop     chan struct{} // closed when the daemon stops
	stopOnce sync.Once
}

// newServer returns a server of g; start must follow.
func newServer(log *slog.Logger, o options, g Guest, logLost func() uint64) *server {
	in := &inspector{guest: g}
	rc := &runControl{inspector: in, log: log, opt: &o, logLost: logLost}
	s := &server{
		inspector: in, runControl: rc, log: log, opt: &o, pid: os.Getpid(),
		access:    access{self: uint32(os.Geteuid()), uids: o.allowUIDs, gid: o.gid, groups: userGroups},
		probeHost: &probeHost{inspector: in, log: log, control: rc, effort: newEffort(o.ownMemory())},
		leaving:   func() {},
		manager:   &service.Manager{}, logLevel: new(slog.LevelVar), reopenLog: func() error { return nil },
		stop: make(chan struct{}),
	}
	s.streams = &streams{opt: &o, limits: &s.limits, stop: s.stop, open: map[*stream]struct{}{}}
	s.scriptHost = &scriptHost{probeHost: s.probeHost, opt: &o, streams: s.streams}
	s.eventHost = &eventHost{probeHost: s.probeHost, opt: &o, streams: s.streams}
	s.restorer = &restorer{scriptHost: s.scriptHost}
	s.saver = &saver{runControl: rc, restorer: s.restorer}
	s.limits.Store(o.limits())
	s.conns = s.newConns(nil)
	s.probes = session.New(g, sessionOptions(g, log, int64(o.maps)))
	s.boots.Store(1)
	s.scrapes = s.newScrapes()
	s.page = page{log: log, opt: &o, api: s.handler()}
	return s
}

// run serves sock until ctx ends, and then undoes everything: probes are
// removed, the text is restored, and streams end with a record that says so. It
// calls ready when clients are served.
func (s *server) run(ctx context.Context, sock *socket, ready func()) error {
	gdbSock := s.listenGDB(ctx, sock.path)
	metrics, err := s.listenMetrics()
	if err == nil && s.begin != nil {
		err = s.begin(gdbSock)
	}
	if err != nil {
		if gdbSock != nil {
			err = errors.Join(err, gdbSock.Close())
		}
		if metrics != nil {
			err = errors.Join(err, metrics.Close())
		}
		return err
	}
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		s.watchGuest()
	}()
	hs := &http.Server{
		Handler: s.page.api, ConnContext: withConn,
		ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	// Not the socket: the server closes its listener, and the lock must outlive
	// that.
	s.conns.Listener = sock.listener
	go func() { served <- hs.Serve(s.conns) }()
	defer s.serveMetrics(metrics)()
	leave, err := s.joinFleet(hs)
	if err != nil {
		return errors.Join(err, s.shutdown(sock, hs))
	}
	defer leave()
	dctx, endDebuggers := context.WithCancel(ctx)
	defer endDebuggers()
	debuggers := s.serveGDB(dctx, gdbSock)
	var background sync.WaitGroup
	if s.state != nil {
		background.Go(func() { s.state.WriteChanges(s.stop) })
	}
	ready()
	if s.manager.Present() {
		background.Go(func() { s.tellManager(dctx, sock.path) })
	}

	var failed error
	for going := true; going; {
		select {
		case <-ctx.Done():
			s.log.Info("stopping", "cause", context.Cause(ctx))
			going = false
		case failed = <-served:
			s.log.Error("server failed", "err", failed)
			going = false
		case sig := <-s.hangups:
			if going = s.opt.config != ""; going {
				s.reload()
			} else {
				s.log.Info("stopping", "cause", sig.String()+" signal received")
			}
		}
	}
	endDebuggers()
	left := errors.Join(debuggers.close(), s.shutdown(sock, hs))
	if failed == nil {
		failed = <-served
	}
	<-watch
	background.Wait()
	if errors.Is(failed, http.ErrServerClosed) || errors.Is(failed, net.ErrClosed) {
		failed = nil
	}
	return errors.Join(failed, left)
}

// shutdown takes the daemon down in an order in which nothing new can arrive
// after its part was closed. Nothing skips it, not even a second signal. The
// error lists the changes that could not be undone.
func (s *server) shutdown(sock *socket, hs *http.Server) error {
	sock.stop()
	s.leaving()
	s.tellEnd()
	var left error
	if s.vm == nil {
		left = s.restore()
	}
	if left != nil {
		s.log.Error("shutdown", "err", left)
	}
	// The guest determines how long that took, so clients have their time from now
	// on.
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	s.stopOnce.Do(func() { close(s.stop) })
	end, _ := ctx.Deadline()
	s.streams.interrupt(min(s.opt.endTime, max(0, time.Until(end)-2*s.opt.writeTime)))
	s.scripts.wait(ctx)
	s.page.close(ctx)
	if err := hs.Shutdown(ctx); err != nil {
		s.log.Warn("requests cut off", "err", err)
		hs.Close()
	}
	return left
}

// restore removes all probes for good and proves that nothing is left of them.
func (s *server) restore() error {
	if err := dropChanged(s.probes.Close()); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	t, err := compareText(s.guest)
	switch {
	case err != nil:
		return fmt.Errorf("compare text: %w", err)
	case !t.Identical && isOwnText(s.guest.Image(), t.Ranges):
		s.log.Info("guest text restored, except the guest's own changes of its writable text", "places", len(t.Ranges), "first", t.Ranges[0].Addr)
		return nil
	case !t.Identical:
		others := slices.DeleteFunc(t.Ranges, func(r api.TextRange) bool { return r.By == api.TextGuest })
		return fmt.Errorf("the guest's text differs from its image in %s, first at %v", command.Plural(len(others), "place"), others[0].Addr)
	}
	s.log.Info("guest text restored", "bytes", t.Bytes, "sha256", t.Live)
	return nil
}

// watchGuest logs the changes of the guest's state, up to the last one when the
// daemon stops.
func (s *server) watchGuest() {
	var last machine.Phase
	panicked := false
	for stopped := false; ; {
		changed := s.guest.Changed()
		st := s.guest.State()
		if was := panicked; s.kernelPanicked(&panicked) && !was {
			if attrs := s.saveCrash(func(*snapshot.Snapshot) bool { return true }); attrs != nil {
				s.log.Error("the guest's kernel has panicked", attrs...)
			}
		}
		if st.Phase != last {
			last = st.Phase
			switch st.Phase {
			case machine.PhaseCrashed:
				attrs := append([]any{"cpu", st.Crash.CPU, "kind", st.Crash.Kind, "reason", st.Crash.Text}, s.saveCrash(hasCrashed)...)
				s.log.Error("guest crashed", append(attrs, "report", st.Crash.String())...)
			case machine.PhaseExited:
				if st.Outside {
					s.log.Info("the VMM has ended")
				} else {
					s.logExit(st)
				}
			default:
				level := slog.LevelInfo
				if s.debugger.Load() != nil { // it may stop the guest thousands of times
					level = slog.LevelDebug
				}
				s.log.Log(context.Background(), level, "guest", "state", st.Phase)
			}
		}
		if stopped {
			return
		}
		select {
		case <-changed:
		case <-s.stop:
			stopped = true
		}
		if d := s.debugger.Load(); d != nil && !stopped {
			// A debugger may stop the guest thousands of times a second, and waking
			// goroutines at each stop would slow it down.
			select {
			case <-time.After(watchPause):
			case <-d.g.Ended():
			case <-s.stop:
				stopped = true
			}
		}
	}
}

// watchPause is how much later the log may report that a debugger has stopped or
// resumed a guest.
const watchPause = 10 * time.Millisecond

// logExit logs the details of a guest's exit. A code other than 0 is a warning.
func (s *server) logExit(st machine.State) {
	level, attrs := slog.LevelInfo, []any{"code", st.ExitCode}
	if st.ExitCode != 0 {
		level = slog.LevelWarn
	}
	if x := st.Exit; x != nil {
		attrs = append(attrs, "cpu", x.CPU, "at", x.Symbol, "console", strings.Join(x.Console, "\n"))
	}
	s.log.Log(context.Background(), level, "guest exited", attrs...)
}
