package session

import (
	"context"
	"errors"
	"io"
	"syscall"
	"time"

	"github.com/guestprobe/guestprobe/probe/script"
)

// StartScript compiles, loads and begins a script: its BEGIN runs, and its probes are
// enabled. Then Run or Stop must be called, which end it. Scripts with probes of
// samples, exits and the guest's life (profile, hardware, software, guest, exit) need
// a caller that runs their programs: they are rejected. See LoadScript. It fails as
// CompileScript and LoadScript do.
func (st *Session) StartScript(text string, o ScriptOptions) (*Script, error) {
	sc, err := st.CompileScript(text, o)
	if err != nil {
		return nil, err
	}
	if len(sc.Samples)+len(sc.Exits)+len(sc.Events) > 0 {
		return nil, &Error{Code: CodeUnavailable, Errno: syscall.EOPNOTSUPP, Text: "the script has probes of samples, exits or the guest's life", Detail: "use LoadScript, and run their programs"}
	}
	s, err := st.LoadScript(sc, o)
	if err != nil {
		return nil, err
	}
	s.RunAll(sc.Begin, s.logFailure)
	st.Poll()
	if err := s.Begin(); err != nil {
		_, gone := s.Close()
		return nil, errors.Join(err, gone)
	}
	return s, nil
}

// logFailure logs a run that ended early.
func (s *Script) logFailure(name string, err error) {
	s.st.log.Warn("a program of a script has ended early", "program", name, "err", err)
}

// endWait is how long Run and Stop wait for runs under way in the guest.
const endWait = time.Second

// scriptOutput writes the text of a script. It belongs to one goroutine.
type scriptOutput struct {
	s       *Script
	printer *script.Printer
	err     error // of the writer
	lost    uint64
}

func (s *Script) outputTo(w io.Writer) *scriptOutput {
	o := &scriptOutput{s: s}
	o.printer = s.NewPrinter(false, func(text string) {
		if o.err == nil {
			_, o.err = io.WriteString(w, text)
		}
	}, func(text string) { s.st.log.Warn("script", "warning", text) })
	return o
}

// print prints the waiting records.
func (o *scriptOutput) print() {
	for o.s.PendingRecords() > 0 && o.err == nil {
		o.s.ForEach(func(r ScriptRecord, next []byte) {
			if err := o.printer.Record(r.Data, next); err != nil {
				o.s.st.log.Warn("damaged record of a script", "err", err)
			}
		})
	}
	if n := o.s.LostRecords(); n > o.lost {
		o.printer.PrintLost(n - o.lost)
		o.lost = n
	}
}

// finish ends the script, and prints its last text and its maps.
func (o *scriptOutput) finish() error {
	_, gone := o.s.Quiesce(endWait, nil)
	o.s.RunAll(o.s.compiled.End, o.s.logFailure)
	o.s.st.Poll()
	o.print()
	o.printer.PrintMaps()
	_, err := o.s.Close()
	return errors.Join(o.err, gone, err)
}

// Run writes the script's text to w, and runs its intervals, until ctx ends, the
// script calls exit, its probes are detached, or w fails. Then it ends the script
// like Stop. It returns the status of exit, and an error of w or of detaching.
func (s *Script) Run(ctx context.Context, w io.Writer) (status int64, err error) {
	o, next := s.outputTo(w), s.FirstTicks()
	tick := time.NewTimer(time.Hour)
	defer tick.Stop()
	for {
		gone := s.st.Changed()
		o.print()
		status, exits := s.Exit()
		if exits || o.err != nil || s.compiled.Probes > 0 && !s.attached() {
			return status, o.finish()
		}
		tick.Reset(s.Tick(next, s.logFailure))
		select {
		case <-s.Ready():
		case <-tick.C:
		case <-gone:
		case <-ctx.Done():
			return status, o.finish()
		}
	}
}

// attached reports whether some of the script's probes are attached.
func (s *Script) attached() bool {
	for p := range s.owner.Probes() {
		if s.st.Has(p) {
			return true
		}
	}
	return false
}

// Stop ends a script of StartScript instead of Run: it detaches the probes, waits at
// most a second for programs that run in the guest, runs END, and writes to w
// everything the script has printed since its start, and its maps. At most 4 MB of
// records wait for Stop; if records were lost, w gets a line about it. The error is
// one of w, or of detaching.
func (s *Script) Stop(w io.Writer) error { return s.outputTo(w).finish() }

// FirstTicks returns when the script's intervals are first due: see Tick.
func (s *Script) FirstTicks() []time.Time {
	next, now := make([]time.Time, len(s.compiled.Intervals)), time.Now()
	for i, v := range s.compiled.Intervals {
		next[i] = now.Add(v.Period)
	}
	return next
}

// Tick runs the intervals that are due, like RunAll, sets in next when they are due
// again, and returns the time until the next one, at most an hour. An interval that
// was missed is not run twice. Intervals that are due together run in the order of
// the source: all of them use the same time.
func (s *Script) Tick(next []time.Time, failed func(name string, err error)) time.Duration {
	wait, now := time.Hour, time.Now()
	for i, v := range s.compiled.Intervals {
		if !next[i].After(now) {
			s.RunAll([]string{v.Program}, failed)
			s.st.Poll()
			if next[i] = next[i].Add(v.Period); next[i].Before(now) {
				next[i] = now.Add(v.Period)
			}
		}
		wait = min(wait, max(time.Until(next[i]), 0))
	}
	return wait
}
