package fleet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/spf13/pflag"

	"github.com/guestprobe/guestprobe/guest/files"
)

// Address is the fleet's servers and our credentials there.
type Address struct {
	URL   string // nats:// or tls://, several with commas between: servers of one cluster
	Creds string // file of credentials
	CA    string // file of certificates that sign the servers' ones; "": the system's
	Cert  string // file of our certificate
	Key   string // and of its key
}

// Flags declares the flags for everything except the URL. Their names begin with
// prefix.
func (a *Address) Flags(f *pflag.FlagSet, prefix string) {
	f.StringVar(&a.Creds, prefix+"creds", a.Creds, "credentials for the fleet's server: a `file` of NATS', or of 'guestprobe fleet serve'")
	f.StringVar(&a.CA, prefix+"ca", a.CA, "`file` of the certificates that the fleet's server must be signed by (default: the system's)")
	f.StringVar(&a.Cert, prefix+"cert", a.Cert, "`file` of our certificate for the fleet's server")
	f.StringVar(&a.Key, prefix+"key", a.Key, "`file` of that certificate's key")
}

// Files returns the files that are read at each connection.
func (a Address) Files() []string {
	return slices.DeleteFunc([]string{a.Creds, a.CA, a.Cert, a.Key}, func(f string) bool { return f == "" })
}

// FileError is an error about a file of an Address.
type FileError struct {
	Flag string // creds, ca, cert or key: the end of a flag's name
	Err  error
}

// Error implements error.
func (e *FileError) Error() string { return "--fleet-" + e.Flag + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *FileError) Unwrap() error { return e.Err }

// CheckFiles reads the files that connections need, and returns a FileError for
// the first invalid one.
func (a Address) CheckFiles() error {
	if a.Creds != "" {
		if _, err := credentials(a.Creds); err != nil {
			return &FileError{"creds", err}
		}
	}
	if a.CA != "" {
		b, err := readOwn(a.CA)
		if err == nil && !x509.NewCertPool().AppendCertsFromPEM(b) {
			err = fmt.Errorf("%s: no certificate in it: want PEM", a.CA)
		}
		if err != nil {
			return &FileError{"ca", err}
		}
	}
	if a.Cert == "" {
		return nil
	}
	cert, err := readOwn(a.Cert)
	if err != nil {
		return &FileError{"cert", err}
	}
	key, err := readOwn(a.Key)
	if err != nil {
		return &FileError{"key", err}
	}
	if _, err := tls.X509KeyPair(cert, key); err != nil {
		return &FileError{"cert", fmt.Errorf("%s, with the key in %s: %w", a.Cert, a.Key, err)}
	}
	return nil
}

// schemes are the schemes of servers' URLs.
var schemes = []string{"nats", "tls", "ws", "wss"}

// Check rejects an invalid address.
func (a Address) Check() error {
	for part := range strings.SplitSeq(a.URL, ",") {
		u, err := url.Parse(strings.TrimSpace(part))
		switch {
		case err != nil:
			return errors.New("not a URL as nats://HOST:PORT") // the text may contain a secret
		case u.Host == "" || u.Path != "" && u.Path != "/" || !slices.Contains(schemes, u.Scheme):
			return fmt.Errorf("%q: not a URL as nats://HOST:PORT", u.Redacted())
		}
	}
	if (a.Cert == "") != (a.Key == "") {
		return errors.New("a certificate and its key go together")
	}
	return nil
}

// Redacted returns the URL without passwords.
func (a Address) Redacted() string {
	var out []string
	for part := range strings.SplitSeq(a.URL, ",") {
		if u, err := url.Parse(strings.TrimSpace(part)); err == nil {
			out = append(out, u.Redacted())
		}
	}
	return strings.Join(out, ",")
}

// Wrapped by errors of Connect: no server answers, the server rejects the
// credentials, or the server is not trusted.
var (
	ErrNoServer  = errors.New("the fleet's server does not answer")
	ErrRefused   = errors.New("the fleet's server refuses these credentials")
	ErrUntrusted = errors.New("the fleet's server is not trusted")
)

// Network is a process's access to the fleet. Its methods may be called from
// several goroutines.
type Network struct {
	nc     *nats.Conn
	addr   Address
	mu     sync.Mutex
	conns  map[*Conn]struct{}
	js     jetstream.JetStream
	bucket jetstream.KeyValue // set once it was found
	log    *slog.Logger
	other  atomic.Int64    // messages of other versions, and invalid ones
	life   context.Context // ends with Close
	end    context.CancelFunc
}

// Times of connections to servers.
const (
	connectTime   = 5 * time.Second
	reconnectTime = 250 * time.Millisecond // between two tries, and up to as much more at random
	pingTime      = 20 * time.Second       // between pings to the server, two of which may fail
)

