package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/server/fleet"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// localRow is the socket of a daemon on this machine and the daemon's state, as JSON and templates show them.
type localRow struct {
	Name     string     `json:"name"`
	Socket   string     `json:"socket"`
	State    string     `json:"state"` // answers, or why the other fields are empty
	PID      int        `json:"pid"`   // 0: unknown
	Guest    string     `json:"guest"` // the guest's state, as in guest status
	Image    string     `json:"image"`
	VCPUs    int        `json:"vcpus"`
	Probes   int        `json:"probes"`
	UptimeMS int64      `json:"uptimeMs"`
	Version  string     `json:"version"`
	Error    *api.Error `json:"error,omitempty"`

	err error
}

// States of a socket.
const (
	localAnswers = "answers"
	localHangs   = "hangs"   // accepts connections but does not answer
	localRefused = "refused" // access denied
	localGone    = "gone"    // no process listens: the daemon was killed
	localWaits   = "waits"   // a service manager listens, and starts the daemon on the first connection
	localFailed  = "failed"  // any other error
)

// maxLocals bounds how many sockets are queried, all at the same time, and maxNames how many names of a folder are read.
const (
	maxLocals = 1024
	maxNames  = 16 << 10
)

// socketsEnv names the variable with the folders of daemons' sockets, separated by colons, in place of the two default ones.
const socketsEnv = "GUESTPROBE_SOCKETS"

// socketFolders returns the folders of daemons' sockets.
func socketFolders(getenv func(string) string) []string {
	if v := getenv(socketsEnv); v != "" {
		return filepath.SplitList(v)
	}
	dirs := []string{filepath.Dir(api.SystemSocket)}
	if user := api.UserSocket(getenv("XDG_RUNTIME_DIR")); user != "" {
		dirs = append([]string{filepath.Dir(user)}, dirs...)
	}
	return dirs
}

// localSockets returns the paths of the sockets in these folders, and the path of --socket or the environment.
func (a *app) localSockets(getenv func(string) string, warn io.Writer) (paths []string, err error) {
	for _, dir := range socketFolders(getenv) {
		d, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			fmt.Fprintf(warn, "guestprobe: %v\n", err)
			continue
		}
		entries, _ := d.ReadDir(maxNames) // partial after an error
		d.Close()
		for _, e := range entries {
			if e.Type() == fs.ModeSocket && !strings.HasSuffix(e.Name(), api.GDBSuffix) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	own := a.socket
	if own == "" {
		own = getenv(api.SocketEnv)
	}
	if own != "" {
		path, err := api.ParseSocket(own)
		if err != nil {
			return nil, command.Usagef("--socket: %w", err)
		}
		if st, err := os.Stat(path); err == nil && st.Mode().Type() == fs.ModeSocket {
			if path, err = filepath.Abs(path); err != nil {
				return nil, err
			}
			paths = append(paths, path)
		}
	}
	paths = uniqueSockets(paths)
	slices.Sort(paths)
	if n := len(paths); n > maxLocals {
		fmt.Fprintf(warn, "%d sockets are too many: the first %d are asked\n", n, maxLocals)
		paths = paths[:maxLocals]
	}
	return paths, nil
}

// uniqueSockets removes paths that lead to the same socket through a link or a bind mount, and keeps the first of each.
func uniqueSockets(paths []string) []string {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	return slices.DeleteFunc(paths, func(path string) bool {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			return false // kept, so that the query reports the error
		}
		f := file{st.Dev, st.Ino}
		was := seen[f]
		seen[f] = true
		return was
	})
}

// locals queries all sockets of daemons on this machine at once, and returns their states sorted by name. It takes no longer
// than answerTime.
func (a *app) locals(ctx context.Context, getenv func(string) string, warn io.Writer) ([]localRow, error) {
	paths, err := a.localSockets(getenv, warn)
	if err != nil {
		return nil, err
	}
	limit, err := answerTime(getenv)
	if err != nil {
		return nil, err
	}
	listening := sync.OnceValue(listeners)
	rows := make([]localRow, len(paths))
	var wg sync.WaitGroup
	for i, path := range paths {
		wg.Go(func() { rows[i] = lookAt(ctx, path, limit, listening) })
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, context.Cause(ctx)
	}
	names := map[string]int{}
	for _, row := range rows {
		names[row.Name]++
	}
	for i, row := range rows {
		if names[row.Name] > 1 {
			rows[i].Name = command.Clean(row.Socket)
		}
	}
	slices.SortStableFunc(rows, func(a, b localRow) int { return fleet.CompareNames(a.Name, b.Name) })
	return rows, nil
}

