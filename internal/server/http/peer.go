package http

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/user"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// peer is the client of a connection, as the kernel knew it when the connection
// was made (SO_PEERCRED, unix(7)).
type peer struct {
	PID int32
	UID uint32
	GID uint32
	err error
}

// access says who may use the socket, in addition to its file mode.
type access struct {
	self uint32   // our own user
	uids []uint32 // allowed by --allow-uid
	gid  int      // of --group, negative without the flag
	// groups returns the groups of a user; a variable for tests.
	groups func(uid uint32) []string
}

// check returns nil for a peer that may use the socket.
func (a access) check(p peer) error {
	if p.err != nil {
		return fmt.Errorf("peer credentials: %w", p.err)
	}
	switch {
	case p.UID == 0, p.UID == a.self, slices.Contains(a.uids, p.UID):
		return nil
	case a.gid >= 0 && (p.GID == uint32(a.gid) || slices.Contains(a.groups(p.UID), strconv.Itoa(a.gid))):
		return nil
	}
	return &api.Error{
		Code: api.CodeForbidden, Errno: "EPERM",
		Message: fmt.Sprintf("user %d may not use this daemon", p.UID),
		Detail:  "it serves its own user, root, and whom --allow-uid and --group name",
	}
}

// userGroups returns the groups of uid in the user database.
func userGroups(uid uint32) []string {
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return nil
	}
	ids, err := u.GroupIds()
	if err != nil {
		return nil
	}
	return ids
}

type peerKey struct{}

// withPeer asks the kernel for the client's identity, once per connection.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, peerOf(c))
}

func peerOf(c net.Conn) peer {
	if _, ok := c.(*fleet.Conn); ok {
		// A client of the fleet has the daemon's own rights. The fleet's server does not
		// say who the client is.
		return peer{UID: uint32(os.Geteuid())}
	}
	uc, ok := c.(*net.UnixConn)
	if !ok {
		return peer{err: fmt.Errorf("not a unix socket: %T", c)}
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return peer{err: err}
	}
	var cred *unix.Ucred
	if cerr := raw.Control(func(fd uintptr) {
		cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); cerr != nil {
		return peer{err: cerr}
	}
	if err != nil {
		return peer{err: err}
	}
	return peer{PID: cred.Pid, UID: cred.Uid, GID: cred.Gid}
}

// requestPeer returns the peer of the request's connection.
func requestPeer(r *http.Request) peer {
	p, ok := r.Context().Value(peerKey{}).(peer)
	if !ok {
		return peer{err: fmt.Errorf("connection without credentials")}
	}
	return p
}
