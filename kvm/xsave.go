package kvm

import (
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"golang.org/x/sys/unix"
)

// XCRs are the extended control registers: struct kvm_xcrs.
type XCRs = gokvm.XCRS

// XSaveSize returns the length in bytes of GetXSave's result: 4096, or more if
// the host has such state enabled (CapXSave2).
func (v *VCPU) XSaveSize() int { return v.xsaveSize }

// GetXSave returns all extended state, x87 and SSE included, in the format of
// the xsave instruction (SDM Vol. 1, 13.4). A component whose bit in XSTATE_BV,
// at offset 512, is clear is in its initial state, whatever the buffer holds:
// set the bit when you change a component.
//
// KVM_GET_FPU and KVM_SET_FPU are not used: they leave MXCSR out, and a write is
// lost while the component is in its initial state.
func (v *VCPU) GetXSave() ([]byte, error) {
	buf := make([]byte, v.xsaveSize)
	op := ioGetXSave
	if v.xsaveSize > xsaveLegacySize {
		op = ioGetXSave2
	}
	if _, err := ioctlPtr(v.fd.num(), op, &buf[0]); err != nil {
		return nil, fmt.Errorf("get xsave: %w", err)
	}
	return buf, nil
}

// SetXSave writes the result of GetXSave back.
func (v *VCPU) SetXSave(buf []byte) error {
	if len(buf) != v.xsaveSize {
		return fmt.Errorf("set xsave: %d bytes, this host has %d: %w", len(buf), v.xsaveSize, unix.EINVAL)
	}
	if _, err := ioctlPtr(v.fd.num(), ioSetXSave, &buf[0]); err != nil {
		return fmt.Errorf("set xsave: %w", err)
	}
	return nil
}

// GetXCRs reads the extended control registers.
func (v *VCPU) GetXCRs(x *XCRs) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetXCRs, x); err != nil {
		return fmt.Errorf("get xcrs: %w", err)
	}
	return nil
}

// SetXCRs writes the extended control registers.
func (v *VCPU) SetXCRs(x *XCRs) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetXCRs, x); err != nil {
		return fmt.Errorf("set xcrs: %w", err)
	}
	return nil
}