// Connect connects to a server of the fleet. With stay it keeps trying when no
// server answers, and connects as soon as one does. log, which may be nil, gets
// the later changes of the connection.
func Connect(ctx context.Context, a Address, name string, stay bool, log *slog.Logger) (*Network, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if err := a.CheckFiles(); err != nil {
		return nil, err
	}
	why := "" // why the last try failed; repeated errors are logged once. NATS calls one handler at a time
	opts := []nats.Option{
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) {
			if text := err.Error(); text != why {
				why = text
				log.Warn("fleet: not connected", "url", a.Redacted(), "err", err)
			}
		}),
		nats.Name(name), nats.Timeout(connectTime), nats.RetryOnFailedConnect(stay), nats.MaxReconnects(-1),
		nats.ReconnectWait(reconnectTime), nats.ReconnectJitter(reconnectTime, reconnectTime), nats.PingInterval(pingTime),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				log.Warn("fleet: the server is gone", "err", err)
			}
		}),
		nats.ConnectHandler(func(nc *nats.Conn) {
			why = ""
			log.Info("fleet: connected", "server", nc.ConnectedUrlRedacted())
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			why = ""
			log.Info("fleet: connected again", "server", nc.ConnectedUrlRedacted())
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { log.Warn("fleet: connection", "err", err) }),
		nats.SetCustomDialer(dialer{ctx}),
	}
	if stay { // its administrator may admit us again
		opts = append(opts, nats.IgnoreAuthErrorAbort())
	}
	if a.Creds != "" {
		o, err := credentials(a.Creds)
		if err != nil {
			return nil, err
		}
		opts = append(opts, o)
	}
	if a.CA != "" {
		opts = append(opts, nats.RootCAs(a.CA))
	}
	if a.Cert != "" {
		opts = append(opts, nats.ClientCert(a.Cert, a.Key))
	}
	nc, err := nats.Connect(a.URL, opts...)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("%w: %s: %w", connectError(err), a.Redacted(), err)
	}
	js, err := jetstream.New(nc)
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("the fleet: %w", err)
	}
	n := &Network{nc: nc, addr: a, conns: map[*Conn]struct{}{}, js: js, log: log}
	n.life, n.end = context.WithCancel(context.Background())
	return n, nil
}

// connectError classifies an error of nats.Connect.
func connectError(err error) error {
	var cert *tls.CertificateVerificationError
	switch {
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return ErrRefused
	case errors.As(err, &cert):
		return ErrUntrusted
	}
	return ErrNoServer
}

// ForeignMessages returns how many messages Snapshots and Events have skipped so
// far, because they are of another version or invalid.
func (n *Network) ForeignMessages() int64 { return n.other.Load() }

// Connected reports whether a server is connected now.
func (n *Network) Connected() bool { return n.nc.IsConnected() }

// User is the user of 'guestprobe fleet serve', who has a password.
const User = "guestprobe"

// maxPassword bounds a file of a password, in bytes.
const maxPassword = 256

// maxCredentials bounds a file of credentials or certificates, in bytes.
const maxCredentials = 1 << 20

// Password returns the password in a file. The server and its clients read it by
// the same rules.
func Password(path string) (string, error) {
	b, err := readOwn(path)
	if err != nil {
		return "", err
	}
	pass := strings.TrimSpace(string(b))
	switch {
	case pass == "":
		return "", fmt.Errorf("%s: the file is empty: it must have a password", path)
	case len(pass) > maxPassword:
		return "", fmt.Errorf("%s: the password has %d bytes, more than %d", path, len(pass), maxPassword)
	}
	return pass, nil
}

// readOwn reads a file of credentials that only its owner, root and we can have
// written.
func readOwn(path string) ([]byte, error) {
	if err := files.CheckTrusted(path); err != nil {
		return nil, err
	}
	return files.Read(path, maxCredentials)
}

// credentials returns the credentials in a file of NATS' credentials, or with
// User's password. The file is read again for each connection, because it may
// have been renewed.
func credentials(path string) (nats.Option, error) {
	b, err := readOwn(path)
	if err != nil {
		return nil, err
	}
	if bytes.Contains(b, []byte("-----BEGIN NATS USER JWT-----")) {
		return nats.UserCredentials(path), nil
	}
	if _, err := Password(path); err != nil {
		return nil, err
	}
	return nats.UserInfoHandler(func() (string, string) {
		pass, _ := Password(path) // the server rejects an empty one
		return User, pass
	}), nil
}

// dialer dials until its context ends.
type dialer struct{ ctx context.Context }

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) {
	nd := net.Dialer{Timeout: connectTime}
	return nd.DialContext(d.ctx, network, address)
}

// closeTime is how long Close waits for the other ends of connections.
const closeTime = 2 * time.Second

// Close tells the other ends of all connections that they are closed, and
// disconnects.
func (n *Network) Close() {
	n.end()
	n.mu.Lock()
	cs := make([]*Conn, 0, len(n.conns))
	for c := range n.conns {
		cs = append(cs, c)
	}
	n.mu.Unlock()
	over := make(chan struct{})
	t := time.AfterFunc(closeTime, func() { close(over) })
	defer t.Stop()
	for _, c := range cs {
		_ = c.Close()
	}
	for _, c := range cs {
		c.wait(over)
	}
	if n.nc.IsConnected() {
		_ = n.nc.FlushTimeout(closeTime)
	}
	n.nc.Close()
	for _, c := range cs {
		c.mu.Lock()
		c.fail(net.ErrClosed)
		c.mu.Unlock()
		<-c.ended
	}
}
