package gdb

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// plan is what a debugger asks the vCPUs to do.
type plan struct {
	actions []Action
	// A vCPU that steps in a range steps on while it is in there: 0 to 0 for one step.
	lo, hi uint64
	cpu    int // the one that steps
}

// resume is vCont: "ACTION[:THREAD];..."; for each vCPU the first that fits.
func (s *session) resume(ctx context.Context, b []byte) (string, error) {
	p := plan{actions: make([]Action, s.t.CPUs())}
	chosen := make([]bool, len(p.actions))
	for part := range bytes.SplitSeq(b, []byte(";")) {
		act, thread, one := bytes.Cut(part, []byte(":"))
		id := all
		if one {
			var err error
			if id, err = s.threadID(thread, s.cpu); err != nil {
				return "", err
			}
		}
		a, lo, hi, err := action(act)
		if err != nil {
			return "", err
		}
		for cpu := range p.actions {
			if chosen[cpu] || id != all && id != cpu {
				continue
			}
			if chosen[cpu], p.actions[cpu] = true, a; a == Step {
				p.lo, p.hi, p.cpu = lo, hi, cpu
			}
		}
	}
	return s.proceed(ctx, p)
}

// action reads one of vCont's. Signals are not for guests.
func action(b []byte) (a Action, lo, hi uint64, err error) {
	if len(b) == 0 {
		return 0, 0, 0, errBad
	}
	var signal uint64
	switch rest := b[1:]; {
	case string(b) == "c" || b[0] == 'C' && len(rest) == 2 && numbers(rest, &signal):
		return Continue, 0, 0, nil
	case string(b) == "s" || b[0] == 'S' && len(rest) == 2 && numbers(rest, &signal):
		return Step, 0, 0, nil
	case b[0] == 'r' && numbers(rest, &lo, &hi):
		return Step, lo, hi, nil
	}
	return 0, 0, 0, errBad
}

// alone is c, C, s or S, of debuggers that do not use vCont, whose actions are written the same. An address to go on at
// they set by the register: with one in the packet, or anything else, it is refused.
func alone(letter string) func(*session, context.Context, []byte) (string, error) {
	return func(s *session, ctx context.Context, b []byte) (string, error) {
		a, _, _, err := action([]byte(letter + string(b)))
		if err != nil {
			return "", fmt.Errorf("%w: to go on elsewhere set RIP", err)
		}
		return s.legacy(ctx, a)
	}
}

func (s *session) legacy(ctx context.Context, a Action) (string, error) {
	p := plan{actions: make([]Action, s.t.CPUs()), cpu: s.cpu}
	for cpu := range p.actions {
		p.actions[cpu] = Continue
	}
	if s.run != all {
		p.cpu = s.run
	}
	p.actions[p.cpu] = a
	return s.proceed(ctx, p)
}

// proceed lets the guest go on, and returns where it has stopped.
func (s *session) proceed(ctx context.Context, p plan) (string, error) {
	stop, err := s.goes(ctx, p)
	if err != nil {
		// Who waits for a stop takes an error for one without a reason, and GDB then steps on for ever. The text is
		// shown where the debugger's user looks.
		s.log.Debug("a debugger's guest cannot go on", "err", err)
		if _, err := fmt.Fprintln(console{s}, err); err != nil {
			return "", err
		}
		was := Stop{Why: stuck, CPU: p.cpu}
		if s.last.Why == Exited {
			was = s.last
		}
		stop = s.t.Still(was) // it may have crashed
	} else if stop.Text != "" {
		if _, err := fmt.Fprintln(console{s}, stop.Text); err != nil {
			return "", err
		}
	}
	s.last, s.cpu = stop, stop.CPU
	clear(s.also)
	return s.stopReply(stop)
}

// briefly is how long a guest runs before somebody listens to the debugger, which has an interrupt to
// send at most: most steps, and breakpoints that are hit again and again, are over before that.
const briefly = time.Millisecond

// alarm says that a guest has run for a while. Its timer goes on from one wait to the next and may ring early: a timer for
// each wait would wake the runtime's poller at each.
type alarm struct {
	rings chan struct{} // has an element when the timer has ended
	set   atomic.Bool   // the timer goes
}

// begin has rings get an element, in not more than briefly.
func (a *alarm) begin() {
	select {
	case <-a.rings: // it was for somebody else
	default:
	}
	if a.set.Swap(true) {
		return
	}
	time.AfterFunc(briefly, func() {
		a.set.Store(false)
		select {
		case a.rings <- struct{}{}:
		default:
		}
	})
}

