package machine

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// dispatch takes the trap in v.trap to the engine and does what it says. The guest's own
// int3 that was given back by an exception comes here again where the guest's vector
// forwards it: the engine has seen it, and the probe at the same address its hit.
func (v *vcpu) dispatch() {
	given := v.given
	v.given = 0
	if t := &v.trap; given != 0 && t.via == viaStub && t.trap.Kind == probe.TrapBreakpoint && guest.GVA(t.state.Regs.RIP) == given {
		v.continueAt(x86.VectorBP, "int3")
		return
	}
	v.obey(v.m.engine.Hit(v.id, v.trap.state, v.trap.trap))
	if v.passes != [probe.NumMilestones]bool{} {
		v.passMilestones()
	}
}

// obey carries out the engine's verdict on v.trap.
func (v *vcpu) obey(d probe.Verdict) {
	if d.Stop {
		v.due.raise(dueStop)
	}
	switch d.Action {
	case probe.Resume:
		if d.Stop && v.trap.via == viaStub {
			v.leaveStub() // it stops in the interrupted code
			break
		}
		v.resume()
	case probe.NotOurs:
		v.passToGuest()
	case probe.Inject:
		v.inject(d.Fault)
	case probe.StepInPlace:
		v.stepInPlace()
	default:
		panic(fmt.Sprintf("BUG: machine: verdict %d", d.Action))
	}
	if d.Shadow {
		v.shadowInterrupts()
	}
}

// resume lets the interrupted code go on at the registers in v.trap.state.
func (v *vcpu) resume() {
	switch v.trap.via {
	case viaExit:
		v.kvm.SetRegsDirty()
		v.midIO = false // where it was an out, RIP has moved away from it
	case viaStub:
		// Back to kernel code there is nothing that iretq does and the host
		// cannot: that saves an instruction, and it does not matter whether the
		// frame has survived what the host wrote to the interrupted stack, where
		// it stands if the guest's vector has no stack of its own. A Linux kernel's stub has
		// no iretq at all; at CPL3 the gs base and the page tables are still those of user code.
		// Behind a step the vCPU stands in the interrupted code, wherever that is.
		if v.step != nil || v.trap.state.CPL == 0 && guest.GVA(v.frame.RIP).Canonical() || !v.m.payload().stubReturns() {
			v.leaveStub()
		} else if !v.writeFrame() {
			v.crashFrame()
		}
	case viaFault:
		if !v.writeFrame() || !v.writeFault(guest.FaultHandled, v.trap.trap.Code) {
			v.crashFrame()
		}
	case viaHandler:
		v.leaveStub()
	}
}

// crashFrame ends a guest whose exception frame cannot be written any more.
func (v *vcpu) crashFrame() {
	v.crash(CrashBreakpoint, fmt.Sprintf("the frame at %v of a forwarded exception is no longer writable", v.trap.frame))
}

// passToGuest gives the trap to the guest.
func (v *vcpu) passToGuest() {
	t := &v.trap
	switch {
	case t.trap.Kind == probe.TrapDetour:
		// An out in the engine's memory that is not the engine's: nobody's port.
	case t.via == viaFault:
		// The guest's handler proceeds, with the registers as they are now.
		if !v.writeFrame() {
			v.crashFrame()
		}
	case t.trap.Kind == probe.TrapBreakpoint && v.claim():
		v.resume()
	case t.trap.Kind == probe.TrapBreakpoint:
		v.n.foreign.inc()
		v.passBreakpoint()
	case t.via == viaStub:
		// RIP is that of the guest's own code now, where the step ended in the engine's.
		if !v.writeFrame() {
			v.crashFrame()
			return
		}
		v.continueAt(x86.VectorDB, "debug exception")
	default:
		v.kvm.SetRegsDirty()
		v.deliver(probe.Trap{Vector: x86.VectorDB, DR6: t.trap.DR6})
	}
}

// passBreakpoint gives an int3 that is nobody's to the guest's #BP handler,
// which must see RIP behind it.
func (v *vcpu) passBreakpoint() {
	if v.trap.via == viaStub {
		v.continueAt(x86.VectorBP, "int3") // the frame has RIP behind it
		return
	}
	// Where RIP must be for that depends on the host: VMX adds the length of
	// the instruction to a software exception's RIP (SDM Vol. 3, 26.6.1.1), KVM
	// does the same for SVM; others push RIP as it is.
	v.given = guest.GVA(v.regs.RIP)
	if v.m.host.Traps.CPL(v.cpl()).Inject != host.InjectAt {
		v.regs.RIP++
	}
	v.kvm.SetRegsDirty()
	v.deliver(probe.Trap{Vector: x86.VectorBP})
}

