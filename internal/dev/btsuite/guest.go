package btsuite

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// LinuxGuest runs tests in the Linux guest of a daemon. The guest executes each line that is typed at its console as a shell's
// command, in a folder with upstream's test programs: see scripts/nested/btsuite.sh.
type LinuxGuest struct {
	Client   *remote.Client
	Program  string            // path of the guestprobe command
	Socket   string            // of the daemon
	Copies   map[string]string // files with the debug information of files in the guest, by the paths there
	Patience time.Duration     // what a second of upstream's time limits lasts: an emulated guest is slow

	ctx     context.Context
	console *remote.Stream
	marks   int
}

// patience is how long the guest may need for a command, and the command line for its start, in seconds of upstream's limits.
const patience = 40

// defaultLimit is upstream's limit for a test, in seconds.
const defaultLimit = 5

// Open connects to the guest's console.
func (g *LinuxGuest) Open(ctx context.Context) (err error) {
	g.ctx = ctx
	g.console, err = g.Client.Console(ctx, true)
	return err
}

// Close ends the connection.
func (g *LinuxGuest) Close() error { return g.console.Close() }

// begin has the guest execute a command. The returned function waits until the guest has done it, and returns what it printed last.
func (g *LinuxGuest) begin(command string) (wait func() (string, error), err error) {
	g.marks++
	mark := fmt.Sprintf("GP-SUITE %d", g.marks)
	if err := g.Client.Type(g.ctx, []byte(command+"; echo; echo "+mark+"\n")); err != nil {
		return nil, err
	}
	return func() (last string, err error) {
		console := g.console
		cut := time.AfterFunc(patience*g.Patience, func() { console.Close() })
		defer cut.Stop()
		for {
			r, err := console.Next()
			if err != nil {
				g.console, _ = g.Client.Console(g.ctx, true)
				return last, fmt.Errorf("the guest's console, after %q: %w", command, err)
			}
			var line api.Console
			if r.Type != api.RecordConsole {
				continue
			}
			if err := json.Unmarshal(r.Data, &line); err != nil {
				return last, err
			}
			switch text := strings.TrimSpace(line.Text); {
			case text == mark:
				return last, nil
			case text != "":
				last = text
			}
		}
	}, nil
}

// do has the guest execute a command, waits for it, and returns its last line.
func (g *LinuxGuest) do(command string) (string, error) {
	wait, err := g.begin(command)
	if err != nil {
		return "", err
	}
	return wait()
}

// watched is output that grows.
type watched struct {
	mu       sync.Mutex
	b        bytes.Buffer
	attached chan struct{} // closed when the probes are attached
	said     bool
}

// attachedLine is how the command says that its probes are attached.
var attachedLine = regexp.MustCompile(`(?m)^(Attached \d+ probes?$|\{"type": ?"attached_probes")`)

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.b.Write(p)
	if !w.said && attachedLine.Match(w.b.Bytes()) {
		w.said = true
		close(w.attached)
	}
	return len(p), nil
}

func (w *watched) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// settings are upstream's environment variables with their settings in a script.
var settings = regexp.MustCompile(`\bBPFTRACE_(\w+)=(\S+)`)

// ownSettings are a script's settings.
var ownSettings = regexp.MustCompile(`^\s*config\s*=\s*\{[^}]*`)

// withSettings returns a script with a test's environment as settings, which take precedence over its own: the last one counts.
func withSettings(text, env string) string {
	var b strings.Builder
	for _, m := range settings.FindAllStringSubmatch(env, -1) {
		value := m[2]
		if _, err := strconv.Atoi(value); err != nil && m[1] == "STR_TRUNC_TRAILER" {
			value = strconv.Quote(value)
		}
		fmt.Fprintf(&b, "%s=%s; ", strings.ToLower(m[1]), value)
	}
	if b.Len() == 0 {
		return text
	}
	if own := ownSettings.FindString(text); own != "" {
		before := strings.TrimRight(own, "; \n")
		if !strings.HasSuffix(before, "{") {
			before += ";"
		}
		return before + " " + b.String() + text[len(own):]
	}
	return "config = { " + b.String() + "} " + text
}

// upstreamFiles replaces paths in a guest with those that upstream's tests have.
var upstreamFiles = strings.NewReplacer(inGuest, "./testprogs/", "/testlibs/", "./testlibs/")

// ran is what a test's script did in the guest.
type ran struct {
	out    string
	status int
	ended  bool // by itself
}

// inBackground returns a shell's command that executes cmd in the background, as the leader of a process group that is kept in the
// shell's variable name.
func inBackground(name, cmd string) string {
	return "setsid sh -c '" + strings.ReplaceAll(cmd, "'", `'\''`) + "' >/dev/null 2>&1 </dev/null & " + name + "=$!"
}

