package kvm

import (
	"errors"
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Events are the exceptions, interrupts and NMIs that are on their way into a
// vCPU: struct kvm_vcpu_events.
type Events = gokvm.VCPUEvents

// Bits of Events.Flags: which fields KVM_SET_VCPU_EVENTS shall take
// (KVM_VCPUEVENT_VALID_*).
const (
	EventNMIPending  uint32 = 1 << 0
	EventSIPIVector  uint32 = 1 << 1
	EventShadow      uint32 = 1 << 2
	EventSMM         uint32 = 1 << 3
	EventPayload     uint32 = 1 << 4
	EventTripleFault uint32 = 1 << 5
)

// GetEvents reads the vCPU's events (KVM_GET_VCPU_EVENTS, section 4.31).
func (v *VCPU) GetEvents(e *Events) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetEvents, e); err != nil {
		return fmt.Errorf("get events: %w", err)
	}
	return nil
}

// Events returns the vCPU's events, like GetEvents.
func (v *VCPU) Events() (Events, error) {
	var e Events
	err := v.GetEvents(&e)
	return e, err
}

// SetEvents replaces the vCPU's events (KVM_SET_VCPU_EVENTS, section 4.32).
func (v *VCPU) SetEvents(e *Events) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetEvents, e); err != nil {
		return fmt.Errorf("set events: %w", err)
	}
	v.queued, v.cut = e.E.Inject != 0 || e.I.Inject != 0 || e.N.Inject != 0, false
	return nil
}

// Delivering reports whether an exception is on its way into the guest: the next Run delivers it before anything is
// executed. Any thread may call it while the vCPU is not in Run.
func (v *VCPU) Delivering() (bool, error) {
	var e Events
	if err := v.GetEvents(&e); err != nil {
		return false, err
	}
	return e.E.Inject != 0 || e.E.Pending != 0 || v.hidesBreakpoint(&e), nil
}

// HidesBreakpoint reports whether a #BP that was queued here is on its way into the guest, which KVM does not show among the
// events. After a Run it is told as TakeBreakpointBack does. Any thread may call it while the vCPU is not in Run.
func (v *VCPU) HidesBreakpoint() (bool, error) {
	var e Events
	err := v.GetEvents(&e)
	return err == nil && v.hidesBreakpoint(&e), err
}

// hidesBreakpoint reports whether there is a #BP that the events e do not show.
func (v *VCPU) hidesBreakpoint(e *Events) bool {
	if e.E.Nr != x86.VectorBP || e.E.Inject != 0 || e.E.Pending != 0 || e.I.Inject != 0 || e.N.Inject != 0 {
		return false // of what is hidden, the number is to be seen
	}
	return v.queued || v.cut && v.page.readyForIntr == 0 && v.regs.RFLAGS&x86.FlagIF != 0 && !v.irqchip && e.I.Shadow == 0
}

// InjectException has the next Run deliver exception vec (0..31, not 2, which
// is the NMI) to the guest at the registers as they are then, with an error
// code if hasErr, and with cr2 in CR2 if vec is x86.VectorPF. ErrEventPending means
// that something else is on its way in. Owner thread only.
//
// A #BP is good only right after Run reported the int3. Where RIP must stand
// depends on the host: behind a debug exit, VMX and SVM take it to be at the
// int3 and push the address behind it (SDM Vol. 3, 27.6.1.1: RIP plus the
// instruction length, which KVM remembers from that exit); kvm_pvm pushes RIP
// as it is. A #DB leaves DR6 alone: see SetDebugRegs.
func (v *VCPU) InjectException(vec uint8, hasErr bool, code uint32, cr2 uint64) error {
	fail := func(err error) error { return fmt.Errorf("inject exception %d: %w", vec, err) }
	if vec > 31 || vec == 2 {
		return fail(fmt.Errorf("not an exception vector"))
	}
	var e Events
	if err := v.GetEvents(&e); err != nil {
		return fail(err)
	}
	// KVM does not show #BP and #OF among the events, hence the second look at
	// what was queued here.
	if v.queued || e.E.Inject != 0 || e.I.Inject != 0 || e.N.Inject != 0 {
		return fail(ErrEventPending)
	}
	// The exception ends the shadow of an sti or mov ss before it, as it does
	// on a processor.
	e.I.Shadow = 0
	e.Flags |= EventShadow
	e.E = gokvm.Exception{Inject: 1, Nr: vec, ErrorCode: code}
	if hasErr {
		e.E.HadErrorCode = 1
	}
	if err := v.SetEvents(&e); err != nil {
		return fail(err)
	}
	if vec == x86.VectorPF && v.sregs.CR2 != cr2 {
		v.sregs.CR2 = cr2
		v.SetSregsDirty()
	}
	return nil
}

// TakeBreakpointBack undoes an int3 that the guest has executed, on a host where that makes the guest's own #BP of it, when Run
// ended before the guest got that: RIP is behind it then, KVM does not show the exception among the events (it expects RIP at the
// int3, KVM_GET_VCPU_EVENTS, section 4.31), and drops it when registers are set. Afterwards the vCPU is at the int3
// and nothing is on its way in. It reports whether there was one, which is told by an interrupt that cannot come in: it
// does not see one where interrupts are off or come from controllers in the kernel (VM.CreateIRQChip). What tells it is as the
// last Run left it, so that there is none unless that was interrupted, and neither registers nor events have been set since. Owner
// thread only.
func (v *VCPU) TakeBreakpointBack() (bool, error) {
	if !v.cut {
		return false, nil
	}
	v.cut = false
	if v.page.readyForIntr != 0 || v.regs.RFLAGS&x86.FlagIF == 0 || v.irqchip || v.queued {
		return false, nil
	}
	var e Events
	// What is shown is not a #BP. Of that, only the number is to be seen.
	if err := v.GetEvents(&e); err != nil || e.E.Nr != x86.VectorBP || e.E.Inject != 0 || e.E.Pending != 0 ||
		e.I.Inject != 0 || e.I.Shadow != 0 || e.N.Inject != 0 {
		return false, err
	}
	e.E = gokvm.Exception{}
	regs := *v.regs
	regs.RIP--
	return true, errors.Join(v.SetEvents(&e), v.SetRegs(&regs))
}
