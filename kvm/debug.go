package kvm

import (
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
)

// GuestDebugFlags say how a guest is debugged (KVM_GUESTDBG_*, section 4.87).
type GuestDebugFlags uint32

// The flags of GuestDebug. DebugEnable must be set for the others to count.
const (
	DebugEnable     GuestDebugFlags = 1 << 0
	DebugSingleStep GuestDebugFlags = 1 << 1
	DebugUseSWBP    GuestDebugFlags = 1 << 16 // int3 becomes an exit
	DebugUseHWBP    GuestDebugFlags = 1 << 17 // GuestDebug.Reg is in force
	DebugInjectDB   GuestDebugFlags = 1 << 18
	DebugInjectBP   GuestDebugFlags = 1 << 19
	DebugBlockIRQ   GuestDebugFlags = 1 << 20 // no interrupts while stepping
)

// GuestDebug mirrors struct kvm_guest_debug. gokvm writes single bytes into an
// array instead.
type GuestDebug struct {
	Control GuestDebugFlags
	_       uint32
	Reg     [8]uint64 // 0..3: addresses, 7: DR7 (SDM Vol. 3, 19.2)
}

// SetGuestDebug sets how the guest is debugged from the next Run on. The zero
// value ends debugging. With DebugSingleStep, changed registers cost the next
// Run two more ioctls. Owner thread only: from another thread it would wait as
// long as the vCPU is in Run, which is forever while it halts inside KVM
// (VM.CreateIRQChip).
func (v *VCPU) SetGuestDebug(d GuestDebug) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetGuestDebug, &d); err != nil {
		return fmt.Errorf("set guest debug %#x: %w", uint32(d.Control), err)
	}
	v.debug, v.rearm = d, false
	return nil
}

// stepping reports whether the guest is single-stepped.
func (v *VCPU) stepping() bool {
	const both = DebugEnable | DebugSingleStep
	return v.debug.Control&both == both
}

// DebugRegs are the guest's own debug registers: struct kvm_debugregs.
type DebugRegs = gokvm.DebugRegs

// GetDebugRegs reads the guest's debug registers.
func (v *VCPU) GetDebugRegs(d *DebugRegs) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetDebugRegs, d); err != nil {
		return fmt.Errorf("get debug registers: %w", err)
	}
	return nil
}

// SetDebugRegs writes the guest's debug registers.
func (v *VCPU) SetDebugRegs(d *DebugRegs) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetDebugRegs, d); err != nil {
		return fmt.Errorf("set debug registers: %w", err)
	}
	return nil
}
