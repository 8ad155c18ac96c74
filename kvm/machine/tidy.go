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
// A vCPU can come to rest anywhere, also in the code of a probe's handlers, whose registers are not the guest's. Where that matters it
// is moved on first, to where they are: before the guest is given an interrupt, so that no task of it is ever switched out
// there (interrupts of a Linux guest are KVM's: the code for its kernel keeps them off); when the guest is paused; and when it is
// saved. What has no effect yet is begun again, and what has had all of it is ended, by the engine alone. In between the vCPU
// runs on, with the world stopped and an int3 where the handlers have ended.

// untidied reports whether vCPUs that rest in the engine's code are to leave it. Precondition: mu held.
func (m *Machine) untidied() bool {
	g := m.gate.Load()
	return g&gateTidy != 0 || g&gateHold != 0 && m.phase == PhasePaused
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
func (m *Machine) runTidied(f func() error) error {
	m.mu.Lock()
	m.gate.Or(gateTidy)
	for _, v := range m.vcpus {
		if v.where == stateSettled && v.stop == nil {
			v.setState(stateParked)
		}
	}
	m.wakeAll()
	err := m.awaitRest(nil, m.stopTimeout, true)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.gate.And(^gateTidy)
		m.wakeAll()
		m.mu.Unlock()
	}()
	if err != nil {
		return err
	}
	return f()
}

// leaveEngineCode moves the vCPU out of the engine's code, as far as that can be done, and reports whether it has. It runs on its
// own thread, between two exits.
func (v *vcpu) leaveEngineCode() bool {
	// An exception on its way in is lost when registers are set, and the trap of a guest that steps itself comes after
	// the very instruction.
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

// undoHandlerEntry has a vCPU that stands at the beginning of the guest's own handler of breakpoints, to hand one of the engine's over,
// stand at that int3 again, as if it had not been executed.
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

// runToEnd lets the vCPU run until the engine's code that it is in has ended, and settles it there. The world is stopped. A vCPU
// may also leave that code by an exception; the run ends there.
func (v *vcpu) runToEnd() (err error) {
	s := v.state()
	ends, ok := v.m.engine.Settle(v.id, s) // others had their turn: it may be in other code now
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
	}, func() bool { return !v.m.engine.InCode(guest.GVA(v.regs.RIP)) }); err != nil || !there {
		return err
	}
	v.countExit()
	v.n.traps.inc()
	_, ok = v.m.engine.Settle(v.id, v.trap.state)
	if v.trap.via == viaStub {
		v.writeFrame() // what is left of it on the stub's stack is the guest's own, too
		v.leaveStub()
	} else {
		v.resume()
	}
	if !ok {
		return errElsewhere
	}
	return nil
}
