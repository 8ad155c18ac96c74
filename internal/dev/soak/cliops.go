package soak

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

func itoa(n int) string { return strconv.Itoa(n) }

// commandOps are a client's operations that run the command line.
var commandOps = []operation{
	{"cli.attach", 16, (*worker).cliAttach},
	{"cli.detach", 10, (*worker).cliDetach},
	{"cli.enable", 4, func(w *worker, r *rand.Rand) { w.cliSetEnabled(r, "enable") }},
	{"cli.disable", 4, func(w *worker, r *rand.Rand) { w.cliSetEnabled(r, "disable") }},
	{"cli.list", 4, (*worker).cliList},
	{"cli.trace", 6, (*worker).cliTrace},
	{"cli.trace.int", 4, func(w *worker, r *rand.Rand) { w.cliTraceEnd(r, syscall.SIGINT) }},
	{"cli.trace.kill", 10, func(w *worker, r *rand.Rand) { w.cliTraceEnd(r, syscall.SIGKILL) }},
}

// Exit statuses of guestprobe, as its help lists them.
const (
	statusOK          = 0
	statusFailed      = 1
	statusUnreachable = 3
	statusTooFew      = 6
	statusTimeout     = 124
)

// command prepares a child process. It does not outlive us.
func (w *worker) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, w.opt.CLI, args...)
	cmd.Env = append(os.Environ(), api.SocketEnv+"="+w.daemon.socket, "GOTRACEBACK=all")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// finishedProcess is the result of a child process.
type finishedProcess struct {
	status   int // -1: ended by a signal
	out, err string
}

// cli runs guestprobe to its end.
func (w *worker) cli(args ...string) (p finishedProcess, ok bool) {
	var out, errOut bytes.Buffer
	err := w.try(func(ctx context.Context) error {
		cmd := w.command(ctx, args...)
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			p.status, err = exit.ExitCode(), nil
		}
		return err
	})
	p.out, p.err = out.String(), errOut.String()
	if err != nil {
		w.fail("guestprobe %q: %v", args, err)
		return p, false
	}
	return p, true
}

// reason finds the code in an error of guestprobe: in its text, or in the
// envelope that --format json prints.
var reason = regexp.MustCompile(`^\{"error":\{"code":"([a-z0-9_]+)"|\[([a-z0-9_]+)\]`)

// done judges the end of a child process, as ok judges an answer.
func (w *worker) done(args []string, p finishedProcess, codes ...api.Code) bool {
	if p.status == statusOK {
		return true
	}
	ending := w.is(terminated) || w.is(killed)
	if m := reason.FindStringSubmatch(p.err); m != nil && p.status > 0 {
		code := api.Code(m[1] + m[2])
		switch {
		case slices.Contains(codes, code), w.is(guestEnds) && code == api.CodeGuestState:
			w.countRefusal(string(code))
			return false
		case ending && code == api.CodeClosing:
			w.over = true
			return false
		}
	}
	if ending && (p.status == statusUnreachable || p.status == statusTooFew || p.status == statusFailed && strings.Contains(p.err, "cut off")) {
		w.over = true
		return false
	}
	w.fail("guestprobe %q ended with status %d: %s", args, p.status, tailOf(p.err))
	return false
}

// tailOf returns the end of a process's output.
func tailOf(s string) string { return strings.TrimSpace(s[max(0, len(s)-1500):]) }

// flags writes a spec as flags and a definition.
func flags(s api.ProbeSpec) []string {
	var args []string
	if s.Post {
		args = append(args, "--post")
	}
	if s.Regs {
		args = append(args, "--regs")
	}
	if s.Disabled {
		args = append(args, "--disabled")
	}
	return append(args, s.Def)
}

// probes reads the probes that --format json prints.
func (w *worker) probes(args []string, p finishedProcess) []api.Probe {
	var l api.ProbeList
	if err := json.Unmarshal([]byte(p.out), &l); err != nil {
		w.fail("guestprobe %q printed %q: %v", args, tailOf(p.out), err)
	}
	return l.Probes
}

