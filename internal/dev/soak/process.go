package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/internal/cli/child"
)

// process is one guestprobed.
type process struct {
	*child.Daemon
	socket string
	log    string // file of its log, JSON lines
	stderr string // file with its other output

	patience time.Duration // for its start and its end
}

// startDaemon starts guestprobed and waits until it serves.
func startDaemon(ctx context.Context, o *Options, name string, vcpus int, cmdline string) (*process, error) {
	p := &process{socket: filepath.Join(o.Dir, "s"), log: filepath.Join(o.Dir, name+".log"), stderr: filepath.Join(o.Dir, name+".stderr"), patience: o.Patience}
	out, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, p.patience, fmt.Errorf("not in %v", p.patience))
	defer cancel()
	p.Daemon, err = child.Start(ctx, child.Options{
		Program: o.Daemon,
		// The reader that does not read must hold its stream for a whole phase.
		Args: []string{"--socket", p.socket, "--vcpus", fmt.Sprint(vcpus), "--cmdline", cmdline, "--log-format", "json", "--log-file", p.log,
			"--stall-timeout", (o.Duration + o.Patience).String()},
		// A goroutine dump, if there has to be one, of all goroutines.
		Env: append(os.Environ(), "GOTRACEBACK=all"), Output: out,
	})
	switch {
	case err == nil:
		return p, nil
	case errors.Is(err, child.ErrNotReady):
		return nil, fmt.Errorf("%w: %s", err, p.lastOutput())
	case p.Daemon == nil:
		return nil, err
	}
	return nil, fmt.Errorf("%w; %s", err, p.dump())
}

// terminate sends SIGTERM and describes errors of the daemon's end, or returns
// "".
func (p *process) terminate() string {
	switch err := p.end(syscall.SIGTERM); {
	case errors.Is(err, child.ErrBusy):
		return fmt.Sprintf("%v; %s", err, p.dump())
	case err != nil:
		return fmt.Sprintf("ended with %v: %s", err, p.lastOutput())
	}
	if _, err := os.Lstat(p.socket); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Sprintf("has not removed its socket (%v)", err)
	}
	return ""
}

// end sends a signal and waits for the end.
func (p *process) end(s os.Signal) error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), p.patience, fmt.Errorf("not in %v", p.patience))
	defer cancel()
	return p.End(ctx, s)
}

// running reports whether the daemon has not ended yet.
func (p *process) running() bool {
	select {
	case <-p.Exited():
		return false
	default:
		return true
	}
}

// dump makes a daemon that does not answer write the stacks of its goroutines,
// and ends it: SIGQUIT does both (package runtime).
func (p *process) dump() string {
	if errors.Is(p.end(syscall.SIGQUIT), child.ErrBusy) {
		p.Kill()
	}
	return "its goroutines are in " + p.stderr
}

// lastOutput returns the end of the daemon's output other than its log.
func (p *process) lastOutput() string {
	b, err := os.ReadFile(p.stderr)
	if err != nil {
		return err.Error()
	}
	return string(bytes.TrimSpace(b[max(0, len(b)-2000):]))
}

// badLine are lines that a healthy daemon never writes: its own errors, a
// panic in a request, the runtime's death, the race detector's report.
var badLine = regexp.MustCompile(`"level":"ERROR"|^panic: |^fatal error: |WARNING: DATA RACE|^unexpected fault address|^SIG[A-Z]+: `)

// complaints returns at most 5 bad lines of the daemon's log and its other
// output.
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

// hasLogLine reports whether the log has a line with this message.
func (p *process) hasLogLine(msg string) (bool, error) {
	b, err := os.ReadFile(p.log)
	return bytes.Contains(b, []byte(`"msg":"`+msg+`"`)), err
}
