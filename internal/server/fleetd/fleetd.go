package fleetd

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
)

// Main is guestprobe-fleetd. It returns the exit status.
func Main() int { return command.Main(Program()) }

// Program describes its command line.
func Program() command.Program {
	var o fleet.Serve
	var given func(string) bool
	return command.Program{
		Spec: command.Spec{
			Use:   fleet.Server,
			Short: "Serve a fleet of daemons",
			Long:  fleet.Server + " is what 'guestprobe fleet serve' starts; see there.",
			Plain: true,
			Files: fleet.Files,
			Run: func(ctx context.Context, r *command.Run) error {
				given = r.Given
				if err := o.Check(given, os.Geteuid() == 0, r.Getenv); err != nil {
					return command.Usagef("%w", err)
				}
				return serve(ctx, r, o)
			},
			Flags: o.Flags,
		},
		Judge: func(error) command.Verdict { return command.Verdict{Status: command.ExitFailed} },
	}
}

// Times of the server.
const (
	readyTime = 30 * time.Second // to begin
	// writeTime is how long a client may leave waiting data unread.
	writeTime = 30 * time.Second
)

// maxPayload bounds a message, in bytes: maps of a script in one daemon, compressed, are one.
const maxPayload = 8 << 20

// options are nats-server's for ours.
func options(o fleet.Serve) (*server.Options, error) {
	if o.Config != "" {
		so, err := server.ProcessConfigFile(o.Config)
		if err != nil {
			return nil, fmt.Errorf("--config: %w", err)
		}
		so.NoSigs = true
		return so, nil
	}
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return nil, err
	}
	so := &server.Options{
		Host: host, ServerName: "guestprobe-fleet", NoSigs: true, JetStream: true, StoreDir: o.Store, DisableJetStreamBanner: true,
		WriteDeadline: writeTime, MaxControlLine: server.MAX_CONTROL_LINE_SIZE, MaxPayload: maxPayload,
	}
	if so.Port, err = strconv.Atoi(port); err != nil || so.Port < 0 || so.Port > 65535 {
		return nil, fmt.Errorf("--listen %s: no port", o.Listen)
	}
	if so.Port == 0 {
		so.Port = server.RANDOM_PORT
	}
	if err := os.MkdirAll(o.Store, 0o700); err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	if err := files.CheckTrusted(o.Store); err != nil {
		return nil, fmt.Errorf("--store: %w", err)
	}
	pass, err := password(o.Password)
	if err != nil {
		return nil, fmt.Errorf("--password-file: %w", err)
	}
	so.CustomClientAuthentication = knows(pass)
	if o.Cert != "" {
		for flag, file := range map[string]string{"tls-cert": o.Cert, "tls-key": o.Key} {
			if err := files.CheckTrusted(file); err != nil {
				return nil, fmt.Errorf("--%s: %w", flag, err)
			}
		}
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert: %w", err)
		}
		so.TLS, so.TLSConfig = true, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	return so, nil
}

// knows authenticates clients that know the password.
type knows string

// Check implements server.Authentication.
func (k knows) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	return o.Username == fleet.User && subtle.ConstantTimeCompare([]byte(o.Password), []byte(k)) == 1
}

// password reads the password from a file, or creates both.
func password(path string) (string, error) {
	pass, err := fleet.Password(path)
	if errors.Is(err, fs.ErrNotExist) {
		pass = rand.Text()
		return pass, writeFile(path, pass+"\n")
	}
	return pass, err
}

// writeFile writes a file of ours that is whole whenever it is there.
func writeFile(path, text string) error {
	return files.ReplaceSynced(path, 0o600, func(f *os.File) error {
		_, err := f.WriteString(text)
		return err
	})
}

// serve serves until ctx ends.
func serve(ctx context.Context, r *command.Run, o fleet.Serve) error {
	so, err := options(o)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(r.Stderr, nil))
	begun := func(s *server.Server) error {
		url := s.ClientURL()
		if o.URLFile != "" {
			if err := writeFile(o.URLFile, url+"\n"); err != nil {
				return fmt.Errorf("--url-file: %w", err)
			}
		}
		with := ""
		if o.Config == "" {
			with = " --fleet-creds " + o.Password
		}
		return r.Print("Serving the fleet: --fleet %s%s\n", url, with)
	}
	for failures := 0; ; {
		began := time.Now()
		again, err := serveOnce(ctx, o, so, log, begun)
		switch {
		case err != nil || !again:
			return err
		case time.Since(began) > brokenTime:
			failures = 0
		case failures == maxFailures:
			return fmt.Errorf("%s fails at each start. Check the disk, then start the server again", o.Store)
		}
		failures++
		begun = func(s *server.Server) error {
			log.Info("serving again", "url", s.ClientURL())
			return nil
		}
	}
}

