package daemon

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/api"
	"github.com/guestprobe/guestprobe/internal/gdb"
	"github.com/guestprobe/guestprobe/kvm/machine"
)

// settleTries is how often a guest is let go on for a moment because a vCPU that was stopped
// stands in the engine's code, which has no steps of the guest's.
const settleTries = 100

// rest stops the guest where all vCPUs can be stepped, as far as that can be had.
func (d *debugged) rest() error {
	for try := range settleTries {
		if err := d.g.Pause(); errors.Is(err, machine.ErrNotRunnable) {
			return nil
		} else if err != nil {
			return err
		}
		inside := false
		err := d.s.look(func(l *machine.Look) error {
			for cpu := range l.NumVCPU() {
				r, err := l.Registers(cpu)
				if err != nil {
					return err
				}
				inside = inside || r.Live != guest.GVA(r.Regs.RIP)
			}
			return nil
		})
		if err != nil || !inside || try == settleTries-1 {
			return err
		}
		if err := d.resumeGuest(); err != nil {
			return err
		}
	}
	return nil
}

// resumeGuest has all of the guest go on.
func (d *debugged) resumeGuest() error { return d.goOn(d.g.Resume) }

func (d *debugged) goOn(resume func() error) error {
	d.s.resetMu.Lock()
	defer d.s.resetMu.Unlock()
	d.holds = false
	return d.s.resumeBy(resume)
}

// hold notes that the guest stands still for the debugger, and reports false where it does not, because
// somebody has let it go on.
func (d *debugged) hold() bool {
	d.s.resetMu.Lock()
	defer d.s.resetMu.Unlock()
	d.holds = d.g.State().Phase != machine.PhaseRunning
	return d.holds
}

// errHeld: a debugger has stopped the guest.
var errHeld = &api.Error{Code: api.CodeGuestState, Errno: "EBUSY", Message: "a debugger has stopped the guest", Detail: "have it go on there, or detach the debugger"}

// free returns errHeld where a debugger has stopped the guest. Callers hold resetMu.
func (s *server) free() error {
	if d := s.debugger.Load(); d != nil && d.holds {
		return errHeld
	}
	return nil
}

// showing returns where a vCPU is shown to be, if that is not where it is.
func (d *debugged) showing(cpu int) (guest.GVA, bool) {
	if boot := d.s.boots.Load(); boot != d.boot {
		d.boot = boot
		clear(d.shown)
	}
	at, ok := d.shown[cpu]
	return at, ok
}

// ended reports whether the guest cannot go on.
func (d *debugged) ended() bool {
	switch d.g.State().Phase {
	case machine.PhaseCrashed, machine.PhaseExited, machine.PhaseClosed:
		return true
	}
	return false
}

// errAlone: some vCPUs are to run, and others not.
var errAlone = errors.New("vCPUs run together: those that stood still would keep locks that the others wait for (set scheduler-locking off)")

// Resume implements gdb.Target. A step is of one vCPU while the others stand still.
func (d *debugged) Resume(actions []gdb.Action) error {
	d.next = gdb.Stop{}
	if cpu := slices.Index(actions, gdb.Step); cpu >= 0 {
		return d.step(cpu)
	}
	if slices.Contains(actions, gdb.Hold) {
		return errAlone
	}
	if err := d.settle(); err != nil {
		return err
	}
	if d.pending() || d.ended() {
		return nil // Wait has what there is to be told
	}
	clear(d.shown)
	d.ran = true
	return d.resumeGuest()
}

// step executes one instruction.
func (d *debugged) step(cpu int) error {
	d.next = gdb.Stop{Why: gdb.Stepped, CPU: cpu}
	if _, ok := d.showing(cpu); ok {
		delete(d.shown, cpu) // that instruction is behind it
		// The debugger sees for itself that it has come to another breakpoint there.
		d.untold = slices.DeleteFunc(d.untold, func(h gdbHit) bool { return h.cpu == cpu && h.b.probe != nil })
		return nil
	}
	_, err := d.g.Step(context.Background(), cpu, 1)
	return err
}

