package soak

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// process is one guestprobed.
type process struct {
	cmd    *exec.Cmd
	socket string
	log    string // file of its log, JSON lines
	stderr string // file of what it wrote besides
	exited chan struct{}
	err    error // of its end; valid when exited is closed

	patience time.Duration // for its start and its end
}

// startDaemon starts guestprobed and waits until it serves.
func startDaemon(ctx context.Context, o *Options, name string, vcpus int, cmdline string) (*process, error) {
	p := &process{
		socket: filepath.Join(o.Dir, "s"), log: filepath.Join(o.Dir, name+".log"), stderr: filepath.Join(o.Dir, name+".stderr"),
		exited: make(chan struct{}), patience: o.Patience,
	}
	out, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	ready, tell, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer ready.Close()
	p.cmd = exec.Command(o.Daemon, "--socket", p.socket, "--vcpus", fmt.Sprint(vcpus), "--cmdline", cmdline,
		"--log-format", "json", "--log-file", p.log, "--ready-fd", "3")
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.ExtraFiles = out, out, []*os.File{tell}
	// A goroutine dump, if there has to be one, of all goroutines. Ctrl-C is for
	// us; we stop the daemon, and it does not outlive us.
	p.cmd.Env = append(os.Environ(), "GOTRACEBACK=all")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	err = p.cmd.Start()
	tell.Close()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", o.Daemon, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.exited)
	}()
	line := make(chan error, 1)
	go func() {
		_, err := bufio.NewReader(ready).ReadString('\n')
		line <- err
	}()
	timeout := time.NewTimer(p.patience)
	defer timeout.Stop()
	select {
	case err = <-line:
		if err == nil {
			return p, nil
		}
		<-p.exited
		err = fmt.Errorf("%w: %s", p.err, p.said())
	case <-timeout.C:
		err = fmt.Errorf("not ready in %v; %s", p.patience, p.dump())
	case <-ctx.Done():
		p.kill()
		err = context.Cause(ctx)
	}
	return nil, fmt.Errorf("guestprobed did not start: %w", err)
}

// terminate sends SIGTERM and says what was wrong with the end, or "".
func (p *process) terminate() string {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err.Error()
	}
	timeout := time.NewTimer(p.patience)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		return fmt.Sprintf("does not end within %v of SIGTERM; %s", p.patience, p.dump())
	}
	if p.err != nil {
		return fmt.Sprintf("ended with %v: %s", p.err, p.said())
	}
	if _, err := os.Lstat(p.socket); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("has left its socket behind (%v)", err)
	}
	return ""
}

// kill sends SIGKILL and waits for the end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// running reports whether the daemon has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// dump lets a daemon that does not answer write where each of its goroutines
// stands, and ends it: SIGQUIT does both (package runtime).
func (p *process) dump() string {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	timeout := time.NewTimer(p.patience)
	defer timeout.Stop()
	select {
	case <-p.exited:
	case <-timeout.C:
		p.kill()
	}
	return "its goroutines are in " + p.stderr
}

// said returns the end of what the daemon wrote beside its log.
func (p *process) said() string {
	b, err := os.ReadFile(p.stderr)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-2000):]))
}

// badLine are lines that a healthy daemon never writes: its own errors, a
// panic in a request, the runtime's death, the race detector's report.
var badLine = regexp.MustCompile(`"level":"ERROR"|^panic: |^fatal error: |WARNING: DATA RACE|^unexpected fault address|^SIG[A-Z]+: `)

// complaints returns the bad lines of the daemon's log and of what it wrote
// besides, at most 5.
func (p *process) complaints() ([]string, error) {
	var out []string
	for _, file := range []string{p.log, p.stderr} {
		b, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range bytes.Lines(b) {
			if badLine.Match(line) && len(out) < 5 {
				out = append(out, string(bytes.TrimSpace(line[:min(len(line), 1000)])))
			}
		}
	}
	return out, nil
}

// logged reports whether the log has a line with this message.
func (p *process) logged(msg string) (bool, error) {
	b, err := os.ReadFile(p.log)
	return bytes.Contains(b, []byte(`"msg":"`+msg+`"`)), err
}
