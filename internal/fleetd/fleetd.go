package fleetd

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/fleet"
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
	// writeTime is how long a client may not read of what waits for it.
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
	pass, err := password(o.Password)
	if err != nil {
		return nil, fmt.Errorf("--password-file: %w", err)
	}
	so.CustomClientAuthentication = knows(pass)
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("--tls-cert: %w", err)
		}
		so.TLS, so.TLSConfig = true, &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	}
	return so, nil
}

// knows lets those in who know the password.
type knows string

// Check implements server.Authentication.
func (k knows) Check(c server.ClientAuthentication) bool {
	o := c.GetOpts()
	return o.Username == fleet.User && subtle.ConstantTimeCompare([]byte(o.Password), []byte(k)) == 1
}

// password reads the password of a file, or makes both.
func password(path string) (string, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		b = []byte(rand.Text())
		return string(b), writeFile(path, string(b)+"\n")
	}
	pass := strings.TrimSpace(string(b))
	if err == nil && pass == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return pass, err
}

// writeFile writes a file that is whole whenever it is there.
func writeFile(path, text string) error {
	var r [8]byte
	_, _ = rand.Read(r[:])
	tmp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+"."+hex.EncodeToString(r[:]))
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}

// serve serves until ctx ends.
func serve(ctx context.Context, r *command.Run, o fleet.Serve) error {
	so, err := options(o)
	if err != nil {
		return err
	}
	s, err := server.NewServer(so)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(r.Stderr, nil))
	s.SetLoggerV2(logger{log}, false, false, false)
	s.Start()
	defer s.WaitForShutdown()
	defer s.Shutdown()
	if !s.ReadyForConnections(readyTime) {
		return errors.New("the server does not begin; its log says why")
	}
	if o.Config == "" {
		if err := prepare(ctx, s, o); err != nil {
			return err
		}
	}
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
	if err := r.Print("Serving the fleet: --fleet %s%s\n", url, with); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// prepare makes the places for what is kept.
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
	return fleet.Prepare(ctx, nc, o.Bounds)
}

// logger gives the server's log to ours. What it says of each connection is left out.
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
