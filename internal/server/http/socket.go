package http

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Reasons why the socket cannot be created.
var (
	errSocketLive      = errors.New("another daemon serves this socket")
	errSocketNotSocket = errors.New("exists and is not a socket")
)

// socket is a listening unix socket together with the lock that makes it ours.
type socket struct {
	listener net.Listener
	path     string
	lock     *os.File
	given    bool // a service manager has made the socket, and removes it
	stopped  sync.Once
	handed   bool // handed over to --user, who may not be allowed to remove names in its folder
}

// listen takes the lock file beside path, replaces a socket on which no daemon
// answers, and listens. The socket has mode 0660, belongs to group gid unless
// that is negative, and is open to these users as well.
//
// Only the holder of the lock removes or binds the path, so two daemons that
// start at once cannot take each other's socket for stale.
func listen(ctx context.Context, path string, gid int, uids []uint32) (*socket, error) {
	path, err := api.ParseSocket(path)
	if err != nil {
		return nil, err
	}
	// Before the lock, which would be left beside a file that is not ours.
	if _, err := socketAt(path); err != nil {
		return nil, err
	}
	s := &socket{path: path}
	if s.lock, err = lockSocket(path); err != nil {
		return nil, err
	}
	err = s.clear(ctx)
	if err == nil {
		err = s.bind(ctx, gid, uids)
	}
	if err != nil {
		return nil, errors.Join(err, s.unlock())
	}
	return s, nil
}

// cureSocketLive is what to do about errSocketLive.
const cureSocketLive = "end it and wait until it has ended, or choose another path with --socket"

// lockSocket takes the lock file beside a socket.
func lockSocket(path string) (*os.File, error) {
	f, err := files.Lock(path + api.LockSuffix)
	var locked *files.LockedError
	if errors.As(err, &locked) {
		return nil, fmt.Errorf("socket %s: %w (process %s): %s", path, errSocketLive, locked.PID, cureSocketLive)
	}
	return f, err
}

// socketAt reports whether there is a socket at path; any other file there is an
// error.
func socketAt(path string) (bool, error) {
	st, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("socket: %w", err)
	case st.Mode().Type() != fs.ModeSocket:
		return false, fmt.Errorf("socket %s: %w", path, errSocketNotSocket)
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
		return fmt.Errorf("socket %s: %w: %s", s.path, errSocketLive, cureSocketLive)
	case errors.Is(err, syscall.ECONNREFUSED):
		if err := os.Remove(s.path); err != nil {
			return fmt.Errorf("stale socket: %w", err)
		}
		return nil
	default:
		return fmt.Errorf("socket %s: %w", s.path, err)
	}
}

func (s *socket) bind(ctx context.Context, gid int, uids []uint32) error {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		// Linux gives the new inode the mode of the unbound socket, less the umask
		// (net/unix/af_unix.c, unix_bind_bsd). So it is never more open than this, whatever
		// the umask, which belongs to the whole process.
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
	if err == nil && len(uids) > 0 {
		err = letIn(s.path, uids)
	}
	if err != nil {
		s.stop()
		return fmt.Errorf("socket: %w", err)
	}
	return nil
}

// letIn gives these users the right to connect, by an access control list
// (acl(5), and linux/posix_acl_xattr.h for its form). If the file system has no
// such lists, it gives the right to everyone: the daemon checks the user of each
// connection anyway.
func letIn(path string, uids []uint32) error {
	const (
		userObj, user, groupObj, mask, other = 0x01, 0x02, 0x04, 0x10, 0x20

		version, rw, none, undefined = 2, 6, 0, ^uint32(0)
	)
	acl := binary.LittleEndian.AppendUint32(nil, version)
	add := func(tag, perm uint16, id uint32) {
		acl = binary.LittleEndian.AppendUint16(acl, tag)
		acl = binary.LittleEndian.AppendUint16(acl, perm)
		acl = binary.LittleEndian.AppendUint32(acl, id)
	}
	add(userObj, rw, undefined)
	for _, uid := range slices.Compact(slices.Sorted(slices.Values(uids))) {
		add(user, rw, uid)
	}
	add(groupObj, rw, undefined)
	add(mask, rw, undefined)
	add(other, none, undefined)
	err := unix.Setxattr(path, "system.posix_acl_access", acl, 0)
	if errors.Is(err, unix.ENOTSUP) {
		return os.Chmod(path, 0o666)
	}
	return err
}

// stop removes the socket and closes the listener: new clients learn at once
// that the daemon is gone. It keeps the lock, so that no other daemon can have
// bound the path in between. It may be repeated.
func (s *socket) stop() {
	s.stopped.Do(func() {
		if !s.given {
			os.Remove(s.path)
		}
		s.listener.Close()
	})
}

// hiddenDir returns the first directory on the way to path that not everybody may
// pass, or "".
func hiddenDir(path string) string {
	path, err := filepath.Abs(path)
	if err != nil {
		return ""
	}
	for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
		switch st, err := os.Stat(dir); {
		case err != nil:
			return ""
		case st.Mode().Perm()&0o001 == 0:
			return dir
		case dir == filepath.Dir(dir):
			return ""
		}
	}
}

// unlock removes the lock's file, if it is still ours, and releases the lock.
func (s *socket) unlock() error {
	if s.lock == nil {
		return nil
	}
	err := os.Remove(s.path + api.LockSuffix)
	if s.handed && errors.Is(err, fs.ErrPermission) {
		err = nil // the next daemon takes over both
	}
	return errors.Join(err, s.lock.Close())
}

// Close stops the socket and releases the lock.
func (s *socket) Close() error {
	s.stop()
	return s.unlock()
}

// defaultSocket returns where a daemon listens by default, and creates the
// directory.
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
