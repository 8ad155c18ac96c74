package machine

import (
	"encoding/binary"
	"fmt"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
)

// dispatch passes the trap in v.trap to the engine and carries out its decision.
// The guest's own int3 that was returned by an exception arrives here again if
// the guest's vector forwards it: by then the engine has seen it, and the probe
// at the same address has had its hit.
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

// resume continues the interrupted code with the registers in v.trap.state.
func (v *vcpu) resume() {
	switch v.trap.via {
	case viaExit:
		v.kvm.SetRegsDirty()
		v.midIO = false // after an out, RIP has moved away from it
	case viaStub:
		// The host can do everything that an iretq back to kernel code does. That saves an
		// instruction. It also does not depend on the frame, which the host's writes to the
		// interrupted stack may have overwritten: the frame is there if the guest's vector
		// has no stack of its own. A Linux kernel's stub has no iretq at all; at CPL3 the
		// gs base and the page tables still belong to user code. After a step the vCPU is
		// in the interrupted code, wherever that is.
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

// crashFrame ends a guest whose exception frame is no longer writable.
func (v *vcpu) crashFrame() {
	v.crash(CrashBreakpoint, fmt.Sprintf("the frame at %v of a forwarded exception is no longer writable", v.trap.frame))
}

// passToGuest passes the trap to the guest.
func (v *vcpu) passToGuest() {
	t := &v.trap
	switch {
	case t.trap.Kind == probe.TrapDetour:
		// An out in the engine's memory that is not the engine's: an unused port.
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
		// RIP is now in the guest's own code, if the step ended in the engine's.
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

// passBreakpoint passes an int3 that is not the engine's to the guest's #BP
// handler, which must see RIP after it.
func (v *vcpu) passBreakpoint() {
	if v.trap.via == viaStub {
		v.continueAt(x86.VectorBP, "int3") // the frame has RIP after it
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

// continueAt leaves a stub and continues with the guest's own handler of the
// same exception, which finds the frame where the processor left it.
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
	// The image of RFLAGS that a fault pushes has RF (SDM Vol. 3, 19.3.1.1). KVM
	// delivers a pending exception with RFLAGS as they are.
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

// leaveStub does the work of the iretq of the stub or handler (SDM Vol. 2,
// IRET): afterwards the vCPU is in the interrupted code, with the registers in
// v.frame.
func (v *trapFrame) leaveStub() {
	t := &v.trap
	*v.regs = v.frame
	v.regs.RFLAGS = v.regs.RFLAGS&rflagsIret | x86.Flag1
	v.kvm.SetRegsDirty()
	if uint16(t.cs) != v.sregs.CS.Selector {
		v.sregs.CS, v.sregs.SS = v.segments(uint16(t.cs), uint16(t.ss))
		v.kvm.SetSregsDirty()
	}
	v.midIO = false // RIP has moved, so KVM has nothing to step over
}

// segments returns the code and stack segments that an iretq would load for two
// selectors. 32-bit code has the segments that the guest's tables describe.
// 64-bit code has flat ones whatever these say (SDM Vol. 3, 3.4.5.1), and so has
// code whose selectors no iretq could load, because the guest has changed its
// tables since.
func (v *trapFrame) segments(cs, ss uint16) (code, stack kvm.Segment) {
	const (
		typeCode       = 1 << 3
		typeConforming = 1 << 2
		typeWritable   = 1 << 1
		typeAccessed   = 1
	)
	code, stack = kvm.CodeSegment(cs), kvm.DataSegment(ss)
	c, ok := v.readSegment(cs)
	switch {
	case !ok, c.Typ&typeCode == 0, c.L != 0, c.DPL > code.DPL, c.DPL != code.DPL && c.Typ&typeConforming == 0:
		return code, stack
	}
	c.Typ |= typeAccessed
	if d, ok := v.readSegment(ss); ok && d.Typ&typeCode == 0 && d.Typ&typeWritable != 0 && d.DPL == stack.DPL {
		d.Typ |= typeAccessed
		stack = d
	}
	return c, stack
}

// readSegment returns the segment of a selector from the guest's table, if it is
// a present code or data segment.
func (v *trapFrame) readSegment(sel uint16) (s kvm.Segment, ok bool) {
	base, limit := v.sregs.GDT.Base, uint32(v.sregs.GDT.Limit)
	if sel&selectorLocal != 0 {
		base, limit = v.sregs.LDT.Base, v.sregs.LDT.Limit
	}
	off, b := uint32(sel&^7), v.raw[:8]
	if off == 0 && sel&selectorLocal == 0 || off+7 > limit || v.m.target().ReadMemory(guest.GPA(v.sregs.CR3), guest.GVA(base+uint64(off)), b) != nil {
		return s, false
	}
	s = kvm.DescribedSegment(sel, binary.LittleEndian.Uint64(b))
	return s, s.Present != 0 && s.S != 0
}

// selectorLocal is TI of a selector: it refers to the LDT (SDM Vol. 3, 3.4.2).
const selectorLocal = 1 << 2

// rflagsIret are the flags that iretq loads at CPL0 in 64-bit mode: all except
// VM. The frame is the guest's, and may hold anything.
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
func (v *trapFrame) shadowInterrupts() {
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
