package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/guestprobe/guestprobe/internal/command"
	"github.com/guestprobe/guestprobe/internal/show/testreport"
	"github.com/guestprobe/guestprobe/probe/remote"
	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// Kinds of test failures.
const (
	kindAssert      = "assert" // also errorf, if the script called exit(N) afterwards
	kindExit        = "exit"
	kindStrict      = "strict"
	kindFault       = "fault" // a program run ended early: it exceeded its instruction budget or broke a rule for programs
	kindGuestExit   = api.EndGuestExit
	kindGuestCrash  = api.EndGuestCrash
	kindPanic       = "guest_panic"
	kindTimeout     = "timeout"
	kindScript      = "script" // the script does not compile
	kindDaemon      = "daemon"
	kindInterrupted = "interrupted"
)

const (
	// maxCheckText is how much of each of a test's texts is kept, in bytes.
	maxCheckText = 4 << 20
	// afterTime bounds the work after a test's end: saving its guest and reading the ends of its streams.
	afterTime = 2 * time.Minute
	// panicTime is the interval between checks for a panic of the guest's kernel.
	panicTime = 200 * time.Millisecond
	// saysTime is how long a panicked kernel has to print the reason.
	saysTime = 5 * time.Second
	// shownLines is how many of a failure's last lines are printed to standard error.
	shownLines = 20
)

// Ends of a test that the script did not request.
var (
	errGuestEnded = errors.New("the guest has ended")
	errPanicked   = errors.New("the guest's kernel has panicked")
)

// check is one test.
type check struct {
	*checker
	testreport.Case
	req    api.RunScript
	status command.Status

	own                    *ownDaemon
	c                      *remote.Client
	output, console, trace tail
	first                  []byte // line of the trace
	said                   string // the script's last error message
}

// fault is why a test did not pass.
type fault struct {
	outcome testreport.Outcome
	kind    string
	why     string
	status  command.Status
}

func newFailure(kind, format string, args ...any) *fault {
	return &fault{testreport.Failed, kind, fmt.Sprintf(format, args...), command.ExitFailed}
}

// newBreakage returns the fault of a test that could not run.
func newBreakage(err error) *fault {
	f := &fault{testreport.Errored, kindDaemon, err.Error(), command.ExitFailed}
	// The last output of a daemon that did not start is the reason.
	if what, said, ok := strings.Cut(f.why, "; it said:\n"); ok {
		f.why = what + "; last message: " + said[strings.LastIndexByte(said, '\n')+1:] + "\n" + said
	}
	var wire *api.Error
	switch {
	case errors.Is(err, errCheckTime):
		f.outcome, f.kind, f.status = testreport.Failed, kindTimeout, exitTimeout
	case errors.As(err, &wire) && wire.Code == api.CodeBadScript:
		f.kind, f.status = kindScript, command.ExitUsage
		f.why = strings.TrimRight(err.Error()+"\n"+wire.Caret(), "\n")
	}
	return f
}

// run runs the test.
func (t *check) run(ctx context.Context) {
	if ctx.Err() != nil {
		t.Outcome, t.Kind, t.Why, t.status = testreport.Skipped, kindInterrupted, "it was not run: "+context.Cause(ctx).Error(), command.ExitFailed
		return
	}
	began := time.Now()
	t.output.most, t.console.most, t.trace.most = maxCheckText, maxCheckText, maxCheckText
	f := t.runGuarded(ctx)
	t.Took = time.Since(began)
	t.Output, t.Console = t.output.String(), t.console.String()
	if t.Outcome = testreport.Passed; f != nil {
		t.Outcome, t.Kind, t.Why, t.status = f.outcome, f.kind, f.why, f.status
	}
	t.note()
}

// runGuarded starts the test's daemon, runs the test, and stops the daemon.
func (t *check) runGuarded(ctx context.Context) (f *fault) {
	timed, cancel := context.WithTimeoutCause(ctx, t.timeout, fmt.Errorf("%w: --timeout %v", errCheckTime, t.timeout))
	defer cancel()
	own, err := startDaemon(timed, t.Run, t.verbose, append([]string{"--paused"}, t.guest...)...)
	if err != nil {
		return newBreakage(err)
	}
	t.own, t.c = own, remote.New(own.socket)
	defer func() {
		// Save the guest before the daemon stops, and the log afterwards, when it is complete.
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTime)
		defer cancel()
		if f != nil && f.outcome == testreport.Failed && t.keep != "" {
			t.keepGuest(after)
		}
		t.c.Close()
		if err := own.stop(); err != nil && f == nil {
			f = newBreakage(err)
		}
		if f != nil && t.keep != "" {
			t.keepTexts()
		}
	}()
	if err := giveFiles(timed, t.Run, t.c, t.files); err != nil {
		return newBreakage(err)
	}
	return t.watch(ctx, timed)
}

