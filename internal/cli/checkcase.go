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

// Kinds of what goes wrong in a test.
const (
	kindAssert      = "assert" // or errorf, behind which the script has called exit(N)
	kindExit        = "exit"
	kindStrict      = "strict"
	kindFault       = "fault" // a run of a program ended early: its instruction budget, or what a program may not do
	kindGuestExit   = api.EndGuestExit
	kindGuestCrash  = api.EndGuestCrash
	kindPanic       = "guest_panic"
	kindTimeout     = "timeout"
	kindScript      = "script" // it does not compile
	kindDaemon      = "daemon"
	kindInterrupted = "interrupted"
)

const (
	// maxCheckText bounds what is held of each of a test's texts, in bytes.
	maxCheckText = 4 << 20
	// afterTime bounds what is done behind a test's end: to save its guest, and to have its streams' ends.
	afterTime = 2 * time.Minute
	// panicTime is how often it is looked whether the guest's kernel has panicked.
	panicTime = 200 * time.Millisecond
	// saysTime is how long such a kernel has to say why.
	saysTime = 5 * time.Second
	// shownLines is how much of a failure's texts goes to standard error.
	shownLines = 20
)

// Ends of a test that are not the script's.
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
	said                   string // the last error of the script
}

// fault is why a test has not passed.
type fault struct {
	outcome testreport.Outcome
	kind    string
	why     string
	status  command.Status
}

func failed(kind, format string, args ...any) *fault {
	return &fault{testreport.Failed, kind, fmt.Sprintf(format, args...), command.ExitFailed}
}

// broken is the fault of a test that could not be run.
func broken(err error) *fault {
	f := &fault{testreport.Errored, kindDaemon, err.Error(), command.ExitFailed}
	// What a daemon has said last is why it has not started.
	if what, said, ok := strings.Cut(f.why, "; it said:\n"); ok {
		f.why = what + "; it said last: " + said[strings.LastIndexByte(said, '\n')+1:] + "\n" + said
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
	f := t.guarded(ctx)
	t.Took = time.Since(began)
	t.Output, t.Console = t.output.String(), t.console.String()
	if t.Outcome = testreport.Passed; f != nil {
		t.Outcome, t.Kind, t.Why, t.status = f.outcome, f.kind, f.why, f.status
	}
	t.note()
}

// guarded starts the test's daemon, and stops it.
func (t *check) guarded(ctx context.Context) (f *fault) {
	timed, cancel := context.WithTimeoutCause(ctx, t.timeout, fmt.Errorf("%w: --timeout %v", errCheckTime, t.timeout))
	defer cancel()
	own, err := startDaemon(timed, t.Run, t.verbose, append([]string{"--paused"}, t.guest...)...)
	if err != nil {
		return broken(err)
	}
	t.own, t.c = own, remote.New(own.socket)
	defer func() {
		// The guest as it was is kept before it is gone, and the log when it is whole.
		after, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTime)
		defer cancel()
		if f != nil && f.outcome == testreport.Failed && t.keep != "" {
			t.keepGuest(after)
		}
		t.c.Close()
		if err := own.stop(); err != nil && f == nil {
			f = broken(err)
		}
		if f != nil && t.keep != "" {
			t.keepTexts()
		}
	}()
	if err := giveFiles(timed, t.Run, t.c, t.files); err != nil {
		return broken(err)
	}
	return t.watch(ctx, timed)
}

// watch boots the guest under the script, and says what has become of them. parent ends when the user wants that, and
// timed then or when the time is over.
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
		return broken(err)
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
		return broken(err)
	}
	others.Go(func() { t.watchKernel(life, end) })
	e, err := follow(parent, over, t.c, func(ctx context.Context) (*remote.Stream, error) { return t.c.RunScript(ctx, t.req) }, func(_ api.Record, s api.Start) error {
		_, err := t.c.Resume(life)
		return err
	}, t.record)
	end(nil)
	for _, text := range missedHits(e) {
		t.output.say("%s\n", text)
	}
	select {
	case <-traced:
	case <-time.After(afterTime):
	}
	return t.judge(parent, over, e, err, guestEnd)
}

