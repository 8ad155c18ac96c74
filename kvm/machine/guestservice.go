package machine

import (
	"github.com/guestprobe/guestprobe/guest"
)

// handleService serves a request that the guest's kernel code makes at a port.
// It returns false for other ports, and for user code, which has no such
// services even if it may use ports.
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

// reconcileText has the engine compare its bytes with the guest's text, and
// returns when that is done. The engine stops the world for it, so the vCPU
// rests during the comparison. A vCPU that has the world stopped itself does it
// afterwards, before it runs the guest again.
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
		_ = m.engine.Reconcile() // the engine has logged the error
		m.mu.Lock()
		defer m.mu.Unlock()
		done = true
		v.wake.Signal()
	}()
	v.rest(stateComparing, func() bool { return done })
}

// warnInterrupt logs that the guest forwards an interrupt as if it were an
// exception. Only exceptions belong to the probed instruction; the frame stays
// as it is.
func (v *trapFrame) warnInterrupt() {
	if v.m.told.CompareAndSwap(false, true) {
		v.m.log.Warn("the guest forwards an interrupt through port 0xf6, which is for exceptions, vectors 0 to 31: it is left to the guest as it is. "+
			"A handler that needs the address of interrupted code asks port 0xf8",
			"vcpu", v.id, "vector", v.trap.trap.Vector, "rip", v.trap.state.Regs.RIP)
	}
}
