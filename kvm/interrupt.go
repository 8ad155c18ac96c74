package kvm

import (
	"fmt"
	"sync/atomic"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// RequestInterruptWindow says whether Run shall return with
// ReasonInterruptWindow as soon as the guest can take an interrupt. Owner
// thread only.
func (v *VCPU) RequestInterruptWindow(on bool) {
	switch is := atomic.LoadUint32(&v.page.in)&runRequestWindow != 0; {
	case is == on: // at most exits, without a locked write
	case on:
		atomic.OrUint32(&v.page.in, runRequestWindow)
	default:
		atomic.AndUint32(&v.page.in, ^runRequestWindow)
	}
}

// InterruptFlag reports whether the guest had interrupts enabled (RFLAGS.IF)
// when Run returned.
func (v *VCPU) InterruptFlag() bool { return v.page.ifFlag != 0 }

// InterruptReady reports whether Interrupt would be accepted now. That is so if
// KVM reported it when Run returned (enabled, no shadow of sti or mov ss, no
// event being delivered), the present registers, which may have changed, still
// have IF set, and no event was passed to KVM since.
func (v *VCPU) InterruptReady() bool {
	return v.page.readyForIntr != 0 && v.regs.RFLAGS&x86.FlagIF != 0 && !v.queued
}

// Interrupt has the next Run deliver the external interrupt vec, before the next
// instruction of the guest (KVM_INTERRUPT, section 4.16). KVM delivers it
// whether or not the guest can take it, so Interrupt fails with ErrNotReady when
// InterruptReady is false. With interrupt controllers in the kernel
// (VM.CreateIRQChip) interrupts come from those, and Interrupt fails with ENXIO.
// Owner thread only.
func (v *VCPU) Interrupt(vec uint8) error {
	if !v.InterruptReady() {
		return fmt.Errorf("interrupt %#x: %w", vec, ErrNotReady)
	}
	// gokvm passes the number itself where the kernel expects a pointer.
	irq := uint32(vec)
	if _, err := ioctlPtr(v.fd.num(), ioInterrupt, &irq); err != nil {
		return fmt.Errorf("interrupt %#x: %w", vec, err)
	}
	v.queued, v.given = true, true
	return nil
}

// TakeInterruptBack takes back the interrupt of Interrupt if the following Run
// ended before the guest received it, for example because of a Kick or a signal.
// Otherwise KVM would deliver the interrupt with the next Run, even if the guest
// is in another state by then. It reports whether there was one. Owner thread
// only.
func (v *VCPU) TakeInterruptBack() (bool, error) {
	if !v.given {
		return false, nil
	}
	v.given = false
	var e Events
	if err := v.GetEvents(&e); err != nil || e.I.Inject == 0 || e.I.Soft != 0 {
		return false, err
	}
	e.I.Inject = 0
	return true, v.SetEvents(&e)
}

// NMI has the guest take a non-maskable interrupt as soon as it can (section
// 4.64).
func (v *VCPU) NMI() error {
	if _, err := ioctl(v.fd.num(), ioNMI, 0); err != nil {
		return fmt.Errorf("nmi: %w", err)
	}
	return nil
}
