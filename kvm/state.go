package kvm

import (
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
)

// MPState says whether a vCPU runs (KVM_MP_STATE_*, section 4.38).
type MPState uint32

// The states of a vCPU on x86.
const (
	MPRunnable      MPState = 0
	MPUninitialized MPState = 1
	MPInitReceived  MPState = 2
	MPHalted        MPState = 3
	MPSIPIReceived  MPState = 4
)

// MPState returns whether the vCPU runs. Without interrupt controllers in the kernel
// it is always MPRunnable unless set otherwise; with them (VM.CreateIRQChip) vCPUs other
// than number 0 begin as MPUninitialized and follow the guest's INIT and SIPI, and hlt is MPHalted.
func (v *VCPU) MPState() (MPState, error) {
	var s MPState
	if _, err := ioctlPtr(v.fd.num(), ioGetMPState, &s); err != nil {
		return 0, fmt.Errorf("get mp state: %w", err)
	}
	return s, nil
}

// SetMPState sets whether the vCPU runs.
func (v *VCPU) SetMPState(s MPState) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetMPState, &s); err != nil {
		return fmt.Errorf("set mp state %d: %w", s, err)
	}
	return nil
}

// Translation is KVM's translation of a virtual address.
type Translation = gokvm.Translation

// Translate has KVM walk the guest's page tables for va (KVM_TRANSLATE, section
// 4.15). Hosts exist whose answer is always "not valid": guest.AddressSpace
// walks the tables itself.
func (v *VCPU) Translate(va uint64) (Translation, error) {
	t := Translation{LinearAddress: va}
	if _, err := ioctlPtr(v.fd.num(), ioTranslate, &t); err != nil {
		return t, fmt.Errorf("translate %#x: %w", va, err)
	}
	return t, nil
}