// watch boots the guest under the script and returns how the test failed, or nil. parent ends when the user interrupts;
// timed ends then too, or when --timeout expires.
func (t *check) watch(parent, timed context.Context) *fault {
	over, end := context.WithCancelCause(timed)
	defer end(nil)
	life, cut := context.WithCancel(context.WithoutCancel(parent))
	var others sync.WaitGroup
	defer others.Wait()
	defer cut()
	guestEnd := make(chan api.End, 1)
	console, err := t.c.ConsoleBytes(life)
	if err != nil {
		return newBreakage(err)
	}
	others.Go(func() {
		defer console.Close()
		e := t.readConsole(console)
		guestEnd <- e
		if e.Reason == api.EndGuestExit || e.Reason == api.EndGuestCrash {
			end(errGuestEnded)
		}
	})
	traced, err := t.traceProbes(parent, over, &others)
	if err != nil {
		return newBreakage(err)
	}
	others.Go(func() { t.watchKernel(life, end) })
	e, err := follow(parent, over, t.c, func(ctx context.Context) (*remote.Stream, error) { return t.c.RunScript(ctx, t.req) }, func(_ api.Record, s api.Start) error {
		_, err := t.c.Resume(life)
		return err
	}, t.record)
	end(nil)
	for _, text := range missTexts(e) {
		t.output.say("%s\n", text)
	}
	select {
	case <-traced:
	case <-time.After(afterTime):
	}
	return t.judge(parent, over, e, err, guestEnd)
}

// record handles a record of the script's stream.
func (t *check) record(r api.Record) error {
	switch r.Type {
	case api.RecordOutput:
		o, err := data[api.Output](r)
		if o.Bytes == nil {
			o.Bytes = []byte(o.Text)
		}
		_, _ = t.output.Write(o.Bytes) // writing to a tail does not fail
		return err
	case api.RecordWarning:
		w, err := data[api.Warning](r)
		t.output.say("%s\n", w.Text)
		if strings.Contains(w.Text, ": ERROR: ") {
			t.said = w.Text
		}
		return err
	case api.RecordLost:
		l, err := data[api.Lost](r)
		t.output.say("Lost %d events\n", l.Lost)
		return err
	}
	return nil
}

// readConsole reads the guest's output until the guest or the stream ends.
func (t *check) readConsole(s *remote.Stream) (e api.End) {
	for {
		r, err := s.Next()
		if err != nil {
			return api.End{Reason: endCutOff}
		}
		switch r.Type {
		case api.RecordOutput:
			o, err := data[api.Output](r)
			if err == nil && o.Bytes == nil {
				o.Bytes = []byte(o.Text)
			}
			_, _ = t.console.Write(o.Bytes)
		case api.RecordLost:
			l, _ := data[api.Lost](r)
			t.console.say("\n[%s %s missing here]\n", command.Plural(l.Lost, "byte"), command.IsOrAre(l.Lost))
		case api.RecordEnd:
			e, _ := data[api.End](r)
			return e
		}
	}
}

// traceProbes traces the probes of --probe. The returned channel is closed when the trace has ended.
func (t *check) traceProbes(parent, over context.Context, others *sync.WaitGroup) (<-chan struct{}, error) {
	done, begun := make(chan struct{}), make(chan error, 1)
	if len(t.probes) == 0 {
		close(done)
		return done, nil
	}
	var req api.StreamEvents
	for _, def := range t.probes {
		req.Probes = append(req.Probes, api.ProbeSpec{Def: def})
	}
	line := func(r api.Record) []byte {
		b, _ := json.Marshal(r) // it was parsed from JSON
		return append(b, '\n')
	}
	others.Go(func() {
		defer close(done)
		e, err := follow(parent, over, t.c, func(ctx context.Context) (*remote.Stream, error) { return t.c.Events(ctx, req) }, func(r api.Record, _ api.Start) error {
			t.first = line(r)
			begun <- nil
			return nil
		}, func(r api.Record) error {
			_, err := t.trace.Write(line(r))
			return err
		})
		if err != nil || t.first == nil {
			begun <- errors.Join(err, context.Cause(over))
			return
		}
		b, _ := json.Marshal(e)
		_, _ = t.trace.Write(line(api.Record{Type: api.RecordEnd, Data: b}))
	})
	return done, <-begun
}

