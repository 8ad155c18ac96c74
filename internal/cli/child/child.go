package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// Daemon is a guestprobed that we have started. Its methods may be called from any
// goroutine.
type Daemon struct {
	PID    int
	proc   *os.Process
	exited chan struct{}
	err    error // of its end; valid when exited is closed
}

// Options say how it runs.
type Options struct {
	Program string // path of guestprobed
	Args    []string
	Env     []string  // nil: ours
	Dir     string    // "": ours
	Output  io.Writer // for what it writes to its standard streams
}

// ErrNotReady is wrapped by Start's error about a daemon that has ended before it
// served.
var ErrNotReady = errors.New("guestprobed did not start")

// Start starts guestprobed and waits until it serves, or has ended, or ctx is over.
// Ctrl-C, which goes to the whole foreground group, is for us: it does not end the
// daemon, but it does not outlive us. When ctx is over first, the daemon is
// returned beside the error, for whoever wants to know what it is doing.
func Start(ctx context.Context, o Options) (*Daemon, error) {
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	cmd := exec.Command(o.Program, append(o.Args, "--ready-fd", "3")...)
	cmd.Env, cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = o.Env, o.Dir, o.Output, o.Output, []*os.File{tell}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	err = cmd.Start()
	tell.Close()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Program, err)
	}
	d := &Daemon{PID: cmd.Process.Pid, proc: cmd.Process, exited: make(chan struct{})}
	go func() {
		d.err = cmd.Wait()
		close(d.exited)
	}()
	// Its end closes the pipe as well.
	stop := context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Now()) })
	defer stop()
	line, err := io.ReadAll(ready)
	switch {
	case strings.HasPrefix(string(line), "ready "):
		return d, nil
	case err != nil:
		return d, fmt.Errorf("guestprobed is not ready: %w", context.Cause(ctx))
	}
	return nil, fmt.Errorf("%w: %w", ErrNotReady, d.Wait())
}

// Exited returns a channel that is closed when the daemon has ended.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// Wait returns when the daemon has ended, with nil for exit status 0.
func (d *Daemon) Wait() error {
	<-d.exited
	return d.err
}

// Signal sends a signal; to a daemon that has ended it does nothing.
func (d *Daemon) Signal(s os.Signal) error {
	if err := d.proc.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// ErrBusy is returned by End when the daemon has not ended in time.
var ErrBusy = errors.New("guestprobed does not end")

// End sends a signal and waits for the end, whose error it returns, until ctx is
// over.
func (d *Daemon) End(ctx context.Context, s os.Signal) error {
	if err := d.Signal(s); err != nil {
		return err
	}
	select {
	case <-d.exited:
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("%w behind %v: %w", ErrBusy, s, context.Cause(ctx))
	}
}

// Kill ends the daemon as it is, and waits.
func (d *Daemon) Kill() {
	_ = d.proc.Kill()
	<-d.exited
}