// continueAt leaves a stub for the guest's own handler of the same exception,
// which finds the frame where the processor left it.
func (v *vcpu) continueAt(vector uint8, what string) {
	if err := v.m.payload().passToGuest(v, vector); err != nil {
		v.crash(CrashBreakpoint, fmt.Sprintf("%s at %#x is not a probe's, and %v", what, v.frame.RIP, err))
		return
	}
	v.kvm.SetRegsDirty()
}

// inject delivers an exception to the interrupted code, at the registers in
// v.trap.state.
func (v *vcpu) inject(f probe.Trap) {
	// The image of RFLAGS that a fault pushes has RF (SDM Vol. 3, 19.3.1.1). What KVM is given as on its way in goes in with RFLAGS as they are.
	flags := uint64(x86.FlagRF)
	if f.Vector == x86.VectorDB {
		flags = 0
	}
	switch v.trap.via {
	case viaExit:
		v.regs.RFLAGS |= flags
		v.kvm.SetRegsDirty()
		v.deliver(f)
	case viaStub, viaHandler:
		v.leaveStub()
		v.regs.RFLAGS |= flags
		v.deliver(f)
	case viaFault:
		if !v.writeFrame() || !v.writeFault(uint64(f.Vector), f.Code) {
			v.crashFrame()
			return
		}
		if f.Vector == x86.VectorPF && v.sregs.CR2 != uint64(f.CR2) {
			v.sregs.CR2 = uint64(f.CR2)
			v.kvm.SetSregsDirty()
		}
	}
}

// leaveStub does what the iretq of the stub or handler would do (SDM Vol. 2,
// IRET): the vCPU stands in the interrupted code, at the registers in v.frame.
func (v *vcpu) leaveStub() {
	t := &v.trap
	*v.regs = v.frame
	v.regs.RFLAGS = v.regs.RFLAGS&rflagsIret | x86.Flag1
	v.kvm.SetRegsDirty()
	if uint16(t.cs) != v.sregs.CS.Selector {
		v.sregs.CS, v.sregs.SS = kvm.CodeSegment(uint16(t.cs)), kvm.DataSegment(uint16(t.ss))
		v.kvm.SetSregsDirty()
	}
	v.midIO = false // RIP has moved, so KVM has nothing to step over
}

// rflagsIret are the flags that iretq loads at CPL0 in 64-bit mode: all that
// exist but VM. The frame is the guest's, and may hold anything.
const rflagsIret = x86.FlagsStatus | x86.FlagTF | x86.FlagIF | x86.FlagDF | x86.FlagIOPL | x86.FlagNT | x86.FlagRF |
	x86.FlagAC | x86.FlagVIF | x86.FlagVIP | x86.FlagID

// deliver queues an exception for the next KVM_RUN.
func (v *vcpu) deliver(f probe.Trap) {
	if f.Vector == x86.VectorDB && f.DR6 != 0 {
		// KVM_SET_VCPU_EVENTS carries no DR6.
		var d kvm.DebugRegs
		if err := v.kvm.GetDebugRegs(&d); err == nil {
			d.DR6 = f.DR6
			err = v.kvm.SetDebugRegs(&d)
			if err != nil {
				v.m.log.Error("set DR6 failed", "vcpu", v.id, "err", err)
			}
		}
	}
	if err := v.kvm.InjectException(f.Vector, hasErrorCode(f.Vector), f.Code, uint64(f.CR2)); err != nil {
		v.crash(CrashHost, fmt.Sprintf("exception %d could not be delivered: %v", f.Vector, err))
	}
}

// hasErrorCode reports whether the processor pushes an error code with an
// exception (SDM Vol. 3, table 6-1; APM Vol. 2, 8.1 for 29 and 30).
func hasErrorCode(vector uint8) bool {
	switch vector {
	case 8, 10, 11, 12, 13, 14, 17, 21, 29, 30:
		return true
	}
	return false
}

// shadowInterrupts holds off interrupts until the next instruction has run, as sti does.
func (v *vcpu) shadowInterrupts() {
	e, err := v.kvm.Events()
	if err == nil {
		e.I.Shadow = shadowSTI
		e.Flags |= kvm.EventShadow
		err = v.kvm.SetEvents(&e)
	}
	if err != nil {
		v.m.log.Error("set interrupt shadow failed", "vcpu", v.id, "err", err)
	}
}

// shadowSTI is KVM_X86_SHADOW_INT_STI.
const shadowSTI = 2