// watchKernel ends the test when the kernel of a Linux guest has panicked, because the guest may keep running forever.
func (t *check) watchKernel(ctx context.Context, end context.CancelCauseFunc) {
	tick := time.NewTicker(panicTime)
	defer tick.Stop()
	wait := int(saysTime / panicTime)
	for {
		g, err := t.c.Guest(ctx)
		switch {
		case err != nil || g.Kernel == nil:
			return
		case g.Kernel.System == "panicked":
			// The kernel prints the reason a little later, and perhaps on a console that is not the daemon's.
			if wait--; g.Kernel.Panic != "" || wait <= 0 {
				end(errPanicked)
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// judge returns why the test failed, or nil. e is the end of the script's stream, or err is why the stream has no end.
func (t *check) judge(parent, over context.Context, e api.End, err error, guestEnd <-chan api.End) *fault {
	after, cancel := context.WithTimeout(context.WithoutCancel(parent), afterTime)
	defer cancel()
	g, gerr := t.c.Guest(after)
	if gerr == nil && (g.State == "exited" || g.State == "crashed") {
		select { // wait for the guest's last output
		case <-guestEnd:
		case <-after.Done():
		}
	}
	asked := e.Reason == "" || e.Reason == api.EndAsked
	cause := context.Cause(over)
	switch {
	case err != nil:
		return newBreakage(err)
	case asked && parent.Err() != nil:
		return &fault{testreport.Errored, kindInterrupted, context.Cause(parent).Error(), command.ExitFailed}
	case gerr != nil:
		return newBreakage(gerr)
	case e.Reason == endCutOff:
		return newBreakage(remote.ErrCutOff)
	case e.Reason == api.EndExit && e.Code != nil && *e.Code != 0:
		f := newFailure(kindExit, "the script has called exit(%d)", *e.Code)
		if t.said != "" {
			f.kind, f.why = kindAssert, t.said
		}
		if g.Crash != nil {
			f.why += "\nthe guest has crashed: " + g.Crash.Report
		}
		f.status = command.Status(max(*e.Code&0xff, 1))
		return f
	case e.Reason != api.EndExit && g.Crash != nil:
		return newFailure(kindGuestCrash, "the guest has crashed: %s", strings.TrimRight(g.Crash.Report, "\n"))
	case e.Reason != api.EndExit && g.Kernel != nil && g.Kernel.System == "panicked":
		return newFailure(kindPanic, "%s", strings.TrimSuffix("the guest's kernel has panicked: "+g.Kernel.Panic, ": "))
	case asked && errors.Is(cause, errCheckTime):
		return newBreakage(cause)
	case e.Reason != api.EndExit && g.ExitCode != nil && *g.ExitCode != 0:
		return newFailure(kindGuestExit, "the guest has exited with code %d", *g.ExitCode)
	case e.Strict != "":
		return newFailure(kindStrict, "the script is strict: %s", e.Strict)
	case faultText(e) != "":
		return newFailure(kindFault, "the script did not finish: %s", faultText(e))
	case e.Cut > 0:
		return newFailure(kindFault, "the script did not finish: %s ended early: %s", command.Plural(e.Cut, "run"), e.CutWhy)
	case e.Reason == api.EndExit, g.ExitCode != nil:
		return nil
	}
	return newBreakage(fmt.Errorf("the script's stream has ended: %s", e.Reason))
}

// faultText names the script's programs that ended early, or returns "".
func faultText(e api.End) string {
	var out []string
	for _, p := range e.Probes {
		if g := p.Program; g != nil && g.Faults > 0 {
			out = append(out, fmt.Sprintf("%s was cut short %s (%s)", place(p), command.Plural(g.Faults, "time"), g.Fault))
		}
	}
	return strings.Join(out, "; ")
}

// note prints the reason and the last output of a test that did not pass.
func (t *check) note() {
	if t.Outcome == testreport.Passed {
		return
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s: %s\n", command.Clean(t.Name), t.Outcome, command.Clean(t.Why))
	for _, x := range []struct{ title, text string }{{"it printed", t.Output}, {"the guest's console", t.Console}} {
		lines := strings.Split(strings.TrimRight(x.text, "\n"), "\n")
		if x.text == "" {
			continue
		}
		fmt.Fprintf(&b, "  %s:\n", x.title)
		for _, l := range lines[max(len(lines)-shownLines, 0):] {
			fmt.Fprintf(&b, "    %s\n", command.Clean(l[:min(len(l), 512)]))
		}
	}
	if t.Kept != "" {
		fmt.Fprintf(&b, "  kept: %s\n", command.Clean(t.Kept))
	}
	t.Note("%s", strings.TrimRight(b.String(), "\n"))
}
