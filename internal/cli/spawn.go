package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/internal/cli/child"
	"github.com/guestprobe/guestprobe/internal/command"
	daemon "github.com/guestprobe/guestprobe/internal/server/http"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// stopTime is how long a daemon that we started may take to restore the guest and stop, if answerTime is not longer.
const stopTime = 15 * time.Second

// ownDaemon is a daemon that this command has started for itself.
type ownDaemon struct {
	what   string // how it runs, for messages
	socket string
	dir    string

	owner *os.File // its lock shows that we are alive

	end func() error // stops it and returns its error
	log *tail
}

// startDaemon starts guestprobed on a temporary socket and waits until it
// accepts connections. It uses the guestprobed beside our own binary, else the one
// in PATH, else it runs the daemon in this process.
func startDaemon(ctx context.Context, r *command.Run, verbose bool, args ...string) (_ *ownDaemon, err error) {
	limit, err := answerTime(r.Getenv)
	if err != nil {
		return nil, err
	}
	clearStale()
	dir, err := os.MkdirTemp("", "guestprobe-")
	if err != nil {
		return nil, err
	}
	owner, err := lockDir(dir)
	if err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	d := &ownDaemon{owner: owner, dir: dir, socket: filepath.Join(dir, "s"), log: &tail{}}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
			owner.Close()
		}
	}()
	if _, err := api.ParseSocket(d.socket); err != nil {
		return nil, fmt.Errorf("temporary directory: %w: set TMPDIR to a shorter one", err)
	}
	var log io.Writer = d.log
	if verbose {
		log = io.MultiWriter(d.log, r.Stderr)
	}
	args = append(args, "--socket", d.socket)
	if bin, ferr := command.Find("guestprobed"); ferr == nil {
		err = d.exec(ctx, bin, args, log, max(limit, stopTime))
	} else {
		err = d.runInProcess(ctx, args, log, r.Getenv)
	}
	if err != nil {
		if said := strings.TrimSpace(d.log.String()); said != "" {
			err = fmt.Errorf("%w; it said:\n%s", err, said)
		}
		return nil, err
	}
	return d, nil
}

// ownerName is the file in the daemon's folder that its starter keeps locked.
const ownerName = "owner"

// lockDir locks a daemon's folder for the lifetime of this process.
func lockDir(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, ownerName), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	return f, nil
}

// clearStale removes the folders of killed processes of this user. Their locks are free, and their daemons have ended with
// them (PR_SET_PDEATHSIG).
func clearStale() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), "guestprobe-*")) // the pattern is valid
	for _, dir := range dirs {
		st, err := os.Lstat(dir)
		if err != nil || !st.IsDir() || int(st.Sys().(*syscall.Stat_t).Uid) != os.Geteuid() {
			continue
		}
		f, err := os.OpenFile(filepath.Join(dir, ownerName), os.O_RDWR|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue // not such a folder, or not locked yet
		}
		// A new folder is not locked at first.
		if st, err := f.Stat(); err == nil && time.Since(st.ModTime()) > staleTime && syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			os.RemoveAll(dir)
		}
		f.Close()
	}
}

// staleTime is the minimum age of a folder to be removed.
const staleTime = 10 * time.Second

// exec starts the daemon as a process. limit is how long it may take to stop.
func (d *ownDaemon) exec(ctx context.Context, bin string, args []string, log io.Writer, limit time.Duration) error {
	c, err := child.Start(ctx, child.Options{Program: bin, Args: args, Output: log})
	if err != nil {
		if c != nil {
			c.Kill()
		}
		return err
	}
	d.what = fmt.Sprintf("guestprobed (process %d)", c.PID)
	d.end = func() error {
		ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("not within %v", limit))
		defer cancel()
		return c.End(ctx, syscall.SIGTERM)
	}
	return nil
}

// runInProcess runs the daemon in this process.
func (d *ownDaemon) runInProcess(ctx context.Context, args []string, log io.Writer, getenv func(string) string) (err error) {
	d.what = "guestprobed (in this process)"
	if d.end, err = daemon.Start(ctx, args, log, getenv, Monitor); err != nil {
		return fmt.Errorf("%w: %w", child.ErrNotReady, err)
	}
	return nil
}

// stop stops the daemon and removes its folder.
func (d *ownDaemon) stop() error {
	defer func() {
		os.RemoveAll(d.dir)
		d.owner.Close()
	}()
	if err := d.end(); err != nil {
		return fmt.Errorf("stop guestprobed: %w; its log ends with:\n%s", err, strings.TrimSpace(d.log.String()))
	}
	return nil
}

// tail is a writer that keeps only the last bytes.
type tail struct {
	most int // bytes; 0: maxTail

	mu  sync.Mutex
	buf bytes.Buffer
	cut bool // earlier bytes were dropped
}

// maxTail is the default number of bytes that a tail keeps.
const maxTail = 8 << 10

// Write appends p and drops the oldest bytes.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - cmp.Or(t.most, maxTail); over > 0 {
		t.buf.Next(over)
		t.cut = true
	}
	return len(p), nil
}

// String returns the last bytes.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}

// bytes returns the last bytes.
func (t *tail) bytes() []byte { return []byte(t.String()) }

// say appends formatted text.
func (t *tail) say(format string, args ...any) { fmt.Fprintf(t, format, args...) }
