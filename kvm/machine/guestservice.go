package machine

import (
	"github.com/guestprobe/guestprobe/guest"
)

// handleService does what kernel code of the guest asks for at a port; false when the port
// is none of those. User code with access to the ports has none of them.
func (v *vcpu) handleService(port uint16) bool {
	if v.cpl() != 0 {
		return false
	}
	switch port {
	case guest.PortHome:
		if at := v.m.engine.Home(guest.GVA(v.regs.RAX)); at != guest.GVA(v.regs.RAX) {
			v.regs.RAX = uint64(at)
			v.kvm.SetRegsDirty()
		}
	case guest.PortText:
		v.reconcileText()
	default:
		return false
	}
	return true
}

// reconcileText has the engine compare its bytes with the guest's text, and goes on
// when that is done. The engine stops the world for it, so the vCPU rests meanwhile; one that has the world stopped itself
// does it when that is over, and before it runs the guest again.
func (v *vcpu) reconcileText() {
	m := v.m
	if v.owesText = v.where.stops(); v.owesText {
		return
	}
	v.completeExit()
	m.mu.Lock()
	defer m.mu.Unlock()
	done := false
	go func() {
		_ = m.engine.Reconcile() // the engine has logged it
		m.mu.Lock()
		defer m.mu.Unlock()
		done = true
		v.wake.Signal()
	}()
	v.rest(stateComparing, func() bool { return done })
}

// warnInterrupt says that the guest hands on an interrupt as if it were an
// exception. Only exceptions are the probed instruction's; the frame stays as it is.
func (v *vcpu) warnInterrupt() {
	if v.m.told.CompareAndSwap(false, true) {
		v.m.log.Warn("the guest forwards an interrupt through port 0xf6, which is for exceptions, vectors 0 to 31: it is left to the guest as it is. "+
			"A handler that wants to know where interrupted code stands asks port 0xf8",
			"vcpu", v.id, "vector", v.trap.trap.Vector, "rip", v.trap.state.Regs.RIP)
	}
}
