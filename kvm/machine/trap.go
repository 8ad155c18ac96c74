package machine

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/probe"
)

// via is the way in which a trap reached the host. The registers of the
// interrupted code are in different places.
type via uint8

const (
	viaExit    via = iota + 1 // an exit of KVM: they are the vCPU's
	viaStub                   // ports 0xf3, 0xf1: RIP, CS, RFLAGS, RSP and SS are in a frame at the stub's RSP
	viaFault                  // port 0xf6: the same, after vector and error code
	viaHandler                // the guest is at its own handler; the frame is not rewritten but left
)

// arrival is a trap on its way from KVM to the engine. There is one per vCPU,
// reused.
type arrival struct {
	via   via
	trap  probe.Trap
	state probe.State
	frame guest.GVA // viaStub, viaFault: where the frame is
	cs    uint64    // as the frame has them
	ss    uint64
}

// readTrap reports whether the last exit is a trap that may be the engine's,
// and if so fills v.trap in, with RIP at the int3 in all three deliveries.
func (v *trapFrame) readTrap() bool {
	switch v.exit.Reason {
	case kvm.ReasonDebug:
		return v.readDebugTrap()
	case kvm.ReasonInternalError:
		return v.readEmulationTrap()
	case kvm.ReasonIO:
		return v.readForwarded()
	}
	return false
}

// readDebugTrap reads KVM_EXIT_DEBUG, with RIP at the instruction for an int3 (KVM API
// document, section 5).
func (v *trapFrame) readDebugTrap() bool {
	d := &v.exit.Debug
	t := &v.trap
	t.via = viaExit
	t.state = v.state()
	switch {
	case d.Exception == x86.VectorBP:
		t.trap = probe.Trap{Kind: probe.TrapBreakpoint}
	case d.DR6&dr6Points != 0:
		t.trap = probe.Trap{Kind: probe.TrapWatch, DR6: d.DR6}
	default:
		t.trap = probe.Trap{Kind: probe.TrapStep, DR6: d.DR6}
	}
	return true
}

// readEmulationTrap recognizes an int3 on a host that emulates kernel code:
// KVM's emulator has no int3, and fails with RIP at it.
func (v *trapFrame) readEmulationTrap() bool {
	if v.exit.Internal.Suberror != kvm.SuberrorEmulation {
		return false
	}
	if b := v.exit.Internal.EmulationBytes(); len(b) > 0 {
		if b[0] != x86.Int3 {
			return false
		}
	} else if v.m.target().ReadMemory(guest.GPA(v.sregs.CR3), guest.GVA(v.regs.RIP), v.raw[:1]) != nil || v.raw[0] != x86.Int3 {
		return false // KVM returns the bytes since Linux 5.15
	}
	v.trap.via = viaExit
	v.trap.state = v.state()
	v.trap.trap = probe.Trap{Kind: probe.TrapBreakpoint}
	return true
}

// readForwarded reads an exception that the guest's own vector received and its
// stub forwards to the host. Only kernel code may do so: user code with access
// to the ports must not make the host write to an address of its choice.
func (v *trapFrame) readForwarded() bool {
	io := &v.exit.IO
	if io.In || io.Size != 1 || io.Count != 1 || v.cpl() != 0 || io.Port != guest.PortDetour && !v.m.payload().isStub(guest.GVA(v.regs.RIP)) {
		return false
	}
	t := &v.trap
	switch io.Port {
	case guest.PortBreakpoint:
		t.via = viaStub
		t.trap = probe.Trap{Kind: probe.TrapBreakpoint}
	case guest.PortDebug:
		t.via = viaStub
		t.trap = probe.Trap{Kind: probe.TrapStep, DR6: v.dr6()}
		if t.trap.DR6&dr6Step == 0 && t.trap.DR6&dr6Points != 0 {
			t.trap.Kind = probe.TrapWatch
		}
	case guest.PortDetour:
		// The registers already belong to the probed code.
		if !v.m.engine.InSlot(guest.GVA(v.regs.RIP)) {
			return false
		}
		t.via, t.state = viaExit, v.state()
		t.trap = probe.Trap{Kind: probe.TrapDetour}
		v.midIO = true
		return true
	case guest.PortFault:
		t.via = viaFault
	default:
		return false
	}
	v.midIO = true
	if !v.readFrame() {
		return false
	}
	if t.via == viaFault && t.trap.Vector >= guest.TimerVector {
		v.warnInterrupt()
		return false
	}
	if io.Port == guest.PortBreakpoint {
		v.frame.RIP-- // the processor saved the address after the int3
	}
	return true
}

// dr6 returns the guest's DR6, which holds the reason for a #DB.
func (v *trapFrame) dr6() uint64 {
	var d kvm.DebugRegs
	if v.kvm.GetDebugRegs(&d) != nil {
		return 0
	}
	return d.DR6
}
