package kvm

import (
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"golang.org/x/sys/unix"
)

// FPU is the x87 and SSE state of a vCPU: struct kvm_fpu.
type FPU struct {
	FPR        [8][16]byte
	FCW        uint16
	FSW        uint16
	FTWX       uint8 // abridged, as fxsave has it (SDM Vol. 1, 10.5.1)
	_          uint8
	LastOpcode uint16
	LastIP     uint64
	LastDP     uint64
	XMM        [16][16]byte
	MXCSR      uint32
	_          uint32
}

// XCRs are the extended control registers: struct kvm_xcrs.
type XCRs = gokvm.XCRS

// GetFPU reads the x87 and SSE state.
func (v *VCPU) GetFPU(f *FPU) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetFPU, f); err != nil {
		return fmt.Errorf("get fpu: %w", err)
	}
	return nil
}

// SetFPU writes the x87 and SSE state.
func (v *VCPU) SetFPU(f *FPU) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetFPU, f); err != nil {
		return fmt.Errorf("set fpu: %w", err)
	}
	return nil
}

// XSaveSize returns the length in bytes of what GetXSave returns: 4096, or more
// where the host has such state enabled (CapXSave2).
func (v *VCPU) XSaveSize() int { return v.xsaveSize }

// GetXSave returns all extended state in the format of the xsave instruction
// (SDM Vol. 1, 13.4).
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

// SetXSave writes what GetXSave returned.
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
