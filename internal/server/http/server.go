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
	shutdownTime = 3 * time.Second  // from the signal on, for requests that run when the daemon stops
)

// server serves one guest.
type server struct {
	inspector
	log      *slog.Logger
	opt      options
	access   access
	streams  streams
	scripts  scripts
	profiles profiles
	exits    exitWatch
	limits   atomic.Pointer[limits]
	conns    *conns
	leaving  func()                   // the fleet: nobody is to find us there any more
	followed atomic.Pointer[followed] // nil: we are in no fleet
	logLost  func() uint64
	monitor  Monitor // nil: there are no commands
	metrics  http.Handler
	calls    *gathering   // nil: durations are not asked for
	api      http.Handler // of all routes
	page     page
	effort   effort
	pid      int

	boots    atomic.Int64
	boot     atomic.Int64                      // when the guest began to run from its start, on the clock of events
	debugger atomic.Pointer[debugged]          // the one that is at work, or nil
	last     atomic.Pointer[snapshot.Snapshot] // the last that was saved, given or restored
	saved    *snapshot.Snapshot                // not nil: what the guest is, which does not run
	resetMu  sync.Mutex                        // a reset and the resume after it are one thing; nobody else pauses or resumes meanwhile

	args      []string // of the command line
	hangups   <-chan os.Signal
	logLevel  *slog.LevelVar
	reopenLog func() error
	manager   *service.Manager
	state     *state // nil: what clients attach ends with the daemon

	begin func(debuggers *socket) error // what comes before anybody is served, once all sockets are there; nil: nothing
	jail  *api.Jail                     // what the process has given up; nil: this is no daemon

	stop     chan struct{} // closed when the daemon stops
	stopOnce sync.Once
}

// newServer returns a server of g; start must follow.
func newServer(log *slog.Logger, o options, g Guest, logLost func() uint64) *server {
	s := &server{
		inspector: inspector{guest: g}, log: log, opt: o, logLost: logLost, pid: os.Getpid(),
		access:  access{self: uint32(os.Geteuid()), uids: o.allowUIDs, gid: o.gid, groups: userGroups},
		streams: streams{open: map[*stream]struct{}{}},
		leaving: func() {},
		manager: &service.Manager{}, logLevel: new(slog.LevelVar), reopenLog: func() error { return nil },
		stop: make(chan struct{}),
	}
	s.limits.Store(o.limits())
	s.conns = s.newConns(nil)
	s.probes = session.New(g, s.sessionOptions())
	s.effort = newEffort(o.ownMemory())
	s.boots.Store(1)
	s.metrics = s.newMetrics()
	s.api = s.handler()
	return s
}

// run serves sock until ctx ends, and then takes everything back: probes come
// out, the text is what it was, streams end with a record that says so.
// ready is called when clients are served.
func (s *server) run(ctx context.Context, sock *socket, ready func()) error {
	gdbSock := s.listenGDB(ctx, sock.path)
	scrapes, err := s.listenMetrics()
	if err == nil && s.begin != nil {
		err = s.begin(gdbSock)
	}
	if err != nil {
		if gdbSock != nil {
			err = errors.Join(err, gdbSock.Close())
		}
		if scrapes != nil {
			err = errors.Join(err, scrapes.Close())
		}
		return err
	}
	watch := make(chan struct{})
	go func() {
		defer close(watch)
		s.watchGuest()
	}()
	hs := &http.Server{
		Handler: s.api, ConnContext: withConn,
		ReadHeaderTimeout: headerTime, IdleTimeout: idleTime,
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelWarn),
	}
	served := make(chan error, 1)
	// Not the socket: the server closes what it gets, and the lock must outlive
	// that.
	s.conns.Listener = sock.listener
	go func() { served <- hs.Serve(s.conns) }()
	defer s.serveMetrics(scrapes)()
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
		background.Go(s.keepState)
	}
	ready()
	if s.manager.There() {
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

// shutdown is the way back, in an order in which nothing new can come in
// behind what is taken down. Nothing skips it, not a second signal either. The
// error says what could not be taken back.
func (s *server) shutdown(sock *socket, hs *http.Server) error {
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTime)
	defer cancel()
	sock.stop()
	s.leaving()
	s.tellEnd()
	left := s.restore()
	if left != nil {
		s.log.Error("shutdown", "err", left)
	}
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

// restore takes all probes out for good and proves that nothing is left of
// them.
func (s *server) restore() error {
	if err := withoutChanged(s.probes.Close()); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	t, err := compareText(s.guest)
	switch {
	case err != nil:
		return fmt.Errorf("compare text: %w", err)
	case !t.Identical && ownText(s.guest.Image(), t.Ranges):
		s.log.Info("guest text restored, but for what the guest has written into its writable text", "places", len(t.Ranges), "first", t.Ranges[0].Addr)
		return nil
	case !t.Identical:
		others := slices.DeleteFunc(t.Ranges, func(r api.TextRange) bool { return r.By == api.TextGuest })
		return fmt.Errorf("the guest's text differs from its image in %s, first at %v", command.Plural(len(others), "place"), others[0].Addr)
	}
	s.log.Info("guest text restored", "bytes", t.Bytes, "sha256", t.Live)
	return nil
}

// watchGuest logs how the guest's life goes on, up to where it is when the daemon
// stops.
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
				s.logExit(st)
			default:
				level := slog.LevelInfo
				if s.debugger.Load() != nil { // it may stop thousands of times
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
			// It may stop thousands of times a second, and what is woken at each is in its way.
			select {
			case <-time.After(watchPause):
			case <-d.g.Over():
			case <-s.stop:
				stopped = true
			}
		}
	}
}

// watchPause is how much later the log may tell of a guest that a debugger has stopped or let go on.
const watchPause = 10 * time.Millisecond

// logExit tells what is known about a guest that has exited: a code other than 0
// is a warning.
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