// run runs a test's script in the guest, with the commands that the test wants before and while it runs.
func (g *LinuxGuest) run(c runtimeCase, l commandLine, text string) (r ran, err error) {
	if cmd := c.fields["SETUP"]; cmd != "" {
		if _, err := g.do("{ " + cmd + "; } >/dev/null 2>&1"); err != nil {
			return r, err
		}
	}
	for _, cmd := range c.befores {
		// It runs when its name is that of the program.
		name := path.Base(strings.Fields(cmd)[len(strings.Fields(cmd))-1])
		if _, err := g.do(inBackground("last", cmd) + "; before=\"$before $last\"; until grep -qx '" + name[:min(15, len(name))] + "' /proc/$last/comm || ! [ -d /proc/$last ]; do :; done"); err != nil {
			return r, err
		}
	}
	defer func() {
		cleanup := "for p in $before $after; do kill -9 -$p; done; wait; before= after="
		if c.fields["CLEANUP"] != "" {
			cleanup += "; " + c.fields["CLEANUP"]
		}
		if _, e := g.do("{ " + cleanup + "; } >/dev/null 2>&1"); err == nil {
			err = e
		}
	}()
	args := []string{"-s", g.Socket, "run"}
	if l.json {
		args = append(args, "--format", "json")
	}
	if l.unsafe {
		args = append(args, "--unsafe")
	}
	if l.debug {
		for name, file := range g.Copies {
			args = append(args, "--file", name+"="+file)
		}
	}
	switch {
	case l.list && l.verbose:
		args = append(args, "-lv")
	case l.list:
		args = append(args, "-l")
	}
	if text != "" {
		args = append(args, "-e", withSettings(text, c.fields["ENV"]))
	} else if l.file != "" {
		args = append(args, guestFiles.Replace(l.file)) // a pattern for -l
	}
	if len(l.params) > 0 {
		args = append(append(args, "--"), l.params...)
	}
	w := &watched{attached: make(chan struct{})}
	ctx, cancel := context.WithTimeout(g.ctx, 2*patience*g.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, g.Program, args...)
	cmd.Stdout, cmd.Stderr = w, w // the same: one after the other
	if err := cmd.Start(); err != nil {
		return r, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	limit, _ := strconv.Atoi(c.fields["TIMEOUT"])
	if limit == 0 {
		limit = defaultLimit
	}
	select {
	case <-done:
		r.ended = true
	case <-w.attached:
		if c.exact() && !l.json {
			w.mu.Lock()
			w.b.Reset()
			w.mu.Unlock()
		}
		after := c.fields["AFTER"]
		if l.child != "" {
			after = "exec"
			for word := range strings.FieldsSeq(l.child) { // as bpftrace, without a shell
				after += ` "` + word + `"`
			}
		}
		if after != "" {
			if _, err := g.do(inBackground("after", after)); err != nil {
				cancel()
				<-done
				return r, err
			}
		}
		over := time.After(time.Duration(limit) * g.Patience)
		for begun := time.Now(); !r.ended; {
			select {
			case <-done:
				r.ended = true
				continue
			case <-over:
			case <-time.After(g.Patience):
				// With -c, a script ends when the program has ended.
				if l.child == "" || time.Since(begun) > patience*g.Patience {
					continue
				}
				if state, err := g.do("cut -d' ' -f3 /proc/$after/stat"); err == nil && len(state) == 1 && state != "Z" {
					continue
				}
			}
			if err := cmd.Process.Signal(os.Interrupt); err != nil {
				return r, err
			}
			<-done
			break
		}
	}
	r.out, r.status = w.text(), cmd.ProcessState.ExitCode()
	if ctx.Err() != nil {
		return r, fmt.Errorf("the command did not end in time: %s", r.out)
	}
	return r, nil
}

// inGuest runs a test in the guest, and compares.
func (c runtimeCase) inGuest(t *target, l commandLine, read func(string) string) (r Result) {
	r = Result{Kind: Runtime, Name: c.id, Script: l.text}
	if exclusion(t.rules, r, true) != "" {
		return r
	}
	if c.fields["REQUIRES"] != "" {
		if last, err := t.guest.do("{ " + c.fields["REQUIRES"] + "; } >/dev/null 2>&1; echo $?"); err != nil || last != "0" {
			r.Outcome, r.Said = Unread, fmt.Sprintf("the guest has not what %q finds", c.fields["REQUIRES"])
			return r
		}
	}
	ran, err := t.guest.run(c, l, guestFiles.Replace(l.text))
	out := strings.ReplaceAll(ran.out, "guestprobe", "bpftrace")
	if l.filter != "" {
		lines := strings.Split(out, "\n")
		out = strings.Join(slices.DeleteFunc(lines, func(line string) bool { ok, _ := regexp.MatchString(l.filter, line); return !ok }), "\n")
	}
	wanted, _ := strconv.Atoi(c.fields["RETURN_CODE"])
	fails := hasKey(c.fields, "WILL_FAIL")
	missing := c.missing(out, read)
	if missing != "" {
		missing = c.missing(upstreamFiles.Replace(out), read)
	}
	if missing != "" {
		missing = c.missing(strings.ReplaceAll(out, ":"+inGuest, ":testprogs/"), read)
	}
	switch {
	case err != nil:
		r.Outcome, r.Said = Wrong, err.Error()
	case fails && ran.status != 0:
		r.Outcome, r.Words = Agree, missing != ""
	case fails && ran.ended:
		r.Outcome, r.Said = Accepted, "the test wants a failure\nprinted: "+out
	case ran.ended && !fails && ran.status != wanted:
		r.Outcome, r.Said = Refused, fmt.Sprintf("exit status %d\n%s", ran.status, out)
	case missing != "":
		r.Outcome, r.Said = Wrong, "missing: "+missing+"\nprinted: "+out
	default:
		r.Outcome = Agree
	}
	return r
}