func (w *worker) cliAttach(r *rand.Rand) {
	s, inner := w.spec(r, "soak")
	for len(w.own) >= maxOwn && !w.over {
		w.cliDetach(r)
	}
	codes := refusals
	if inner {
		codes = append(slices.Clone(codes), "not_boundary")
	}
	args := append([]string{"attach", "--format", "json"}, flags(s)...)
	p, ok := w.cli(args...)
	if !ok || !w.done(args, p, codes...) {
		return
	}
	if inner {
		w.fail("attached %s, inside an instruction", s.Def)
	}
	ps := w.probes(args, p)
	w.noteAttached(ps)
	for _, p := range ps {
		w.own = append(w.own, p.Name)
	}
}

func (w *worker) cliDetach(r *rand.Rand) {
	n := r.Uint32()
	if len(w.own) == 0 {
		return
	}
	i := int(n) % len(w.own)
	args := []string{"detach", "--format", "json", w.own[i]}
	w.own = slices.Delete(w.own, i, i+1)
	p, ok := w.cli(args...)
	if !ok || !w.done(args, p) {
		return
	}
	ps := w.probes(args, p)
	if len(ps) != 1 {
		w.fail("guestprobe %q printed %d probes", args, len(ps))
	}
	for _, p := range ps {
		w.account(p, w.fail)
	}
}

func (w *worker) cliSetEnabled(r *rand.Rand, verb string) {
	n := r.Uint32()
	if len(w.own) == 0 {
		return
	}
	args := []string{verb, w.own[int(n)%len(w.own)]}
	if p, ok := w.cli(args...); ok {
		w.done(args, p)
	}
}

func (w *worker) cliList(r *rand.Rand) {
	args := []string{"list", "--format", []string{"table", "kernel", "defs", "json"}[r.IntN(4)]}
	if p, ok := w.cli(args...); ok {
		w.done(args, p)
	}
}

// traceSpec draws a trace with one probe of its own.
func (w *worker) traceSpec(r *rand.Rand) (args []string, codes []api.Code) {
	s, inner := w.spec(r, "soaks")
	s.Disabled = false
	codes = refusals
	if inner {
		codes = append(slices.Clone(codes), "not_boundary")
	}
	return append([]string{"trace", "--format", "json"}, flags(s)...), codes
}

// cliTrace traces some hits, for a moment.
func (w *worker) cliTrace(r *rand.Rand) {
	n, d := 1+r.IntN(30), time.Duration(20+r.IntN(200))*time.Millisecond
	args, codes := w.traceSpec(r)
	args = append(args, "--count", itoa(n), "--timeout", d.String())
	p, ok := w.cli(args...)
	if !ok || p.status == statusTimeout || p.status == statusTooFew { // the last: the guest ended before
		return
	}
	w.done(args, p, codes...)
}

// cliTraceEnd ends a trace by a signal in the middle of its records. SIGINT must
// end it in order. After SIGKILL its probe must still be detached.
func (w *worker) cliTraceEnd(r *rand.Rand, sig syscall.Signal) {
	n, d := r.IntN(30), time.Duration(r.IntN(200))*time.Millisecond
	args, codes := w.traceSpec(r)
	var p finishedProcess
	err := w.try(func(ctx context.Context) error {
		cmd := w.command(ctx, args...)
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		lines, read := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(read)
			s := bufio.NewScanner(out)
			s.Buffer(nil, 1<<20)
			for seen := 0; s.Scan(); seen++ {
				if seen == n {
					close(lines)
				}
			}
		}()
		limit := time.NewTimer(d)
		select {
		case <-lines:
		case <-read:
		case <-limit.C:
		case <-w.stop:
		}
		limit.Stop()
		_ = cmd.Process.Signal(sig) // it may have ended: rejected, or its daemon has gone
		<-read
		err = cmd.Wait()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			p.status, err = exit.ExitCode(), nil
			if exit.Sys().(syscall.WaitStatus).Signaled() {
				p.status = -1
				if exit.Sys().(syscall.WaitStatus).Signal() == sig {
					w.phase.count(func(t *Tally) { t.Killed++ })
					return nil
				}
			}
		}
		p.err = errOut.String()
		// Interrupted before its stream was open, so nothing was traced.
		early := sig == syscall.SIGINT && p.status == statusFailed && strings.Contains(p.err, "interrupt signal received")
		if p.status != statusOK && !early {
			w.done(args, p, codes...)
		}
		return err
	})
	if err != nil {
		w.fail("guestprobe %q: %v", args, err)
	}
}
