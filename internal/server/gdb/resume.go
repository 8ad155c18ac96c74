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

// plan is the debugger's request for the vCPUs.
type plan struct {
	actions []Action
	// A vCPU that steps in a range continues to step while it is inside: 0 to 0
	// for one step.
	lo, hi uint64
	cpu    int // the one that steps
}

// resume is vCont: "ACTION[:THREAD];..."; each vCPU gets the first action that
// fits.
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

// action parses one action of vCont. Signals for guests are not supported.
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

// legacyAction handles c, C, s and S, from debuggers that do not use vCont. The
// actions have the same form. A packet with an address to resume at, or with
// anything else, is rejected: such debuggers set RIP instead.
func legacyAction(letter string) func(*session, context.Context, []byte) (string, error) {
	return func(s *session, ctx context.Context, b []byte) (string, error) {
		a, _, _, err := action([]byte(letter + string(b)))
		if err != nil {
			return "", fmt.Errorf("%w: to resume elsewhere set RIP", err)
		}
		return s.resumeLegacy(ctx, a)
	}
}

func (s *session) resumeLegacy(ctx context.Context, a Action) (string, error) {
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

// proceed resumes the guest, and returns where it has stopped.
func (s *session) proceed(ctx context.Context, p plan) (string, error) {
	stop, err := s.runPlan(ctx, p)
	if err != nil {
		// A debugger that waits for a stop takes an error for a stop without a reason, and
		// GDB then steps on forever. The text is shown where the debugger's user sees it.
		s.log.Debug("a debugger's guest cannot resume", "err", err)
		if _, err := fmt.Fprintln(console{s}, err); err != nil {
			return "", err
		}
		was := Stop{Why: stuck, CPU: p.cpu}
		if s.last.Why == Exited {
			was = s.last
		}
		stop = s.t.RecheckStop(was) // it may have crashed
	} else if stop.Text != "" {
		if _, err := fmt.Fprintln(console{s}, stop.Text); err != nil {
			return "", err
		}
	}
	s.last, s.cpu = stop, stop.CPU
	clear(s.also)
	return s.stopReply(stop)
}

// briefly is how long a guest runs before the debugger's input is read, which
// can only be an interrupt. Most steps are over before that, and so are
// breakpoints that are hit again and again.
const briefly = time.Millisecond

// alarm signals that a guest has run for a while. Its timer runs on from one
// wait to the next and may ring early: a new timer for each wait would wake the
// runtime's poller each time.
type alarm struct {
	rings chan struct{} // has an element when the timer has ended
	set   atomic.Bool   // the timer runs
}

// begin makes rings get an element, after at most briefly.
func (a *alarm) begin() {
	select {
	case <-a.rings: // it was for an earlier wait
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

// runPlan resumes the guest and returns when it stops, when the debugger
// interrupts it, or when the debugger is gone.
func (s *session) runPlan(ctx context.Context, p plan) (stop Stop, err error) {
	if s.pending {
		s.pending = false
		return s.t.RecheckStop(Stop{Why: Stopped, CPU: p.cpu}), nil
	}
	s.heard.Store(false)
	defer func() {
		// The guest had already stopped by itself when the interrupt arrived.
		s.pending = s.heard.Load() && err == nil && stop.Why != Stopped
	}()
	step := slices.Contains(p.actions, Step)
	begun, heard := time.Now(), false
	hear := func() (end func()) {
		heard = true
		ctx, end = s.hear(ctx, s.readInterrupt)
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
		if ctx.Err() != nil { // it did not stop for that, so it steps on
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

// readInterrupt reads the debugger's input while the guest runs. Only an
// interrupt is allowed then; other packets get no answer.
func (s *session) readInterrupt() (stop, more bool) {
	e, err := readEvent(s.in)
	stop = err != nil || e.interrupt
	if err == nil && e.interrupt {
		s.heard.Store(true)
	}
	return stop, !stop
}

// hear calls next whenever the debugger sends something. The context that it
// returns ends when next asks for a stop. Call end before anything else reads
// the connection.
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
		// Later input is left to the next reader. A connection that does not support
		// deadlines is closed, which both sides notice.
		_ = s.conn.SetReadDeadline(time.Unix(1, 0))
		<-done
		cancel()
		_ = s.conn.SetReadDeadline(time.Time{})
	}
}

// The signals that stops are reported as, in Unix's numbers (GDB manual, E.3).
const (
	sigINT  = 2
	sigILL  = 4
	sigTRAP = 5
	sigSEGV = 11
	sigTERM = 15
)

// stopReply formats a stop for the debugger, with the registers that it asks for
// next.
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

// haltReason returns the reason of the present stop.
func (s *session) haltReason() (string, error) {
	s.last = s.t.RecheckStop(s.last)
	return s.stopReply(s.last)
}

// breakpoint is Z and z: "KIND,ADDRESS,LENGTH".
func (s *session) breakpoint(b []byte, do func(Breakpoint) error) (string, error) {
	place, condition, _ := bytes.Cut(b, []byte(";"))
	var kind, addr, n uint64
	if !numbers(place, &kind, &addr, &n) || len(condition) > 0 {
		return "", errBad // conditions and commands, which were not offered to the debugger
	}
	if kind > uint64(WatchAccess) {
		return "", nil
	}
	if Kind(kind) >= WatchWrite && n == 0 {
		return "", errBad // a watchpoint of no bytes
	}
	if err := do(Breakpoint{Kind(kind), addr, n}); err != nil {
		return "", err
	}
	return "OK", nil
}
