package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/daemon"
)

// stopTime is how long a daemon of ours may take to put everything back.
const stopTime = 15 * time.Second

// ownDaemon is a daemon that this command has started for itself.
type ownDaemon struct {
	what   string // how it runs, for people
	socket string
	dir    string

	cancel func()     // asks it to stop
	exited chan error // its end, nil for status 0
	log    *tail
}

// startDaemon starts guestprobed on a temporary socket and waits until it
// serves: the one beside our own binary, else the one in PATH, else one inside
// this process.
func startDaemon(ctx context.Context, r *command.Run, verbose bool, args ...string) (_ *ownDaemon, err error) {
	dir, err := os.MkdirTemp("", "guestprobe-")
	if err != nil {
		return nil, err
	}
	d := &ownDaemon{dir: dir, socket: filepath.Join(dir, "s"), exited: make(chan error, 1), log: &tail{}}
	defer func() {
		if err != nil {
			os.RemoveAll(dir)
		}
	}()
	if _, err := api.ParseSocket(d.socket); err != nil {
		return nil, fmt.Errorf("temporary directory: %w: set TMPDIR to a shorter one", err)
	}
	var log io.Writer = d.log
	if verbose {
		log = io.MultiWriter(d.log, r.Stderr)
	}
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	args = append(args, "--socket", d.socket)
	if bin, ferr := command.Find("guestprobed"); ferr == nil {
		err = d.exec(bin, append(args, "--ready-fd", "3"), log, tell)
	} else {
		err = d.inProcess(args, log, tell, r.Getenv)
	}
	tell.Close()
	if err != nil {
		return nil, err
	}
	if err := d.await(ctx, ready); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

func (d *ownDaemon) exec(bin string, args []string, log io.Writer, ready *os.File) error {
	cmd := exec.Command(bin, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{ready}
	// Ctrl-C goes to the whole foreground group; the daemon is stopped by us,
	// after its last client is done. It must not outlive us.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start guestprobed: %w", err)
	}
	d.what = fmt.Sprintf("guestprobed (process %d)", cmd.Process.Pid)
	d.cancel = func() { _ = cmd.Process.Signal(syscall.SIGTERM) }
	go func() { d.exited <- cmd.Wait() }()
	return nil
}

func (d *ownDaemon) inProcess(args []string, log io.Writer, ready *os.File, getenv func(string) string) error {
	// A descriptor has one owner: this one will be the daemon's.
	fd, err := unix.FcntlInt(ready.Fd(), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return err
	}
	args = append(args, "--ready-fd", strconv.Itoa(fd))
	ctx, cancel := context.WithCancel(context.Background())
	d.what, d.cancel = "guestprobed (in this process)", cancel
	go func() {
		if code := daemon.Program().Run(ctx, command.Env{Args: args, Stdout: log, Stderr: log, Getenv: getenv}); code != 0 {
			d.exited <- fmt.Errorf("exit status %d", code)
			return
		}
		d.exited <- nil
	}()
	return nil
}

// await waits for the line on ready that says that clients can connect.
func (d *ownDaemon) await(ctx context.Context, ready *os.File) error {
	line := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(ready).ReadString('\n')
		line <- err
	}()
	select {
	case err := <-line:
		if err == nil {
			return nil
		}
		// The other end is closed: the daemon is about to end.
		return d.failed(<-d.exited)
	case err := <-d.exited:
		return d.failed(err)
	case <-ctx.Done():
		return fmt.Errorf("guestprobed is not ready: %w", context.Cause(ctx))
	}
}

// failed explains, with what the daemon said, why it ended.
func (d *ownDaemon) failed(err error) error {
	d.exited <- nil // for stop
	if said := strings.TrimSpace(d.log.String()); said != "" {
		return fmt.Errorf("guestprobed did not start: %v; it said:\n%s", err, said)
	}
	return fmt.Errorf("guestprobed did not start: %w", err)
}

// stop ends the daemon and removes its directory.
func (d *ownDaemon) stop() error {
	defer os.RemoveAll(d.dir)
	d.cancel()
	select {
	case err := <-d.exited:
		if err != nil {
			return fmt.Errorf("stop guestprobed: %w; its log ends with:\n%s", err, strings.TrimSpace(d.log.String()))
		}
		return nil
	case <-time.After(stopTime):
		return fmt.Errorf("guestprobed did not stop within %v; its log ends with:\n%s", stopTime, strings.TrimSpace(d.log.String()))
	}
}

// tail keeps the end of what is written to it.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// maxTail is how much a tail keeps, in bytes.
const maxTail = 8 << 10

// Write keeps p, and drops what is too old.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p)
	if over := t.buf.Len() - maxTail; over > 0 {
		t.buf.Next(over)
	}
	return len(p), nil
}

// String returns what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.buf.String()
}
