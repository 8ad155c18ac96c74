package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// How vCPUs are stopped, and stepped
//
// A handler asks for a stop (probe.Context.Stop). When its hit has been dealt with as far as it is to be, the vCPU
// rests: at the probed instruction, with the guest's own registers, in none of the engine's code. All else goes on as
// with a vCPU that rests for another reason: the world can be stopped, probes come and go, a reset ends it.
//
// A step is done on the vCPU's own thread, which leaves its rest for it: the engine emulates the
// instruction, or has it stepped in its place with the world stopped (inplace.go), so that all
// hosts can do it that serve probes, and no interrupt comes in between.

// Stop is what a vCPU is stopped for.
type Stop struct {
	CPU int
	RIP guest.GVA
	By  any       // as probe.Context.StopBy has it; nil behind a step
	All bool      // the others were stopped with it
	At  time.Time // when
	Seq uint64    // one for each
}

// newStop is the stop of a vCPU now. Precondition: m.mu held.
func (v *vcpu) newStop(by any) *Stop {
	v.m.stops++
	return &Stop{CPU: v.id, RIP: guest.GVA(v.regs.RIP), By: by, All: v.haltAll, At: time.Now(), Seq: v.m.stops}
}

// noteStop notes that the vCPU stops. Precondition: m.mu held.
func (m *Machine) noteStop(v *vcpu) {
	v.stop = v.newStop(m.engine.StoppedBy(v.id))
	if v.haltAll && m.phase == PhaseRunning {
		m.gate.Or(gateHold)
		for _, o := range m.vcpus {
			if o != v && !o.where.rests() {
				o.kick()
			}
		}
		m.setPhase(PhasePaused)
		v.haltAll = false
		return
	}
	v.haltAll = false
	m.setPhase(m.phase)
}

// StopAll has the vCPU whose handler calls it take all others along when it stops.
func (m *Machine) StopAll(c *probe.Context) { m.vcpus[c.CPU].haltAll = true }

// Stopped returns the stops that there are, by vCPU. Changed is closed when there is another one.
func (m *Machine) Stopped() (out []Stop) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, v := range m.vcpus {
		if v.stop != nil {
			out = append(out, *v.stop)
		}
	}
	return out
}

// releaseStopped lets those vCPUs go on that are stopped, and for which which is true. Precondition: m.mu held.
func (m *Machine) releaseStopped(which func(*vcpu) bool) {
	for _, v := range m.vcpus {
		if v.stop != nil && which(v) {
			v.stop = nil
			v.goOn = v.goOn || v.where.between() // else it was stopped in a hlt, which it goes on with
		}
		if v.stop != nil {
			v.stop.All = false // others go on
		}
	}
	m.wakeAll()
}

// Continue lets one vCPU go on that is stopped. Of a guest that is paused it goes on alone, and the others are
// stopped (ResumeOnly). Errors are ErrNoVCPU, ErrNotStopped, and those of Resume.
func (m *Machine) Continue(cpu int) error {
	if cpu < 0 || cpu >= len(m.vcpus) {
		return fmt.Errorf("vcpu %d of %d: %w", cpu, len(m.vcpus), ErrNoVCPU)
	}
	m.mu.Lock()
	running, stop := m.phase == PhaseRunning, m.vcpus[cpu].stop
	if running && stop != nil {
		m.releaseStopped(func(v *vcpu) bool { return v.id == cpu })
		m.setPhase(m.phase)
	}
	m.mu.Unlock()
	switch {
	case !running:
		return m.ResumeOnly(func(n int) bool { return n == cpu })
	case stop == nil:
		return fmt.Errorf("vcpu %d: %w", cpu, ErrNotStopped)
	}
	return nil
}

// ErrNotStopped: the vCPU runs.
var ErrNotStopped = errors.New("it is not stopped: 'guestprobe guest pause', or a probe with --stop, stops it")

// ErrCannotStep: this host cannot execute just the one instruction.
var ErrCannotStep = errors.New("the instruction cannot be stepped")

// ErrHalted: the vCPU waits for an interrupt.
var ErrHalted = errors.New("it waits in hlt, and has no next instruction until an interrupt comes")

// ErrInEngine: the vCPU was stopped in the engine's code, which has no steps of the guest's.
var ErrInEngine = errors.New("it stands in the code of a probe: resume the guest, and stop it by a probe with --stop")