// Times of a server whose disk fails.
const (
	// healthTime is how often the server is asked whether it can write.
	healthTime = time.Second
	// brokenTime is how long a server must have worked for its next failure to be the first one again.
	brokenTime = time.Minute
	// maxFailures is how often it is started again in a row.
	maxFailures = 5
	// enoughRoom is how many bytes must be free in the store before the server
	// starts again.
	enoughRoom = 16 << 20
)

// serveOnce runs a server until ctx ends. It reports again when the server must
// be restarted: its disk was full, so nats-server does not write to a stream
// until it restarts, and there is room again.
func serveOnce(ctx context.Context, o fleet.Serve, so *server.Options, log *slog.Logger, begun func(*server.Server) error) (again bool, err error) {
	s, err := server.NewServer(so.Clone())
	if err != nil {
		return false, err
	}
	s.SetLoggerV2(logger{log}, false, false, false)
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(readyTime) {
		return false, errors.New("the server does not begin; its log says why")
	}
	if a, ok := s.Addr().(*net.TCPAddr); ok {
		so.Port = a.Port // also of the next start
	}
	if o.Config == "" {
		if err := prepare(ctx, s, o); err != nil {
			return false, err
		}
	}
	if err := begun(s); err != nil {
		return false, err
	}
	tick := time.NewTicker(healthTime)
	defer tick.Stop()
	for broken := error(nil); ; {
		select {
		case <-ctx.Done():
			return false, nil
		case <-tick.C:
		}
		failed := writeError(s, so)
		switch {
		case failed == nil:
			continue
		case o.Config != "":
			return false, fmt.Errorf("the server keeps nothing more: %w. Free its disk, then start it again", failed)
		case broken == nil:
			broken = failed
			log.Error("the server keeps nothing more until its disk has room: it serves, and starts again then", "err", failed, "store", o.Store)
		}
		if free, _ := room(o.Store); free >= enoughRoom {
			log.Warn("the disk has room: the server starts again", "store", o.Store, "free", free)
			return true, nil
		}
	}
}

// writeError returns why a server does not write to some stream any more, or
// nil.
func writeError(s *server.Server, so *server.Options) error {
	if so.JetStream && !s.JetStreamEnabled() {
		return errors.New("JetStream is disabled; the server's log says why")
	}
	if h := s.Healthz(nil); strings.Contains(h.Error, "write error") {
		return errors.New(h.Error)
	}
	return nil
}

// room returns how many bytes are free for us in a folder.
func room(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, err
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// prepare creates the streams and buckets of the fleet.
func prepare(ctx context.Context, s *server.Server, o fleet.Serve) error {
	pass, err := password(o.Password)
	if err != nil {
		return fmt.Errorf("--password-file: %w", err)
	}
	nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo(fleet.User, pass), nats.Timeout(readyTime))
	if err != nil {
		return fmt.Errorf("prepare the fleet: %w", err)
	}
	defer nc.Close()
	err = fleet.Prepare(ctx, nc, o.Bounds)
	if fleet.IsNoRoom(err) {
		free, _ := room(o.Store)
		return fmt.Errorf("--store %s: its disk has %s free, of which the server uses three quarters; definitions take up to %s, --events-bytes %s, --maps-bytes %s. "+
			"Free some, take another --store, or give smaller --events-bytes and --maps-bytes: %w",
			o.Store, mib(int64(free)), mib(fleet.MaxBucket), mib(o.Bounds.EventsBytes), mib(o.Bounds.MapsBytes), err)
	}
	return err
}

// mib writes a number of bytes for people.
func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// logger passes the server's log to ours. It leaves out messages about single
// connections.
type logger struct{ *slog.Logger }

// Noticef implements server.Logger.
func (l logger) Noticef(format string, v ...any) { l.Logger.Debug(fmt.Sprintf(format, v...)) }

// Warnf implements server.Logger.
func (l logger) Warnf(format string, v ...any) { l.Logger.Warn(fmt.Sprintf(format, v...)) }

// Fatalf implements server.Logger. The server's own would end the process.
func (l logger) Fatalf(format string, v ...any) { l.Logger.Error(fmt.Sprintf(format, v...)) }

// Errorf implements server.Logger.
func (l logger) Errorf(format string, v ...any) { l.Logger.Error(fmt.Sprintf(format, v...)) }

// Debugf implements server.Logger.
func (l logger) Debugf(string, ...any) {}

// Tracef implements server.Logger.
func (l logger) Tracef(string, ...any) {}
