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

// Delivering reports whether an exception is pending: the next Run delivers it
// before anything is executed. Any thread may call it while the vCPU is not in
// Run.
func (v *VCPU) Delivering() (bool, error) {
	var e Events
	if err := v.GetEvents(&e); err != nil {
		return false, err
	}
	return e.E.Inject != 0 || e.E.Pending != 0 || v.hidesBreakpoint(&e), nil
}

// HidesBreakpoint reports whether a #BP is being delivered to the guest that KVM
// does not show among the events. That is a #BP that was queued here, or after a
// Run one that TakeBreakpointBack would take back. Any thread may call it while
// the vCPU is not in Run.
func (v *VCPU) HidesBreakpoint() (bool, error) {
	var e Events
	err := v.GetEvents(&e)
	return err == nil && v.hidesBreakpoint(&e), err
}

// hidesBreakpoint reports whether there is a #BP that the events e do not show.
func (v *VCPU) hidesBreakpoint(e *Events) bool {
	if e.E.Nr != x86.VectorBP || e.E.Inject != 0 || e.E.Pending != 0 || e.I.Inject != 0 || e.N.Inject != 0 {
		return false // of a hidden exception, only the number is visible
	}
	return v.queued || v.cut && v.page.readyForIntr == 0 && v.regs.RFLAGS&x86.FlagIF != 0 && !v.irqchip && e.I.Shadow == 0
}

// InjectException has the next Run deliver exception vec (0..31, not 2, which is
// the NMI) to the guest at its registers at that time. The exception has an
// error code if hasErr, and cr2 in CR2 if vec is x86.VectorPF. ErrEventPending
// means that another event is being delivered. Owner thread only.
//
// A #BP may only be injected right after Run reported the int3. Where RIP must
// be depends on the host. After a debug exit, VMX and SVM take RIP to be at the
// int3 and push the address after it (SDM Vol. 3, 27.6.1.1: RIP plus the
// instruction length, which KVM remembers from that exit). kvm_pvm pushes RIP as
// it is. A #DB leaves DR6 alone: see SetDebugRegs.
func (v *VCPU) InjectException(vec uint8, hasErr bool, code uint32, cr2 uint64) error {
	fail := func(err error) error { return fmt.Errorf("inject exception %d: %w", vec, err) }
	if vec > 31 || vec == 2 {
		return fail(fmt.Errorf("not an exception vector"))
	}
	var e Events
	if err := v.GetEvents(&e); err != nil {
		return fail(err)
	}
	// KVM does not show #BP and #OF among the events, so check also whether one
	// was queued here.
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

// TakeBreakpointBack undoes an int3 that the guest has executed, on a host where
// the int3 raises the guest's own #BP, if Run ended before the guest received
// it. In that state RIP is after the int3, and KVM does not show the exception
// among the events (it expects RIP at the int3, KVM_GET_VCPU_EVENTS, section
// 4.31). KVM drops the exception when registers are set. After
// TakeBreakpointBack, the vCPU is at the int3 and no event is being delivered.
//
// It reports whether there was such a #BP, which it recognizes by a closed
// interrupt window. So it does not see one while interrupts are off, or if they
// come from controllers in the kernel (VM.CreateIRQChip). It relies on the state
// that the last Run left: it reports false unless that Run was interrupted and
// neither registers nor events have been set since. Owner thread only.
func (v *VCPU) TakeBreakpointBack() (bool, error) {
	if !v.cut {
		return false, nil
	}
	v.cut = false
	if v.page.readyForIntr != 0 || v.regs.RFLAGS&x86.FlagIF == 0 || v.irqchip || v.queued {
		return false, nil
	}
	var e Events
	// A visible exception is not a #BP. Of a hidden one, only the number is
	// visible.
	if err := v.GetEvents(&e); err != nil || e.E.Nr != x86.VectorBP || e.E.Inject != 0 || e.E.Pending != 0 ||
		e.I.Inject != 0 || e.I.Shadow != 0 || e.N.Inject != 0 {
		return false, err
	}
	e.E = gokvm.Exception{}
	regs := *v.regs
	regs.RIP--
	return true, errors.Join(v.SetEvents(&e), v.SetRegs(&regs))
}
