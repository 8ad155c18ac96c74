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
)

// settleTries is how often a guest is resumed for a moment because a stopped
// vCPU is in the engine's code, where the guest's instructions cannot be
// stepped.
const settleTries = 100

// stopSteppable stops the guest at places where all vCPUs can be stepped, as far
// as possible.
func (d *debugged) stopSteppable() error {
	for try := range settleTries {
		if err := d.g.Pause(); errors.Is(err, machine.ErrNotRunnable) {
			return nil
		} else if err != nil {
			return err
		}
		stopped := map[int]bool{}
		for _, s := range d.g.Stops() {
			stopped[s.CPU] = true
		}
		inside := false
		err := d.rc.look(func(l *machine.Look) error {
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
		// vCPUs that were stopped for a client stay stopped.
		if err := d.resumeBy(func() error { return d.g.ResumeOnly(func(cpu int) bool { return !stopped[cpu] }) }); err != nil {
			return err
		}
	}
	return nil
}

// resumeGuest resumes the whole guest.
func (d *debugged) resumeGuest() error { return d.resumeBy(d.g.Resume) }

func (d *debugged) resumeBy(resume func() error) error {
	d.rc.resetMu.Lock()
	defer d.rc.resetMu.Unlock()
	d.holds = false
	return d.rc.resumeBy(resume)
}

// hold records that the guest is paused for the debugger. It reports false if
// the guest runs because another client has resumed it.
func (d *debugged) hold() bool {
	d.rc.resetMu.Lock()
	defer d.rc.resetMu.Unlock()
	d.holds = d.g.Phase() != machine.PhaseRunning
	d.told = d.rc.boots.Load()
	return d.holds
}

// shownAddr returns the address at which a vCPU is shown, if it is not the real
// one.
func (d *debugged) shownAddr(cpu int) (guest.GVA, bool) {
	if boot := d.rc.boots.Load(); boot != d.boot {
		d.boot = boot
		clear(d.shown)
	}
	at, ok := d.shown[cpu]
	return at, ok
}

// ended reports whether the guest cannot be resumed.
func (d *debugged) ended() bool {
	switch d.g.Phase() {
	case machine.PhaseCrashed, machine.PhaseExited, machine.PhaseClosed:
		return true
	}
	return false
}

// Resume implements gdb.Target. A step moves one vCPU while the others are
// paused.
func (d *debugged) Resume(actions []gdb.Action) error {
	d.next = gdb.Stop{}
	if d.wasReset() {
		// The debugger has read a guest that does not exist any more, and its request is
		// about that guest.
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
		return nil // Wait reports it
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
	return d.resumeBy(func() error { return d.g.ResumeOnly(goes) })
}

// step executes one instruction. It reports a stop on the way: a watchpoint, or
// a breakpoint at the next instruction.
func (d *debugged) step(cpu int) error {
	d.next = gdb.Stop{Why: gdb.Stepped, CPU: cpu}
	at, shown := d.shownAddr(cpu)
	d.forgetPosition(cpu)
	if !shown {
		var err error
		if at, _, err = d.position(cpu); err == nil {
			_, err = d.g.Step(context.Background(), cpu, 1)
		}
		if err != nil {
			return err
		}
	} // else the vCPU has executed that instruction already
	if len(d.breaks) == 0 {
		return nil
	}
	now, rsp, err := d.position(cpu)
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
	// The breakpoint at the instruction itself was reported when the vCPU reached
	// it.
	if b := d.hits.take(cpu, func(b *breaking) bool { return b.wanted && b.watch != nil }); b != nil {
		d.next = gdb.Stop{Why: gdb.Watching, CPU: cpu, Kind: b.Kind, Addr: b.Addr}
	}
	d.hits.forget(cpu)
	return nil
}

// position returns where a vCPU is, and its stack.
func (d *debugged) position(cpu int) (at guest.GVA, rsp uint64, err error) {
	err = d.rc.look(func(l *machine.Look) error {
		r, _, err := l.GeneralRegisters(cpu)
		at, rsp = guest.GVA(r.RIP), r.RSP
		return err
	})
	return at, rsp, err
}

// forgetPosition removes the state that is valid only while a vCPU stays where
// it is.
func (d *debugged) forgetPosition(cpu int) {
	delete(d.shown, cpu)
	d.hits.forget(cpu)
}

// forgetStops removes the hits of the stopped vCPUs, because another client
// resumes them.
func (d *debugged) forgetStops() {
	for _, s := range d.g.Stops() {
		d.hits.forget(s.CPU)
	}
}

// free reports whether a vCPU is not one that the debugger has left where it is.
func (d *debugged) free(cpu int) bool { return !d.held[cpu] }

// stops returns the stops of the vCPUs that which accepts, in the order of their
// occurrence.
func (d *debugged) stops(which func(cpu int) bool) []machine.Stop {
	out := slices.DeleteFunc(d.g.Stops(), func(s machine.Stop) bool { return !which(s.CPU) })
	slices.SortFunc(out, func(a, b machine.Stop) int { return cmp.Compare(a.Seq, b.Seq) })
	return out
}

// pending looks for a hit that the debugger has not seen, on a stopped vCPU that
// which accepts. If there is one, Wait returns it next.
func (d *debugged) pending(which func(cpu int) bool) bool {
	return slices.ContainsFunc(d.stops(which), d.tell)
}

// StopOf implements gdb.Target.
func (d *debugged) StopOf(cpu int) (gdb.Stop, bool) {
	next := d.next
	defer func() { d.next = next }()
	if d.pending(func(of int) bool { return of == cpu }) {
		return d.next, true
	}
	return gdb.Stop{}, false
}

// tell takes a hit of a stopped vCPU, if there is one, and makes it the next
// result of Wait.
func (d *debugged) tell(at machine.Stop) bool {
	b := d.hits.take(at.CPU, func(b *breaking) bool { return b.wanted })
	if b == nil {
		return false
	}
	d.next = gdb.Stop{Why: gdb.Breaking, CPU: at.CPU, Kind: b.Kind, Addr: b.Addr}
	if b.watch != nil {
		d.next.Why = gdb.Watching
	} else if b.Addr != uint64(at.RIP) {
		d.shownAddr(at.CPU)
		d.shown[at.CPU] = guest.GVA(b.Addr)
	}
	return true
}

// wasReset reports whether the guest was reset since the last call.
func (d *debugged) wasReset() bool {
	boot := d.rc.boots.Load()
	was := d.told
	d.told = boot
	return was != boot
}

// RecheckStop implements gdb.Target.
func (d *debugged) RecheckStop(was gdb.Stop) gdb.Stop {
	st, rebooted := d.g.State(), d.wasReset()
	switch {
	case st.Phase == machine.PhaseCrashed:
		return crashStop(st)
	case st.Phase == machine.PhaseClosed:
		return gdb.Stop{Why: gdb.Terminated}
	case !rebooted && (was.Why == gdb.Exited) == (st.Phase == machine.PhaseExited):
		return was
	}
	return gdb.Stop{Why: gdb.Stopped, CPU: was.CPU}
}

// crashStop returns the stop of a guest that has crashed.
func crashStop(st machine.State) gdb.Stop {
	return gdb.Stop{Why: gdb.Crashed, CPU: st.Crash.CPU, Text: fmt.Sprintf("The guest has crashed on vCPU %d: %s.", st.Crash.CPU, st.Crash.Text)}
}

// exitStop returns the stop of a guest that has ended. A debugger then regards
// it as gone, unless it connects again.
func exitStop(st machine.State) gdb.Stop {
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
			return crashStop(st), nil
		case machine.PhaseExited:
			d.hold()
			return exitStop(st), nil
		case machine.PhaseClosed:
			return gdb.Stop{Why: gdb.Terminated}, nil
		case machine.PhaseRunning:
			if len(d.stops(d.free)) == 0 {
				break
			}
			// Another client's probe has stopped one vCPU. A debugger expects all of them
			// to stop.
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
			if err := d.stopSteppable(); err != nil {
				return gdb.Stop{}, err
			}
			// Loop: another client may resume the guest before the stop is seen.
		}
	}
}
