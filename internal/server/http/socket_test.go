package http

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/files"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func TestListen(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "s")
	s, err := listen(ctx, path, -1, nil)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Lstat(path)
	if err != nil || st.Mode() != fs.ModeSocket|0o660 {
		t.Errorf("mode %v, %v, want a socket with 0660", st.Mode(), err)
	}

	_, err = listen(ctx, path, -1, nil)
	if want := fmt.Sprintf("socket %s: another daemon serves this socket (process %d): "+cureSocketLive, path, os.Getpid()); err == nil || err.Error() != want || !errors.Is(err, errSocketLive) {
		t.Errorf("second daemon: %v, want %s", err, want)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first one was disturbed: %v", err)
	} else {
		c.Close()
	}

	s.stop()
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left: %v", err)
	}
	if _, err := listen(ctx, path, -1, nil); !errors.Is(err, errSocketLive) {
		t.Errorf("between stop and Close: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path + ".lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the lock is left: %v", err)
	}
	again, err := listen(ctx, path, -1, nil)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	again.Close()
}

// TestListenTogether: of many that start at once, again and again, one at a time
// has the socket, although the lock's file comes and goes.
func TestListenTogether(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	var serving, rounds atomic.Int32
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for rounds.Load() < 200 && !t.Failed() {
				s, err := listen(t.Context(), path, -1, nil)
				if errors.Is(err, errSocketLive) {
					runtime.Gosched()
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				if serving.Add(1) != 1 {
					t.Error("two have the socket")
				}
				if _, err := os.Lstat(path); err != nil {
					t.Errorf("another one has removed our socket: %v", err)
				}
				rounds.Add(1)
				serving.Add(-1)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// TestListenUmask wants 0660 whatever the umask says, in both directions.
func TestListenUmask(t *testing.T) {
	for _, mask := range []int{0, 0o777} {
		dir := t.TempDir()
		old := unix.Umask(mask)
		s, err := listen(context.Background(), filepath.Join(dir, "s"), -1, nil)
		unix.Umask(old)
		if err != nil {
			t.Fatalf("umask %o: %v", mask, err)
		}
		st, err := os.Lstat(s.path)
		if err != nil || st.Mode().Perm() != 0o660 {
			t.Errorf("umask %o: mode %v, %v", mask, st.Mode(), err)
		}
		s.Close()
	}
}

// TestBindIsNeverOpen looks at the socket between bind and chmod, under an open
// umask.
func TestBindIsNeverOpen(t *testing.T) {
	old := unix.Umask(0)
	defer unix.Umask(old)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Fchmod(fd, 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v: bind does not take the mode of the unbound socket", st.Mode(), err)
	}
}

func TestListenReplacesStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false)
	ln.Close() // as a daemon that was killed leaves it
	s, err := listen(context.Background(), path, -1, nil)
	if err != nil {
		t.Fatalf("stale socket: %v", err)
	}
	s.Close()
}

func TestListenRefuses(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	live := filepath.Join(dir, "live")
	ln, err := net.Listen("unix", live)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc/passwd", link+".lock"); err != nil {
		t.Fatal(err)
	}
	hard, pipe := filepath.Join(dir, "hard"), filepath.Join(dir, "pipe")
	if err := errors.Join(os.Link(file, hard+".lock"), unix.Mkfifo(pipe+".lock", 0o600)); err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(dir, strings.Repeat("x", api.MaxSocketPath))
	for _, tc := range []struct {
		name, path string
		is         error
		text       string
	}{
		{"file", file, errSocketNotSocket, "exists and is not a socket"},
		{"directory", dir, errSocketNotSocket, "exists and is not a socket"},
		{"other program", live, errSocketLive, "another daemon serves this socket"},
		{"no directory", filepath.Join(dir, "no", "s"), fs.ErrNotExist, "lock file: open " + filepath.Join(dir, "no", "s.lock")},
		{"lock is a link", link, files.ErrForeignLock, "a link, is not a file of ours: remove it"},
		{"lock is a second name", hard, files.ErrForeignLock, "lock file " + hard + ".lock: is not a file of ours: remove it"},
		{"lock is a pipe", pipe, files.ErrForeignLock, "is not a file of ours"},
		{"too long", long, syscall.ENAMETOOLONG, fmt.Sprintf("is %d bytes long, a unix socket's path has at most 107", len(long))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := listen(context.Background(), tc.path, -1, nil)
			if err == nil {
				s.Close()
				t.Fatal("was accepted")
			}
			if !errors.Is(err, tc.is) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("error %v, want %v with %q", err, tc.is, tc.text)
			}
		})
	}
	if _, err := os.Lstat(file + ".lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a lock is left beside a file that is no socket: %v", err)
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "precious" {
		t.Errorf("the file was touched: %q, %v", b, err)
	}
}

func TestDefaultSocket(t *testing.T) {
	dir := t.TempDir()
	env := func(vars map[string]string) func(string) string { return func(k string) string { return vars[k] } }
	for _, tc := range []struct {
		name string
		vars map[string]string
		want string
	}{
		{"environment", map[string]string{api.SocketEnv: "/x", "XDG_RUNTIME_DIR": dir}, "/x"},
		{"user", map[string]string{"XDG_RUNTIME_DIR": dir}, dir + "/guestprobed/guestprobed.sock"},
		{"nothing", nil, ""},
	} {
		got, err := defaultSocket(1000, env(tc.vars))
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("%s: %q, %v; want %q", tc.name, got, err, tc.want)
		}
	}
	if st, err := os.Stat(filepath.Join(dir, "guestprobed")); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", st, err)
	}
}
