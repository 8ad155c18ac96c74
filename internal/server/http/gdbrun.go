package http

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/internal/server/gdb"
	"github.com/guestprobe/guestprobe/kvm/machine"
	"github.com/guestprobe/guestprobe/probe/remote/api"
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
		stopped := map[int]bool{}
		for _, s := range d.g.Stopped() {
			stopped[s.CPU] = true
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
		// What is stopped has been stopped for somebody, and stays.
		if err := d.goOn(func() error { return d.g.ResumeOnly(func(cpu int) bool { return !stopped[cpu] }) }); err != nil {
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
	d.holds = d.g.Phase() != machine.PhaseRunning
	d.told = d.s.boots.Load()
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
	switch d.g.Phase() {
	case machine.PhaseCrashed, machine.PhaseExited, machine.PhaseClosed:
		return true
	}
	return false
}

// Resume implements gdb.Target. A step is of one vCPU while the others stand still.
func (d *debugged) Resume(actions []gdb.Action) error {
	d.next = gdb.Stop{}
	if d.anew() {
		// What the debugger has read, and what it would do now, is about a guest that is not there any more.
		d.next = gdb.Stop{Why: gdb.Stopped, CPU: d.cpu, Text: "The guest was reset, and waits here."}
		return nil
	}
	if cpu := slices.Index(actions, gdb.Step); cpu >= 0 {
		return d.step(cpu)
	}
	if err := d.settle(); err != nil {
		return err
	}
	goes := func(cpu int) bool { return cpu >= len(actions) || actions[cpu] != gdb.Hold }
	if d.pending(goes) || d.ended() {
		return nil // Wait has what there is to be told
	}
	d.ran = true
	clear(d.held)
	if !slices.Contains(actions, gdb.Hold) {
		clear(d.shown)
		return d.resumeGuest()
	}
	for cpu := range actions {
		if goes(cpu) {
			delete(d.shown, cpu)
		} else {
			d.held[cpu] = true
		}
	}
	return d.goOn(func() error { return d.g.ResumeOnly(goes) })
}

// step executes one instruction. What stops it there it tells: a watchpoint, or a breakpoint at the next one.
func (d *debugged) step(cpu int) error {
	d.next = gdb.Stop{Why: gdb.Stepped, CPU: cpu}
	at, shown := d.showing(cpu)
	d.moves(cpu)
	if !shown {
		var err error
		if at, _, err = d.at(cpu); err == nil {
			_, err = d.g.Step(context.Background(), cpu, 1)
		}
		if err != nil {
			return err
		}
	} // else that instruction is behind it
	if len(d.breaks) == 0 {
		return nil
	}
	now, rsp, err := d.at(cpu)
	if err != nil {
		return err
	}
	for _, b := range d.breaks {
		switch {
		case b.probe == nil:
		case b.wanted && b.Addr == uint64(now):
			d.next = gdb.Stop{Why: gdb.Breaking, CPU: cpu, Kind: b.Kind, Addr: b.Addr}
		case !shown && b.probe.Addr == now && b.Addr <= uint64(at) && at < now:
			d.hits.pass(rsp, b)
		}
	}
	// The instruction's own breakpoint has been told before, where the vCPU has come to it.
	if b := d.hits.take(cpu, func(b *breaking) bool { return b.wanted && b.watch != nil }); b != nil {
		d.next = gdb.Stop{Why: gdb.Watching, CPU: cpu, Kind: b.Kind, Addr: b.Addr}
	}
	d.hits.forget(cpu)
	return nil
}

// at returns where a vCPU is, and its stack.
func (d *debugged) at(cpu int) (at guest.GVA, rsp uint64, err error) {
	err = d.s.look(func(l *machine.Look) error {
		r, _, err := l.General(cpu)
		at, rsp = guest.GVA(r.RIP), r.RSP
		return err
	})
	return at, rsp, err
}

// moves forgets what is only so while a vCPU stays where it is.
func (d *debugged) moves(cpu int) {
	delete(d.shown, cpu)
	d.hits.forget(cpu)
}

// letGo forgets what vCPUs were stopped for that somebody else has go on.
func (d *debugged) letGo() {
	for _, s := range d.g.Stopped() {
		d.hits.forget(s.CPU)
	}
}

// free reports whether a vCPU is not one that the debugger has left where it is.
func (d *debugged) free(cpu int) bool { return !d.held[cpu] }

// stops returns the stops of those vCPUs that which says, in the order in which they came.
func (d *debugged) stops(which func(cpu int) bool) []machine.Stop {
	out := slices.DeleteFunc(d.g.Stopped(), func(s machine.Stop) bool { return !which(s.CPU) })
	slices.SortFunc(out, func(a, b machine.Stop) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// pending makes a hit what Wait returns that the debugger was not told of, and whose vCPU stands; which says of which ones.
func (d *debugged) pending(which func(cpu int) bool) bool {
	return slices.ContainsFunc(d.stops(which), d.tell)
}

// Also implements gdb.Target.
func (d *debugged) Also(cpu int) (gdb.Stop, bool) {
	next := d.next
	defer func() { d.next = next }()
	if d.pending(func(of int) bool { return of == cpu }) {
		return d.next, true
	}
	return gdb.Stop{}, false
}

// tell makes a hit of a vCPU that is stopped what Wait returns, if there is one.
func (d *debugged) tell(at machine.Stop) bool {
	b := d.hits.take(at.CPU, func(b *breaking) bool { return b.wanted })
	if b == nil {
		return false
	}
	d.next = gdb.Stop{Why: gdb.Breaking, CPU: at.CPU, Kind: b.Kind, Addr: b.Addr}
	if b.watch != nil {
		d.next.Why = gdb.Watching
	} else if b.Addr != uint64(at.RIP) {
		d.showing(at.CPU)
		d.shown[at.CPU] = guest.GVA(b.Addr)
	}
	return true
}

// anew reports whether the guest was reset since the debugger was told of it last, which it is with this.
func (d *debugged) anew() bool {
	boot := d.s.boots.Load()
	was := d.told
	d.told = boot
	return was != boot
}

// Still implements gdb.Target.
func (d *debugged) Still(was gdb.Stop) gdb.Stop {
	st, anew := d.g.State(), d.anew()
	switch {
	case st.Phase == machine.PhaseCrashed:
		return crashed(st)
	case st.Phase == machine.PhaseClosed:
		return gdb.Stop{Why: gdb.Terminated}
	case !anew && (was.Why == gdb.Exited) == (st.Phase == machine.PhaseExited):
		return was
	}
	return gdb.Stop{Why: gdb.Stopped, CPU: was.CPU}
}

// crashed is the stop of a guest that has crashed.
func crashed(st machine.State) gdb.Stop {
	return gdb.Stop{Why: gdb.Crashed, CPU: st.Crash.CPU, Text: fmt.Sprintf("The guest has crashed on vCPU %d: %s.", st.Crash.CPU, st.Crash.Text)}
}

// exited is the stop of a guest that has ended. A debugger takes it for gone then, unless it connects again.
func exited(st machine.State) gdb.Stop {
	stop := gdb.Stop{Why: gdb.Exited, Code: uint8(st.ExitCode), Text: fmt.Sprintf("The guest has exited with code %d", st.ExitCode)}
	if st.Exit != nil && st.Exit.Symbol != "" {
		stop.Text += fmt.Sprintf(", on vCPU %d at %s", st.Exit.CPU, st.Exit.Symbol)
	}
	stop.Text += ". Who connects again can look at it."
	return stop
}

// Wait implements gdb.Target.
func (d *debugged) Wait(ctx context.Context, soon <-chan struct{}) (gdb.Stop, error) {
	if d.next != (gdb.Stop{}) {
		d.cpu = d.next.CPU
		return d.next, nil
	}
	for {
		changed := d.g.Changed()
		st := machine.State{Phase: d.g.Phase()}
		if st.Phase == machine.PhaseCrashed || st.Phase == machine.PhaseExited {
			st = d.g.State()
		}
		switch st.Phase {
		case machine.PhaseCrashed:
			d.hold()
			d.cpu = st.Crash.CPU
			return crashed(st), nil
		case machine.PhaseExited:
			d.hold()
			return exited(st), nil
		case machine.PhaseClosed:
			return gdb.Stop{Why: gdb.Terminated}, nil
		case machine.PhaseRunning:
			if len(d.stops(d.free)) == 0 {
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
			if d.pending(d.free) {
				d.cpu = d.next.CPU
				return d.next, nil
			}
			stop := gdb.Stop{Why: gdb.Stopped, CPU: d.cpu}
			if stops := d.stops(d.free); len(stops) > 0 {
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
			// Once more, if somebody else has it go on before that is seen.
		}
	}
}