// steps is a request to a vCPU's thread.
type steps struct {
	n    int
	ctx  context.Context
	done chan struct{}
	did  int
	err  error
}

// Step has a vCPU that is stopped, or of a guest that is paused, execute n instructions, and returns how many it
// has: fewer with an error, which is ctx's, ErrNoVCPU, ErrNotStopped, ErrInEngine, ErrNotRunnable, or says why an
// instruction cannot be stepped. Probes on them are hit as ever. Where the exception of an
// instruction leads to the guest's handler the vCPU stops there; so it does where one was on its way already. A hlt does not wait. Interrupts are not taken.
func (m *Machine) Step(ctx context.Context, cpu, n int) (int, error) {
	if m.inHandler() {
		return 0, fmt.Errorf("step: %w", probe.ErrInHandler)
	}
	if cpu < 0 || cpu >= len(m.vcpus) {
		return 0, fmt.Errorf("vcpu %d of %d: %w", cpu, len(m.vcpus), ErrNoVCPU)
	}
	v := m.vcpus[cpu]
	if n == 1 && ctx.Err() == nil && m.stepHere(v) {
		return 1, nil
	}
	r := &steps{n: n, ctx: ctx, done: make(chan struct{})}
	m.mu.Lock()
	err := v.steppable()
	if err == nil {
		v.steps = r
		m.wakeAll()
	}
	m.mu.Unlock()
	if err != nil {
		return 0, err
	}
	<-r.done
	return r.did, r.err
}

// steppable returns why a vCPU cannot be stepped, or nil. Precondition: m.mu held.
func (v *vcpu) steppable() error {
	err := error(nil)
	switch m := v.m; {
	case m.phase == PhaseClosed:
		return ErrClosed
	case m.phase == PhaseExited || m.phase == PhaseCrashed:
		return ErrNotRunnable
	case v.steps != nil:
		return ErrBusyStepping
	case !v.where.rests() || m.phase == PhaseRunning && v.stop == nil:
		err = ErrNotStopped
	case v.where.inHalt():
		err = ErrHalted
	case !v.where.between():
		err = ErrNotStopped
	case m.engine.InSlot(guest.GVA(v.regs.RIP)):
		err = ErrInEngine
	default:
		return nil
	}
	return fmt.Errorf("vcpu %d: %w", v.id, err)
}

// stepHere executes the instruction at which a vCPU rests on the caller's thread, and reports whether it has: where that
// takes neither the vCPU nor a handler. The vCPU's thread would have to be woken, and to wake the caller, which takes
// several times as long as all else.
func (m *Machine) stepHere(v *vcpu) (done bool) {
	// An error is for who has the vCPU's thread do it.
	_ = m.stopWorld(nil, func() error {
		m.mu.Lock()
		err := v.steppable()
		m.mu.Unlock()
		if err != nil {
			return err
		}
		if on, err := v.kvm.Delivering(); on || err != nil {
			return err
		}
		s := v.state()
		code := make([]byte, x86.MaxLen)
		n := m.ownCode(s.Root, guest.GVA(s.Regs.RIP), code)
		if done = m.engine.Emulate(v.id, s, code[:n]); !done {
			return nil
		}
		v.kvm.SetRegsDirty()
		m.mu.Lock()
		defer m.mu.Unlock()
		v.noteStep()
		return nil
	})
	return done
}

// noteStep notes that a vCPU has been stepped. Precondition: m.mu held.
func (v *vcpu) noteStep() {
	if v.m.phase == PhaseRunning || v.stop != nil {
		v.stop = v.newStop(nil)
	}
}

// ErrBusyStepping: somebody else has the vCPU step.
var ErrBusyStepping = errors.New("it is being stepped already")

// forgetStop ends what the vCPU was stopped for. Precondition: m.mu held, the vCPU's thread has ended.
func (v *vcpu) forgetStop() {
	v.stop, v.goOn = nil, false
	if v.steps != nil {
		v.steps.err = v.m.cutOffError()
		close(v.steps.done)
		v.steps = nil
	}
}

// cutOffError is why what a vCPU was doing for somebody has come to no end of its own. Precondition: m.mu held.
func (m *Machine) cutOffError() error {
	switch m.phase {
	case PhaseExited, PhaseCrashed:
		return ErrNotRunnable
	case PhaseClosed:
		return ErrClosed
	}
	return ErrResetMeanwhile
}