// record takes a record of the script's stream.
func (t *check) record(r api.Record) error {
	switch r.Type {
	case api.RecordOutput:
		o, err := data[api.Output](r)
		if o.Bytes == nil {
			o.Bytes = []byte(o.Text)
		}
		_, _ = t.output.Write(o.Bytes) // which no tail refuses
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

// readConsole reads what the guest writes until it ends, or the stream.
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
			t.console.say("\n[%s %s missing here]\n", command.Plural(l.Lost, "byte"), command.Are(l.Lost))
		case api.RecordEnd:
			e, _ := data[api.End](r)
			return e
		}
	}
}

// traceProbes traces the probes of --probe; the channel is closed when the trace has come to its end.
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
		b, _ := json.Marshal(r) // it was JSON
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

// watchKernel ends the test when the kernel of a Linux guest has panicked: the guest may go on for ever.
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
			// What it says of that comes behind it, where its console is ours.
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

// judge says why the test has failed, or nil. e is the end of the script's stream, and err why there is none.
func (t *check) judge(parent, over context.Context, e api.End, err error, guestEnd <-chan api.End) *fault {
	after, cancel := context.WithTimeout(context.WithoutCancel(parent), afterTime)
	defer cancel()
	g, gerr := t.c.Guest(after)
	if gerr == nil && (g.State == "exited" || g.State == "crashed") {
		select { // the last that the guest has written
		case <-guestEnd:
		case <-after.Done():
		}
	}
	asked := e.Reason == "" || e.Reason == api.EndAsked
	cause := context.Cause(over)
	switch {
	case err != nil:
		return broken(err)
	case asked && parent.Err() != nil:
		return &fault{testreport.Errored, kindInterrupted, context.Cause(parent).Error(), command.ExitFailed}
	case gerr != nil:
		return broken(gerr)
	case e.Reason == endCutOff:
		return broken(remote.ErrCutOff)
	case e.Reason == api.EndExit && e.Code != nil && *e.Code != 0:
		f := failed(kindExit, "the script has called exit(%d)", *e.Code)
		if t.said != "" {
			f.kind, f.why = kindAssert, t.said
		}
		if g.Crash != nil {
			f.why += "\nthe guest has crashed: " + g.Crash.Report
		}
		f.status = command.Status(max(*e.Code&0xff, 1))
		return f
	case e.Reason != api.EndExit && g.Crash != nil:
		return failed(kindGuestCrash, "the guest has crashed: %s", strings.TrimRight(g.Crash.Report, "\n"))
	case e.Reason != api.EndExit && g.Kernel != nil && g.Kernel.System == "panicked":
		return failed(kindPanic, "%s", strings.TrimSuffix("the guest's kernel has panicked: "+g.Kernel.Panic, ": "))
	case asked && errors.Is(cause, errCheckTime):
		return broken(cause)
	case e.Reason != api.EndExit && g.ExitCode != nil && *g.ExitCode != 0:
		return failed(kindGuestExit, "the guest has exited with code %d", *g.ExitCode)
	case e.Strict != "":
		return failed(kindStrict, "the script is strict: %s", e.Strict)
	case faulted(e) != "":
		return failed(kindFault, "the script did not run to its end: %s", faulted(e))
	case e.Reason == api.EndExit, g.ExitCode != nil:
		return nil
	}
	return broken(fmt.Errorf("the script's stream has ended: %s", e.Reason))
}

// faulted says which programs of a script have ended early, or "".
func faulted(e api.End) string {
	var out []string
	for _, p := range e.Probes {
		if g := p.Program; g != nil && g.Faults > 0 {
			out = append(out, fmt.Sprintf("%s was cut short %s (%s)", place(p), command.Plural(g.Faults, "time"), g.Fault))
		}
	}
	return strings.Join(out, "; ")
}

// note says of a test that has failed what there is to be said of it.
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
