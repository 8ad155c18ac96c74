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

// Daemon is a guestprobed that this process has started. Its methods can be called from any
// goroutine.
type Daemon struct {
	PID    int
	proc   *os.Process
	exited chan struct{}
	err    error // result of its exit; valid when exited is closed
}

// Options configure Start.
type Options struct {
	Program string // path of guestprobed
	Args    []string
	Env     []string  // nil: this process's environment
	Dir     string    // "": this process's directory
	Output  io.Writer // gets the daemon's standard output and standard error
}

// ErrNotReady is wrapped by Start's error if the daemon exited before it was
// ready.
var ErrNotReady = errors.New("guestprobed did not start")

// Start starts guestprobed and waits until it is ready or has exited, or ctx ends.
// The daemon has its own process group, so Ctrl-C does not reach it, but it gets
// SIGTERM when this process dies. If ctx ends first, Start returns the daemon together
// with the error, so that the caller can see what it is doing.
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
	// The daemon's exit closes the pipe too.
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

// Exited returns a channel that is closed when the daemon has exited.
func (d *Daemon) Exited() <-chan struct{} { return d.exited }

// Wait waits until the daemon has exited. It returns nil for exit status 0.
func (d *Daemon) Wait() error {
	<-d.exited
	return d.err
}

// Signal sends a signal. It does nothing if the daemon has exited.
func (d *Daemon) Signal(s os.Signal) error {
	if err := d.proc.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// ErrBusy is returned by End if the daemon did not exit in time.
var ErrBusy = errors.New("guestprobed does not end")

// End sends a signal, waits until the daemon has exited or ctx ends, and returns
// Wait's error or ErrBusy.
func (d *Daemon) End(ctx context.Context, s os.Signal) error {
	if err := d.Signal(s); err != nil {
		return err
	}
	select {
	case <-d.exited:
		return d.err
	case <-ctx.Done():
		return fmt.Errorf("%w after %v: %w", ErrBusy, s, context.Cause(ctx))
	}
}

// Kill kills the daemon and waits for its exit.
func (d *Daemon) Kill() {
	_ = d.proc.Kill()
	<-d.exited
}