// pending looks for a hit that the debugger was not told of: of a breakpoint that is still wanted, and
// whose vCPU still stands.
func (d *debugged) pending() bool {
	d.readHits()
	for len(d.untold) > 0 {
		h := d.untold[0]
		d.untold = slices.Delete(d.untold, 0, 1)
		if d.tell(h) {
			return true
		}
	}
	return false
}

// readHits reads what there is.
func (d *debugged) readHits() {
	for {
		select {
		case h := <-d.hits:
			// Of two in one place the vCPU comes to the lower address first.
			at := len(d.untold)
			for at > 0 && d.untold[at-1].cpu == h.cpu && d.untold[at-1].b.probe != nil && h.b.probe != nil && d.untold[at-1].b.Addr > h.b.Addr {
				at--
			}
			d.untold = slices.Insert(d.untold, at, h)
		default:
			return
		}
	}
}

// Also implements gdb.Target.
func (d *debugged) Also(cpu int) (gdb.Stop, bool) {
	d.readHits()
	i := slices.IndexFunc(d.untold, func(h gdbHit) bool { return h.cpu == cpu })
	if i < 0 {
		return gdb.Stop{}, false
	}
	h, next := d.untold[i], d.next
	d.untold = slices.Delete(d.untold, i, i+1)
	defer func() { d.next = next }()
	if !d.tell(h) {
		return gdb.Stop{}, false
	}
	return d.next, true
}

// tell makes a hit what Wait returns.
func (d *debugged) tell(h gdbHit) bool {
	stops := d.g.Stopped()
	i := slices.IndexFunc(stops, func(s machine.Stop) bool { return s.CPU == h.cpu })
	if !h.b.wanted || i < 0 {
		return false
	}
	d.next = gdb.Stop{Why: gdb.Breaking, CPU: h.cpu, Kind: h.b.Kind, Addr: h.b.Addr}
	if h.b.watch != nil {
		d.next.Why = gdb.Watching
	} else if h.b.Addr != uint64(stops[i].RIP) {
		d.showing(h.cpu)
		d.shown[h.cpu] = guest.GVA(h.b.Addr)
	}
	return true
}

// Wait implements gdb.Target.
func (d *debugged) Wait(ctx context.Context, patience time.Duration) (gdb.Stop, error) {
	if d.next != (gdb.Stop{}) {
		d.cpu = d.next.CPU
		return d.next, nil
	}
	var soon <-chan time.Time
	if patience != 0 {
		soon = time.After(patience)
	}
	for {
		changed := d.g.Changed()
		st := d.g.State()
		switch st.Phase {
		case machine.PhaseCrashed:
			d.hold()
			return gdb.Stop{Why: gdb.Crashed, CPU: st.Crash.CPU}, nil
		case machine.PhaseExited:
			d.hold()
			return gdb.Stop{Why: gdb.Exited, Code: uint8(st.ExitCode)}, nil
		case machine.PhaseClosed:
			return gdb.Stop{Why: gdb.Terminated}, nil
		case machine.PhaseRunning:
			if len(d.g.Stopped()) == 0 {
				break
			}
			// One vCPU is stopped, by somebody else's probe: here all are.
			if err := d.g.Pause(); err != nil {
				return gdb.Stop{}, err
			}
			continue
		default:
			if !d.hold() { // it was reset
				continue
			}
			if d.pending() {
				d.cpu = d.next.CPU
				return d.next, nil
			}
			stop := gdb.Stop{Why: gdb.Stopped, CPU: d.cpu}
			if stops := d.g.Stopped(); len(stops) > 0 {
				stop.CPU = stops[0].CPU
			}
			d.cpu = stop.CPU
			return stop, nil
		}
		select {
		case <-changed:
		case <-soon:
			return gdb.Stop{Why: gdb.StillRunning}, nil
		case <-ctx.Done():
			if err := d.rest(); err != nil {
				return gdb.Stop{}, err
			}
			ctx = context.Background() // once
		}
	}
}
