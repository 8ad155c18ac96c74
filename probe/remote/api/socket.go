package api

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
)

// GDBSuffix is the end of the name of the socket for debuggers, after the name of the socket
// for clients.
const GDBSuffix = ".gdb"

// LockSuffix is the end of the name of a running daemon's lock file, after the name of the socket.
const LockSuffix = ".lock"

// SocketEnv is the environment variable that names the socket for the daemon
// and for its clients.
const SocketEnv = "GUESTPROBE_SOCKET"

// SystemSocket is where a daemon run by root listens.
const SystemSocket = "/run/guestprobed/guestprobed.sock"

// MaxSocketPath is the longest path that fits into struct sockaddr_un with its
// final NUL (unix(7)).
const MaxSocketPath = 107

// UserSocket returns where a daemon run by an ordinary user listens, or "" when
// the user's session has no runtime directory.
func UserSocket(runtimeDir string) string {
	if runtimeDir == "" {
		return ""
	}
	return filepath.Join(runtimeDir, "guestprobed", "guestprobed.sock")
}

// SocketPathError is returned for a path that no unix socket can have.
type SocketPathError struct {
	Path   string
	Reason string
}

// Error names the path and its defect.
func (e *SocketPathError) Error() string {
	return fmt.Sprintf("socket path %q: %s", e.Path, e.Reason)
}

// Unwrap returns the errno that the kernel has for it.
func (e *SocketPathError) Unwrap() error {
	if len(e.Path) > MaxSocketPath {
		return syscall.ENAMETOOLONG
	}
	return syscall.EINVAL
}

// ParseSocket returns the file path in a value that a user gave: a path, or
// unix:// and a path.
func ParseSocket(value string) (string, error) {
	path := strings.TrimPrefix(value, "unix://")
	switch {
	case path == "":
		return "", &SocketPathError{path, "is empty"}
	case strings.Contains(value, "://") && path == value:
		return "", &SocketPathError{value, "only unix:// sockets are served"}
	case strings.IndexByte(path, 0) >= 0:
		return "", &SocketPathError{path, "contains a NUL byte"}
	case len(path) > MaxSocketPath:
		return "", &SocketPathError{path, fmt.Sprintf("is %d bytes long, a unix socket's path has at most %d: use a shorter one", len(path), MaxSocketPath)}
	}
	return path, nil
}