// serveDebugger does what the vCPU was woken for, and reports whether it is to rest again.
func (v *vcpu) serveDebugger() bool {
	m := v.m
	m.mu.Lock()
	r, goOn := v.steps, v.goOn
	v.goOn = goOn && r != nil
	m.mu.Unlock()
	if r == nil {
		if goOn {
			v.trap = arrival{via: viaExit, state: v.state()}
			v.obey(m.engine.GoOn(v.id, v.trap.state))
		}
		return v.due == dueStop
	}
	if v.owesText { // of a step in place, at whose end it was stopped
		v.reconcileText()
	}
	for r.did < r.n && r.err == nil {
		if m.gate.Load()&(gateStop|gateStep) != 0 { // others have the world stand still between two steps
			m.mu.Lock()
			v.rest(stateSettled, func() bool { return true })
			m.mu.Unlock()
		}
		if r.err = r.ctx.Err(); m.gate.Load()&gateQuit != 0 {
			m.mu.Lock()
			r.err = m.cutOffError()
			m.mu.Unlock()
		}
		if r.err == nil && r.did > 0 && m.engine.InSlot(guest.GVA(v.regs.RIP)) {
			r.err = fmt.Errorf("vcpu %d: %w", v.id, ErrInEngine) // an iretq has led there
		}
		if r.err == nil {
			if r.err = v.advance(); r.err == nil {
				r.did++
			}
		}
		if v.owesText { // before the next instruction, which may be what has changed
			v.reconcileText()
		}
	}
	v.completeExit()
	m.engine.StoppedBy(v.id) // a hit on the way stops where the step does
	v.due, v.haltAll = duePark, false
	m.mu.Lock()
	defer m.mu.Unlock()
	v.noteStep()
	v.steps = nil
	// It rests again, before anybody is told.
	v.setState(stateSettled)
	m.rested.Broadcast()
	close(r.done)
	return true
}

// advance executes one instruction.
func (v *vcpu) advance() error {
	m := v.m
	v.debugged, v.stepErr, v.owed, v.asleep = true, nil, false, false
	defer func() { v.debugged = false }()
	if on, err := v.kvm.Delivering(); on || err != nil {
		if err == nil {
			err = v.enterHandler()
		}
		return err
	}
	state := v.state()
	code := make([]byte, x86.MaxLen)
	n := m.ownCode(state.Root, guest.GVA(state.Regs.RIP), code)
	v.trap = arrival{via: viaExit, state: state, trap: probe.Trap{Kind: probe.TrapBreakpoint}}
	at := guest.GVA(state.Regs.RIP)
	d := m.engine.Advance(v.id, state, code[:n])
	if own := func() bool {
		return d.Action == probe.NotOurs && n > 0 && code[0] == x86.Int3 && guest.GVA(state.Regs.RIP) == at
	}; own() {
		if v.claim() { // it is a probe's in another mapping of the file, and one here from now on
			d = m.engine.Advance(v.id, state, code[:n])
		}
		if own() {
			return v.executeInt3(at)
		}
	}
	v.obey(d)
	switch {
	case m.ended():
		return ErrNotRunnable
	case errors.Is(v.stepErr, ErrResetMeanwhile), errors.Is(v.stepErr, ErrRanAway):
		return v.stepErr
	case v.stepErr != nil:
		return fmt.Errorf("%w at %v: %w", ErrCannotStep, guest.GVA(v.regs.RIP), v.stepErr)
	case v.owed:
		v.deliver(probe.TrapOfTF)
	}
	if d.Action == probe.Inject || d.Action == probe.NotOurs || v.owed {
		if err := v.enterHandler(); err != nil {
			return err
		}
	}
	if s := v.state(); m.engine.InSlot(guest.GVA(s.Regs.RIP)) && m.engine.Return(v.id, s) {
		v.kvm.SetRegsDirty()
	}
	return nil
}

