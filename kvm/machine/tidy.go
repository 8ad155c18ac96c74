package machine

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// How vCPUs leave the engine's code
//
// A vCPU can come to rest anywhere, including in the code of a probe's handlers,
// where the registers are not the guest's. Where that matters, the vCPU is first
// moved to a place where they are:
//
//   - before the guest is given an interrupt, so that its tasks are never
//     switched out there (KVM provides the interrupts of a Linux guest, so the
//     code for its kernel keeps them off instead);
//   - when the guest is paused;
//   - when it is saved.
//
// Code that has had no effect yet is undone and begins again. Code that has had
// its whole effect is ended by the engine alone. In between, the vCPU runs on,
// with the world stopped and an int3 at the end of the handlers.

// untidied reports whether vCPUs that rest in the engine's code have to leave
// it. Precondition: mu held.
func (s *vcpuSet) untidied() bool {
	g := s.gate.Load()
	return g&gateTidy != 0 || g&gateHold != 0 && s.phase == PhasePaused
}

// restsTidy reports whether the vCPU rests, and has left the engine's code if it could. Precondition: m.mu held.
func (v *vcpu) restsTidy() bool {
	switch {
	case v.where == stateLeavingQueued:
		return false
	case v.where == stateParked:
		return !v.m.untidied()
	}
	return v.where.rests()
}

// runTidied runs f while all vCPUs rest outside of the engine's code, as far as they can be brought there.
func (s *vcpuSet) runTidied(f func() error) error {
	s.mu.Lock()
	s.gate.Or(gateTidy)
	for _, v := range s.vcpus {
		if v.where == stateSettled && v.stop == nil {
			v.setState(stateParked)
		}
	}
	s.wakeAll()
	err := s.awaitRest(nil, s.stopTimeout, true)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.gate.And(^gateTidy)
		s.wakeAll()
		s.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	return f()
}

// leaveEngineCode moves the vCPU out of the engine's code, as far as possible,
// and reports whether it has. It runs on the vCPU's own thread, between two
// exits.
func (v *vcpu) leaveEngineCode() bool {
	// Setting registers loses a pending exception, and the trap of a guest that
	// single-steps itself follows this very instruction.
	if on, err := v.kvm.Delivering(); on || err != nil || v.regs.RFLAGS&x86.FlagTF != 0 {
		return false
	}
	v.undoHandlerEntry()
	s := v.state()
	before := *s.Regs
	if _, ok := v.m.engine.Settle(v.id, s); ok {
		if before != *s.Regs {
			v.kvm.SetRegsDirty()
		}
		return true
	}
	err := v.m.stopWorld(v, v.runToEnd)
	switch {
	case err == nil:
		return true
	case errors.Is(err, errElsewhere):
		v.m.log.Debug("the handlers of a probe take long", "vcpu", v.id, "rip", guest.GVA(v.regs.RIP))
	}
	return false
}

// undoHandlerEntry moves a vCPU back to an int3 of the engine's, as if the int3
// had not been executed. The vCPU is at the beginning of the guest's own
// breakpoint handler, which was about to forward that int3 to the host.
func (v *vcpu) undoHandlerEntry() {
	if port, ok := v.handsTrap(); !ok || port != guest.PortBreakpoint {
		return
	}
	v.trap = arrival{via: viaStub}
	if !v.readFrame() || v.frame.RFLAGS&x86.FlagTF != 0 {
		return
	}
	v.frame.RIP--
	at := guest.GVA(v.frame.RIP)
	if _, _, site := v.m.engine.SiteAt(v.trap.state.Root, at); site || v.m.engine.InSlot(at) {
		v.leaveStub()
	}
}

// runToEnd runs the vCPU until the present piece of the engine's code has ended,
// and settles it there. The world is stopped. The run also ends if the vCPU
// leaves that code through an exception.
func (v *vcpu) runToEnd() (err error) {
	s := v.state()
	ends, ok := v.m.engine.Settle(v.id, s) // others had their turn, so it may be in other code now
	if ok {
		v.kvm.SetRegsDirty()
		return nil
	}
	var p patches
	defer func() { err = errors.Join(err, p.undo()) }()
	as := v.m.space(s.Root)
	for _, at := range ends {
		if err := p.apply(as, at, x86.Int3); err != nil {
			return err
		}
	}
	there := false
	if err := v.runNestedFor(nestedLimit, func() bool {
		if v.readTrap() && v.trap.trap.Kind == probe.TrapBreakpoint {
			there = slices.Contains(ends, guest.GVA(v.trap.state.Regs.RIP))
		}
		return there
	}, func() bool { return !v.m.engine.InHandlers(v.id, v.state()) }); err != nil || !there {
		return err
	}
	v.countExit()
	v.n.traps.inc()
	_, ok = v.m.engine.Settle(v.id, v.trap.state)
	if v.trap.via == viaStub {
		v.writeFrame() // the rest of the stub's stack is the guest's own, too
		v.leaveStub()
	} else {
		v.resume()
	}
	if !ok {
		return errElsewhere
	}
	return nil
}
