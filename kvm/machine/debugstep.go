package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// steps is a request to a vCPU's thread.
type steps struct {
	n    int
	ctx  context.Context
	done chan struct{}
	did  int
	err  error
}

// serveDebugger does the work for which the vCPU was woken, and reports whether
// it should rest again.
func (v *vcpu) serveDebugger() bool {
	v.m.mu.Lock()
	r, resumes := v.steps, v.resumes
	v.resumes = resumes && r != nil
	v.m.mu.Unlock()
	if r != nil {
		r.serve(v)
		return true
	}
	if resumes {
		v.trap = arrival{via: viaExit, state: v.state()}
		v.obey(v.m.engine.Resume(v.id, v.trap.state))
	}
	return v.due == dueStop
}

// serve executes the instructions. It runs on the vCPU's thread, and leaves the
// vCPU in a resting state.
func (r *steps) serve(v *vcpu) {
	m := v.m
	if v.owesText { // left by a step in place that ended with a stop
		v.reconcileText()
	}
	for r.did < r.n && r.err == nil {
		if m.gate.Load()&(gateStop|gateStep) != 0 { // other threads stop the world between two steps
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
			r.err = fmt.Errorf("vcpu %d: %w", v.id, ErrInEngine) // an iretq has returned there
		}
		if r.err == nil {
			if r.err = v.stepForDebugger(); r.err == nil {
				r.did++
			}
		}
		if v.owesText { // before the next instruction, which may be the changed one
			v.reconcileText()
		}
	}
	v.completeExit()
	m.engine.TakeStopper(v.id) // a hit on the way stops where the step does
	v.due, v.haltAll = duePark, false
	m.mu.Lock()
	defer m.mu.Unlock()
	v.noteStep()
	v.steps = nil
	// It rests again before the caller learns of it.
	v.setState(stateSettled)
	m.rested.Broadcast()
	close(r.done)
}

// debugStep is one instruction that a vCPU executes for a debugger. The vCPU's thread owns it.
type debugStep struct {
	v    *vcpu
	owed bool  // the trap of the guest's own TF is still to be raised
	err  error // why the instruction was not executed
}

// stepForDebugger executes one instruction.
func (v *vcpu) stepForDebugger() error {
	v.asleep, v.step = false, &debugStep{v: v}
	defer func() { v.step = nil }()
	return v.step.execute()
}

// execute executes the instruction.
func (s *debugStep) execute() error {
	v, m := s.v, s.v.m
	if on, err := v.kvm.Delivering(); on || err != nil {
		if err == nil {
			err = s.enterHandler()
		}
		return err
	}
	state := v.state()
	code := make([]byte, x86.MaxLen)
	n := m.readOwnCode(state.Root, guest.GVA(state.Regs.RIP), code)
	v.trap = arrival{via: viaExit, state: state, trap: probe.Trap{Kind: probe.TrapBreakpoint}}
	at := guest.GVA(state.Regs.RIP)
	d := m.engine.Advance(v.id, state, code[:n])
	if own := func() bool {
		return d.Action == probe.NotOurs && n > 0 && code[0] == x86.Int3 && guest.GVA(state.Regs.RIP) == at
	}; own() {
		if v.claim() { // a probe's int3 in another mapping of the file, which claim adds here
			d = m.engine.Advance(v.id, state, code[:n])
		}
		if own() {
			return s.executeInt3(at)
		}
	}
	v.obey(d)
	switch {
	case m.ended():
		return ErrNotRunnable
	case errors.Is(s.err, ErrGuestReset), errors.Is(s.err, ErrRanAway):
		return s.err
	case s.err != nil:
		return fmt.Errorf("%w at %v: %w", ErrCannotStep, guest.GVA(v.regs.RIP), s.err)
	case s.owed:
		v.deliver(probe.TrapOfTF)
	}
	if d.Action == probe.Inject || d.Action == probe.NotOurs || s.owed {
		if err := s.enterHandler(); err != nil {
			return err
		}
	}
	if state = v.state(); m.engine.InSlot(guest.GVA(state.Regs.RIP)) && m.engine.Return(v.id, state) {
		v.kvm.SetRegsDirty()
	}
	return nil
}

// executeInt3 has the processor execute the guest's own int3 at this address,
// and deliver it, so that the vCPU is at the first instruction of the guest's handler.
// Queuing an exception without the int3 would not work: for the RIP in its
// frame, VMX and SVM use the instruction length that KVM remembers from its last
// exit, which is another instruction's.
func (s *debugStep) executeInt3(at guest.GVA) error {
	v := s.v
	return v.m.stopWorld(v, func() (err error) {
		var p patches
		defer func() { err = errors.Join(err, p.undo()) }()
		// Another vCPU may have written there since it was read, and one of the engine's
		// jumps may cover it.
		root := v.state().Root
		if code, err := p.restoreCode(v.m.engine, v.m.space(root), root, at); err != nil || len(code) == 0 || code[0] != x86.Int3 {
			return errors.Join(err, fmt.Errorf("%w at %v: its text has just changed", ErrCannotStep, at))
		}
		v.n.foreign.inc()
		ends := s.plantHandlers(&p)
		// Interrupts of KVM's controllers would be delivered first.
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
		case guest.GVA(v.trap.state.Regs.RIP) != at: // another exception, during its delivery
			v.resume()
			return nil
		}
		v.regs.RFLAGS |= held
		v.passBreakpoint()
		return s.awaitHandler(ends)
	})
}

// enterHandler has the processor deliver the queued exception, so that the vCPU
// is at the first instruction of the guest's handler. If the guest's vector
// forwards breakpoints or debug exceptions to the host, it is the address at
// which the guest continues with an exception of its own.
func (s *debugStep) enterHandler() error {
	return s.v.m.stopWorld(s.v, func() (err error) {
		var p patches
		defer func() { err = errors.Join(err, p.undo()) }()
		return s.awaitHandler(s.plantHandlers(&p))
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

// plantHandlers puts temporary int3s at the guest's handlers of all exceptions,
// except at those that forward the exception to the host. The world is stopped.
func (s *debugStep) plantHandlers(p *patches) handlerEntries {
	as, at := s.v.m.space(0), s.v.handlersOf(exceptions|1<<x86.VectorDB|1<<x86.VectorBP)
	for i, l := range at {
		at[i].planted = !s.handsOver(as, &l) && p.apply(as, l.at, x86.Int3) == nil
	}
	return at
}

// awaitHandler runs the vCPU, for which an exception is queued, until it is in its handler. The world is stopped.
func (s *debugStep) awaitHandler(entries handlerEntries) error {
	v := s.v
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

// handsOver reports whether a handler is a stub that forwards its exception to
// the host: an int3 in the stub of vector 3 would trap to itself.
func (s *debugStep) handsOver(as guest.AddressSpace, l *landing) bool {
	if l.vector == x86.VectorBP && s.v.m.payload().forwards() {
		return true
	}
	var b [2]byte
	return as.Read(l.at, b[:]) == nil && slices.ContainsFunc(trapPorts[:], func(port uint8) bool {
		return bytes.HasPrefix(guest.TrapStub(port), b[:])
	})
}