// lookAt returns the state of a socket. It does not trigger socket activation.
func lookAt(ctx context.Context, path string, limit time.Duration, listening func() map[string]bool) localRow {
	row := localRow{Name: command.Clean(strings.TrimSuffix(filepath.Base(path), ".sock")), Socket: path}
	if err := unix.Access(path, unix.W_OK); errors.Is(err, unix.EACCES) {
		return row.withState(localRefused, fmt.Errorf("%w on %s: %w", remote.ErrUnreachable, path, err))
	}
	// A daemon has a lock file beside its socket; a service manager has none.
	if _, err := os.Lstat(path + api.LockSuffix); errors.Is(err, fs.ErrNotExist) && listening()[path] {
		return row.withState(localWaits, nil)
	}
	peer := 0
	c := remote.NewWithDial(path, func(ctx context.Context) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil && peer == 0 {
			peer = peerOf(conn.(*net.UnixConn))
		}
		return conn, err
	}, func() {})
	defer c.Close()
	ask, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	d, err := c.Daemon(ask)
	var g api.Guest
	if err == nil {
		g, err = c.Guest(ask)
	}
	var v api.Version
	if err == nil {
		v, err = c.Version(ask)
	}
	var wire *api.Error
	switch {
	case err == nil:
		row.PID, row.UptimeMS, row.Probes = d.PID, d.UptimeMS, d.Probes
		row.Guest, row.Image, row.VCPUs, row.Version = g.State, g.Image, g.VCPUs, v.Version
		return row.withState(localAnswers, nil)
	case ask.Err() != nil || errors.Is(err, syscall.EAGAIN): // EAGAIN: the listen queue is full
		if peer > 1 { // otherwise it is the service manager, which created the socket
			row.PID = peer
		}
		return row.withState(localHangs, notAnsweringError(path, limit))
	case errors.As(err, &wire) && wire.Code == api.CodeForbidden, errors.Is(err, fs.ErrPermission):
		return row.withState(localRefused, err)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return row.withState(localGone, err)
	}
	return row.withState(localFailed, err)
}

// withState sets the socket's state, and the error that is its reason.
func (row localRow) withState(state string, err error) localRow {
	if row.State, row.err = state, err; err != nil {
		row.Error = wireError(err)
	}
	return row
}

// peerOf returns the PID of the process at the other end of a connection, or 0.
func peerOf(c *net.UnixConn) (pid int) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// listeners returns the paths of listening sockets, from /proc/net/unix (proc_net(5)).
func listeners() map[string]bool {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil
	}
	defer f.Close()
	const accepts = "00010000" // __SO_ACCEPTCON, linux/net.h
	out := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 7 && f[3] == accepts {
			_, path, _ := strings.Cut(lines.Text(), " "+f[6]+" ") // the path may contain spaces
			out[path] = true
		}
	}
	return out
}

// localMembers returns the matching daemons on this machine that answer. Daemons that hang or fail count as failures.
func (a *app) localMembers(ctx context.Context, r *command.Run) (*members, error) {
	where, err := a.fleet.check()
	if err != nil {
		return nil, err
	}
	switch {
	case a.fleet.URL != "" || a.socket != "" || a.core != "":
		return nil, command.Usagef("--all goes with none of --fleet, --socket and --core")
	case r.Only != nil:
		return nil, command.Usagef("--all: there is one daemon here")
	}
	rows, err := a.locals(ctx, r.Getenv, r.Stderr)
	if err != nil {
		return nil, err
	}
	m := &members{}
	for _, row := range rows {
		labels := fleet.Labels{"name": row.Name, "image": filepath.Base(row.Image), "version": row.Version}
		switch row.State {
		case localAnswers:
			if where.Match(labels) {
				m.all = append(m.all, member{fleet.Daemon{Name: row.Name, Labels: labels}, remote.New(row.Socket)})
			}
		case localHangs, localFailed:
			m.missing = append(m.missing, failure{row.Name, row.err})
		case localRefused:
			r.Note("%s: %s", row.Name, command.Clean(row.err.Error()))
		}
	}
	if len(m.all) == 0 {
		if len(m.missing) > 0 {
			return nil, failures(r, m.missing)
		}
		return nil, errNoLocal
	}
	return m, nil
}