// goes lets the guest go on until it stops, or the debugger wants it to, or is gone.
func (s *session) goes(ctx context.Context, p plan) (stop Stop, err error) {
	if s.pending {
		s.pending = false
		return s.t.Still(Stop{Why: Stopped, CPU: p.cpu}), nil
	}
	s.heard.Store(false)
	defer func() {
		// The guest has stopped by itself when the interrupt came.
		s.pending = s.heard.Load() && err == nil && stop.Why != Stopped
	}()
	step := slices.Contains(p.actions, Step)
	begun, heard := time.Now(), false
	hear := func() (end func()) {
		heard = true
		ctx, end = s.hear(ctx, s.interrupted)
		return end
	}
	for {
		if err := s.t.Resume(p.actions); err != nil {
			return stop, err
		}
		stop.Why = StillRunning
		for !heard && err == nil && stop.Why == StillRunning {
			if time.Since(begun) >= briefly {
				defer hear()()
				break
			}
			s.alarm.begin()
			stop, err = s.t.Wait(ctx, s.alarm.rings)
		}
		if err == nil && stop.Why == StillRunning {
			stop, err = s.t.Wait(ctx, nil)
		}
		if err != nil || !step || stop.Why != Stepped || p.hi <= p.lo {
			return stop, err
		}
		if ctx.Err() != nil { // it did not stop for that: it steps on
			stop.Why = Stopped
			return stop, nil
		}
		if err := s.t.Registers(p.cpu, &s.where, false); err != nil {
			return stop, err
		}
		if rip := s.where.RIP; rip < p.lo || rip >= p.hi {
			return stop, nil
		}
	}
}

// interrupted reads something that the debugger sends while the guest runs. Nothing but an interrupt
// comes then; a debugger that does not know that gets its answer never.
func (s *session) interrupted() (stop, more bool) {
	e, err := readEvent(s.in)
	stop = err != nil || e.interrupt
	if err == nil && e.interrupt {
		s.heard.Store(true)
	}
	return stop, !stop
}

// hear has next read what the debugger sends. The context that it returns ends when that says that what goes on
// is to stop, or the debugger is gone. end is to be called before anybody else reads.
func (s *session) hear(ctx context.Context, next func() (stop, more bool)) (_ context.Context, end func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			if _, err := s.in.Peek(1); errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			stop, more := next()
			if stop {
				cancel()
			}
			if !more {
				return
			}
		}
	}()
	return ctx, func() {
		// What comes from now on stays for who reads next. A connection that cannot have a deadline is
		// closed, which both see.
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
		<-done
		cancel()
		_ = s.conn.SetReadDeadline(time.Time{})
	}
}

// The signals that stops are told as: those of Unix (GDB manual, E.3).
const (
	sigINT  = 2
	sigILL  = 4
	sigTRAP = 5
	sigSEGV = 11
	sigTERM = 15
)

// stopReply is a stop as a debugger is told it, with the registers that it asks for next.
func (s *session) stopReply(stop Stop) (string, error) {
	signal, reason := sigTRAP, ""
	switch stop.Why {
	case Exited:
		return fmt.Sprintf("W%02x", stop.Code), nil
	case Terminated:
		return fmt.Sprintf("X%02x", sigTERM), nil
	case Stopped:
		signal = sigINT
	case alongside:
		signal = 0
	case stuck:
		signal = sigILL
	case Crashed:
		signal = sigSEGV
	case Breaking:
		if s.breaks && stop.Kind == Hardware {
			reason = "hwbreak:;"
		} else if s.breaks {
			reason = "swbreak:;"
		}
	case Watching:
		name := map[Kind]string{WatchWrite: "watch", WatchRead: "rwatch", WatchAccess: "awatch"}[stop.Kind]
		reason = fmt.Sprintf("%s:%x;", name, stop.Addr)
	}
	if err := s.t.Registers(stop.CPU, &s.where, false); err != nil {
		return "", err
	}
	b := fmt.Appendf(s.raw[:0], "T%02xthread:%x;core:%x;%s", signal, stop.CPU+1, stop.CPU, reason)
	for _, n := range [...]int{numRBP, numRSP, numRIP} {
		b = fmt.Appendf(b, "%02x:%x;", n, s.regs[n].get(nil, &s.where))
	}
	s.raw = b
	return string(b), nil
}

// still is what the guest stands for now.
func (s *session) still() (string, error) {
	s.last = s.t.Still(s.last)
	return s.stopReply(s.last)
}

// breakpoint is Z and z: "KIND,ADDRESS,LENGTH".
func (s *session) breakpoint(b []byte, do func(Breakpoint) error) (string, error) {
	place, condition, _ := bytes.Cut(b, []byte(";"))
	var kind, addr, n uint64
	if !numbers(place, &kind, &addr, &n) || len(condition) > 0 {
		return "", errBad // conditions and commands are the debugger's: they were not offered
	}
	if kind > uint64(WatchAccess) {
		return "", nil
	}
	if Kind(kind) >= WatchWrite && n == 0 {
		return "", errBad // nothing would be watched
	}
	if err := do(Breakpoint{Kind(kind), addr, n}); err != nil {
		return "", err
	}
	return "OK", nil
}
