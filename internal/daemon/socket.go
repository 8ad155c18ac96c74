package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/api"
)

// Reasons why the socket cannot be had.
var (
	ErrSocketLive      = errors.New("another daemon serves this socket")
	ErrSocketNotSocket = errors.New("exists and is not a socket")
)

// socket is a listening unix socket together with the lock that makes it ours.
type socket struct {
	listener net.Listener
	path     string
	lock     *os.File
	stopped  sync.Once
}

// listen takes the lock file beside path, replaces a socket that nobody
// answers on, and listens with mode 0660, owned by group gid unless that is
// negative.
//
// Only the holder of the lock removes or binds the path, so two daemons that
// start at once cannot take each other's socket for stale. The lock file stays
// when the daemon ends: whoever removed it could remove one that a third
// daemon has just locked.
func listen(ctx context.Context, path string, gid int) (*socket, error) {
	path, err := api.ParseSocket(path)
	if err != nil {
		return nil, err
	}
	// Before the lock, which would be left beside a file that is none of ours.
	if _, err := socketAt(path); err != nil {
		return nil, err
	}
	lock, err := lockFile(path + ".lock")
	if err != nil {
		return nil, err
	}
	s := &socket{path: path, lock: lock}
	if err := s.clear(ctx); err != nil {
		lock.Close()
		return nil, err
	}
	if err := s.bind(ctx, gid); err != nil {
		lock.Close()
		return nil, err
	}
	return s, nil
}

// lockFile opens and locks the file, and writes our process number into it for
// the message that the next one gives.
func lockFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock file: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		defer f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			var pid [16]byte
			n, _ := f.Read(pid[:])
			return nil, fmt.Errorf("socket %s: %w (process %s)", strings.TrimSuffix(path, ".lock"), ErrSocketLive, strings.TrimSpace(string(pid[:n])))
		}
		return nil, fmt.Errorf("lock file %s: %w", path, err)
	}
	if err := f.Truncate(0); err == nil {
		// The content only serves that message; a full disk is no reason not to
		// start.
		_, _ = fmt.Fprintf(f, "%d\n", os.Getpid())
	}
	return f, nil
}

// socketAt reports whether there is a socket at path; anything else that is
// there is an error.
func socketAt(path string) (bool, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return false, fmt.Errorf("socket %s: %w", path, ErrSocketNotSocket)
	}
	return true, nil
}

// clear removes a stale socket at the path.
func (s *socket) clear(ctx context.Context) error {
	if there, err := socketAt(s.path); !there {
		return err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", s.path)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("socket %s: %w", s.path, ErrSocketLive)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(s.path); err != nil {
			return fmt.Errorf("stale socket: %w", err)
		}
		return nil
	default:
		return fmt.Errorf("socket %s: %w", s.path, err)
	}
}

func (s *socket) bind(ctx context.Context, gid int) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Linux gives the new inode the mode of the unbound socket, less the
		// umask (net/unix/af_unix.c, unix_bind_bsd). So it is never more open than
		// this, whatever the umask, which belongs to the whole process.
		if cerr := c.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) }); cerr != nil {
			return cerr
		}
		return err
	}}
	ln, err := lc.Listen(ctx, "unix", s.path)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return fmt.Errorf("socket %s: %w", s.path, err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	s.listener = ln
	if gid >= 0 {
		err = os.Chown(s.path, -1, gid)
	}
	if err == nil {
		err = os.Chmod(s.path, 0o660)
	}
	if err != nil {
		s.stop()
		return fmt.Errorf("socket: %w", err)
	}
	return nil
}

// stop removes the socket and closes the listener: new clients learn at once
// that nobody serves it. The lock stays ours, so that nobody else can have
// bound the path in between. It may be repeated.
func (s *socket) stop() {
	s.stopped.Do(func() {
		os.Remove(s.path)
		s.listener.Close()
	})
}

// Close is stop, and gives the lock back.
func (s *socket) Close() error {
	s.stop()
	return s.lock.Close()
}

// defaultSocket returns where a daemon listens that was not told where, and
// makes the directory.
func defaultSocket(uid int, getenv func(string) string) (string, error) {
	if v := getenv(api.SocketEnv); v != "" {
		return v, nil
	}
	path, mode := api.UserSocket(getenv("XDG_RUNTIME_DIR")), fs.FileMode(0o700)
	if uid == 0 {
		path, mode = api.SystemSocket, 0o755
	}
	if path == "" {
		return "", errors.New("socket: XDG_RUNTIME_DIR is not set: say --socket PATH")
	}
	if err := os.MkdirAll(filepath.Dir(path), mode); err != nil {
		return "", fmt.Errorf("socket directory: %w", err)
	}
	return path, nil
}