// executeInt3 has the processor execute the guest's own int3 at at, and deliver it: the vCPU is then at the first instruction of the
// guest's handler. An exception that is queued without the int3 would not do: for the RIP in its frame VMX and SVM take the length of
// the instruction that KVM knows from its last exit, which was another instruction's.
func (v *vcpu) executeInt3(at guest.GVA) error {
	return v.m.stopWorld(v, func() (err error) {
		var p patches
		defer func() { err = errors.Join(err, p.undo()) }()
		// Others may have written there since it was read, and a jump of the engine's may lie over it.
		root := v.state().Root
		if code, err := p.restoreCode(v.m.engine, v.m.space(root), root, at); err != nil || len(code) == 0 || code[0] != x86.Int3 {
			return errors.Join(err, fmt.Errorf("%w at %v: its text has just changed", ErrCannotStep, at))
		}
		v.n.foreign.inc()
		ends := v.plantHandlers(&p)
		// Interrupts of KVM's controllers would come first.
		held := uint64(0)
		if v.m.payload().hasAPIC() {
			held = v.regs.RFLAGS & x86.FlagIF
		}
		v.regs.RFLAGS &^= held
		v.kvm.SetRegsDirty()
		v.given = at
		stub := false
		err = v.runNested(func() bool {
			if !v.readTrap() {
				return false
			}
			stub = v.trap.via == viaStub
			return stub || v.trap.trap.Kind == probe.TrapBreakpoint && (guest.GVA(v.trap.state.Regs.RIP) == at || ends.has(&v.trap))
		})
		switch {
		case err != nil:
			v.regs.RFLAGS |= held
			v.kvm.SetRegsDirty()
			return err
		case stub:
			if v.frame.RFLAGS |= held; held != 0 && !v.writeFrame() {
				v.crashFrame()
				return nil
			}
			v.dispatch()
			return nil
		case guest.GVA(v.trap.state.Regs.RIP) != at: // another exception, of its delivery
			v.resume()
			return nil
		}
		v.regs.RFLAGS |= held
		v.passBreakpoint()
		return v.awaitHandler(ends)
	})
}

// enterHandler has the processor deliver the exception that is queued: the vCPU is then at the first
// instruction of the guest's handler. Where the guest's vector hands breakpoints or debug exceptions to the host, that is
// where the guest goes on with one that is its own.
func (v *vcpu) enterHandler() error {
	return v.m.stopWorld(v, func() (err error) {
		var p patches
		defer func() { err = errors.Join(err, p.undo()) }()
		return v.awaitHandler(v.plantHandlers(&p))
	})
}

// handlerEntries are the first instructions of the guest's handlers, with temporary int3s.
type handlerEntries []landing

// has reports whether t is the temporary int3 of one.
func (h handlerEntries) has(t *arrival) bool {
	return t.trap.Kind == probe.TrapBreakpoint && slices.ContainsFunc(h, func(l landing) bool {
		return l.planted && guest.GVA(t.state.Regs.RIP) == l.at
	})
}

// plantHandlers puts temporary int3s at the guest's handlers of all exceptions, but for those that hand theirs to the host. The world is stopped.
func (v *vcpu) plantHandlers(p *patches) handlerEntries {
	as, at := v.m.space(0), v.handlersOf(exceptions|1<<x86.VectorDB|1<<x86.VectorBP)
	for i, l := range at {
		at[i].planted = !v.handsOver(as, &l) && p.apply(as, l.at, x86.Int3) == nil
	}
	return at
}

// awaitHandler runs the vCPU, for which an exception is queued, until it is in its handler. The world is stopped.
func (v *vcpu) awaitHandler(entries handlerEntries) error {
	given := false
	if err := v.runNested(func() bool {
		if !v.readTrap() {
			return false
		}
		if entries.has(&v.trap) {
			return true
		}
		if given = v.trap.via == viaStub; given {
			v.dispatch()
		}
		return given
	}); err != nil || given {
		return err
	}
	v.resume()
	return nil
}

// handsOver reports whether a handler is a stub that hands its exception to the host: an int3 in one of vector 3 would come to itself.
func (v *vcpu) handsOver(as guest.AddressSpace, l *landing) bool {
	if l.vector == x86.VectorBP && v.m.payload().forwards() {
		return true
	}
	var b [2]byte
	return as.Read(l.at, b[:]) == nil && slices.ContainsFunc(trapPorts[:], func(port uint8) bool {
		return bytes.HasPrefix(guest.TrapStub(port), b[:])
	})
}

// ownCode reads what the guest itself has at addr, as far as there is anything, and returns how much.
func (m *Machine) ownCode(root guest.GPA, addr guest.GVA, code []byte) int {
	n := len(code)
	for n > 0 && m.space(root).Read(addr, code[:n]) != nil {
		n--
	}
	m.engine.Own(root, addr, code[:n])
	return n
}
