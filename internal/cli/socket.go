package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// socketPath returns the socket of the selected daemon: the one of --socket or the environment, which may be a name that ps
// shows; else the user's or the system's default socket if a daemon is there; else the socket of the only running daemon.
func (a *app) socketPath(ctx context.Context, getenv func(string) string, warn io.Writer) (string, error) {
	value, from := a.socket, "--socket"
	if value == "" {
		value, from = getenv(api.SocketEnv), api.SocketEnv
	}
	if value == "" {
		return a.usualSocket(ctx, getenv, warn)
	}
	path, err := api.ParseSocket(value)
	if err != nil {
		return "", command.Usagef("%s: %w", from, err)
	}
	if !isSocketName(path) {
		return path, nil
	}
	switch found := namedSockets(path, getenv); {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", command.Usagef("%s: %d daemons are called %q: choose %s", from, len(found), path, strings.Join(found, " or "))
	}
	if rows, err := a.locals(ctx, getenv, warn); err == nil {
		if names := runningNames(rows); len(names) > 0 {
			return "", fmt.Errorf("%w: none is called %q (%s); those that run: %s", remote.ErrUnreachable, path, from, strings.Join(names, ", "))
		}
	}
	return "", fmt.Errorf("%w: none is called %q (%s), and none runs", remote.ErrUnreachable, path, from)
}

// isSocketName reports whether the value of --socket is a name that ps shows, not a path.
func isSocketName(value string) bool {
	if strings.Contains(value, "/") {
		return false
	}
	_, err := os.Lstat(value)
	return err != nil
}

// namedSockets returns the sockets with a name in the folders of daemons' sockets.
func namedSockets(name string, getenv func(string) string) (paths []string) {
	for _, dir := range socketFolders(getenv) {
		for _, file := range []string{name + ".sock", name} {
			path := filepath.Join(dir, file)
			if st, err := os.Stat(path); err == nil && st.Mode().Type() == fs.ModeSocket && !strings.HasSuffix(path, api.GDBSuffix) {
				paths = append(paths, path)
			}
		}
	}
	return uniqueSockets(paths)
}

// usualSocket returns the socket for commands that do not select one.
func (a *app) usualSocket(ctx context.Context, getenv func(string) string, warn io.Writer) (string, error) {
	usual := []string{api.SystemSocket}
	if user := api.UserSocket(getenv("XDG_RUNTIME_DIR")); user != "" {
		usual = []string{user, api.SystemSocket}
	}
	alive := listeners()
	for _, path := range usual {
		if alive[path] && unix.Access(path, unix.W_OK) == nil {
			return path, nil
		}
	}
	// /proc/net/unix lists only the sockets of our network namespace, so query the others.
	rows, err := a.locals(ctx, getenv, warn)
	if err != nil {
		return "", err
	}
	there := slices.DeleteFunc(slices.Clone(rows), func(row localRow) bool { return !row.runs() })
	if len(there) == 0 { // prefer "access denied" to "no such socket"
		there = slices.DeleteFunc(slices.Clone(rows), func(row localRow) bool { return row.State != localRefused })
	}
	for _, path := range usual {
		if slices.ContainsFunc(there, func(row localRow) bool { return row.Socket == path }) {
			return path, nil
		}
	}
	switch len(there) {
	case 0:
		for _, path := range usual[:len(usual)-1] {
			if _, err := os.Stat(path); err == nil {
				return path, nil
			}
		}
		return api.SystemSocket, nil
	case 1:
		return there[0].Socket, nil
	}
	return "", command.Usagef("%d daemons run on this machine (%s): choose one with -s NAME", len(there), strings.Join(runningNames(there), ", "))
}

// runs reports whether a daemon listens on the socket, or a service manager that starts one.
func (row localRow) runs() bool {
	return slices.Contains([]string{localAnswers, localHangs, localWaits}, row.State)
}

// maxShownNames is the maximum number of daemons that an error lists.
const maxShownNames = 10

// runningNames returns the names of daemons that run or deny access, at most maxShownNames.
func runningNames(rows []localRow) (names []string) {
	for _, row := range rows {
		if row.runs() || row.State == localRefused {
			names = append(names, row.Name)
		}
	}
	if n := len(names); n > maxShownNames {
		names = append(names[:maxShownNames], fmt.Sprintf("%d more", n-maxShownNames))
	}
	return names
}

// completeSockets completes --socket with the names that ps shows, without querying the daemons.
func completeSockets(_ context.Context, _ []string, prefix string) (names []string) {
	if strings.Contains(prefix, "/") {
		return nil // a file name, completed by the shell
	}
	paths, _ := (&app{}).localSockets(os.Getenv, io.Discard) // completion cannot report an error
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".sock")
		if strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, cmp.Compare[string])
	return slices.Compact(names)
}
