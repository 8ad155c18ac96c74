package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
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

// localRow is a socket of a daemon on this machine, and what was learned there, as JSON and templates have it.
type localRow struct {
	Name     string     `json:"name"`
	Socket   string     `json:"socket"`
	State    string     `json:"state"` // answers, or why nothing more is known
	PID      int        `json:"pid"`   // 0: not known
	Guest    string     `json:"guest"` // its state, as guest status has it
	Image    string     `json:"image"`
	VCPUs    int        `json:"vcpus"`
	Probes   int        `json:"probes"`
	UptimeMS int64      `json:"uptimeMs"`
	Version  string     `json:"version"`
	Error    *api.Error `json:"error,omitempty"`

	err error
}

// What may be at a socket.
const (
	localAnswers = "answers"
	localHangs   = "hangs"   // connections are taken, and no request is answered
	localRefused = "refused" // we may not ask
	localGone    = "gone"    // nobody listens: its daemon was killed
	localWaits   = "waits"   // a service manager listens, and starts the daemon for the first who comes
	localFailed  = "failed"  // it answers something else
)

// maxLocals bounds how many sockets are asked, all at a time, and how many names of a folder are read.
const (
	maxLocals = 1024
	maxNames  = 16 << 10
)

// socketsEnv names the folders with daemons' sockets, with colons between, in place of the usual two.
const socketsEnv = "GUESTPROBE_SOCKETS"

// socketFolders are where daemons' sockets are.
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

// localSockets returns the paths of daemons' sockets: those of the usual folders, and that of --socket or the environment.
func (a *app) localSockets(r *command.Run) (paths []string, err error) {
	for _, dir := range socketFolders(r.Getenv) {
		d, err := os.Open(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			r.Note("guestprobe: %v", err)
			continue
		}
		entries, _ := d.ReadDir(maxNames) // what could be read
		d.Close()
		for _, e := range entries {
			if e.Type() == fs.ModeSocket && !strings.HasSuffix(e.Name(), api.GDBSuffix) {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
	}
	own := a.socket
	if own == "" {
		own = r.Getenv(api.SocketEnv)
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
	paths = onceEach(paths)
	slices.Sort(paths)
	if n := len(paths); n > maxLocals {
		r.Note("%d sockets are too many: the first %d are asked", n, maxLocals)
		paths = paths[:maxLocals]
	}
	return paths, nil
}

// onceEach returns of paths to one socket, by a link or a folder that is mounted twice, the first.
func onceEach(paths []string) []string {
	type file struct{ dev, ino uint64 }
	seen := map[file]bool{}
	return slices.DeleteFunc(paths, func(path string) bool {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			return false // it is asked, and told
		}
		f := file{st.Dev, st.Ino}
		was := seen[f]
		seen[f] = true
		return was
	})
}

// locals asks at all sockets of this machine's daemons at once, and returns what they are, by their names. It takes no
// longer than answerTime says, whatever is there.
func (a *app) locals(ctx context.Context, r *command.Run) ([]localRow, error) {
	paths, err := a.localSockets(r)
	if err != nil {
		return nil, err
	}
	limit, err := answerTime(r.Getenv)
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

// lookAt finds out who is at a socket, without starting anybody.
func lookAt(ctx context.Context, path string, limit time.Duration, listening func() map[string]bool) localRow {
	row := localRow{Name: command.Clean(strings.TrimSuffix(filepath.Base(path), ".sock")), Socket: path}
	if err := unix.Access(path, unix.W_OK); errors.Is(err, unix.EACCES) {
		return row.is(localRefused, fmt.Errorf("%w on %s: %w", remote.ErrUnreachable, path, err))
	}
	// A daemon has a lock beside its socket, a service manager has none.
	if _, err := os.Lstat(path + api.LockSuffix); errors.Is(err, fs.ErrNotExist) && listening()[path] {
		return row.is(localWaits, nil)
	}
	peer := 0
	c := remote.Of(path, func(ctx context.Context) (net.Conn, error) {
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
		return row.is(localAnswers, nil)
	case ask.Err() != nil || errors.Is(err, syscall.EAGAIN): // EAGAIN: no more connections wait to be taken
		if peer > 1 { // else it is the service manager, which has made the socket
			row.PID = peer
		}
		return row.is(localHangs, notAnswering(path, limit))
	case errors.As(err, &wire) && wire.Code == api.CodeForbidden, errors.Is(err, fs.ErrPermission):
		return row.is(localRefused, err)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return row.is(localGone, err)
	}
	return row.is(localFailed, err)
}

// is says what there is at the socket, and why it is no more.
func (row localRow) is(state string, err error) localRow {
	if row.State, row.err = state, err; err != nil {
		row.Error = onWire(err)
	}
	return row
}

// peerOf returns the process at the other end of a connection, or 0.
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

// listeners returns the paths of sockets on which somebody listens, as far as the kernel says so (proc_net(5), unix).
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
			_, path, _ := strings.Cut(lines.Text(), " "+f[6]+" ") // the path may have spaces
			out[path] = true
		}
	}
	return out
}

// localMembers are the daemons of this machine that answer and are meant. One that hangs has failed what is asked of all.
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
	rows, err := a.locals(ctx, r)
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
