package kvm

import (
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
)

// Regs are the general registers of a vCPU: struct kvm_regs.
type Regs = gokvm.Regs

// Sregs are the segment, descriptor table and control registers of a vCPU:
// struct kvm_sregs.
type Sregs = gokvm.Sregs

// Segment is one segment register with its hidden part: struct kvm_segment.
type Segment = gokvm.Segment

// Descriptor is the base and limit of a descriptor table: struct kvm_dtable.
type Descriptor = gokvm.Descriptor

// Regs returns the general registers as they were when Run returned (before the
// first Run: as they were created or last set). If the host has
// KVM_CAP_SYNC_REGS, the pointer is into the memory shared with the kernel,
// otherwise to a private copy. It is the same for the life of the vCPU and must
// not be used after Close. Changes take effect after SetRegsDirty. Owner thread
// only.
func (v *VCPU) Regs() *Regs { return v.regs }

// Sregs returns the special registers under the rules of Regs; changes count
// from SetSregsDirty on.
func (v *VCPU) Sregs() *Sregs { return v.sregs }

// SetRegsDirty makes the next Run load the registers of Regs. KVM then drops an
// exception that is pending but not yet injected (it keeps one from
// InjectException). Owner thread only.
func (v *VCPU) SetRegsDirty() { v.dirty |= syncRegsBit }

// SetSregsDirty makes the next Run load the registers of Sregs, but no
// interrupt. The interrupt_bitmap is from the last exit, and KVM_SET_SREGS would
// queue its interrupt a second time (section 4.14), although it may have been
// delivered since. Owner thread only.
func (v *VCPU) SetSregsDirty() {
	v.sregs.InterruptBitmap = [len(v.sregs.InterruptBitmap)]uint64{}
	v.dirty |= syncSregsBit
}

// syncRegs reports whether registers travel in the shared page
// (KVM_CAP_SYNC_REGS) rather than by two further ioctls for each Run.
func (v *VCPU) syncRegs() bool { return v.shared }

// getRegs reads the general registers from KVM into r. Changes that are marked
// by SetRegsDirty but not yet run are not in KVM and so not in r. Owner thread
// only.
func (v *VCPU) getRegs(r *Regs) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetRegs, r); err != nil {
		return fmt.Errorf("get regs: %w", err)
	}
	return nil
}

// SetRegs writes r to KVM now, and to the result of Regs; it replaces changes
// marked dirty. Owner thread only.
func (v *VCPU) SetRegs(r *Regs) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetRegs, r); err != nil {
		return fmt.Errorf("set regs: %w", err)
	}
	*v.regs = *r
	v.dirty &^= syncRegsBit
	v.rearm, v.cut = v.stepping(), false
	return nil
}

// GetSregs reads the special registers from KVM into s, under the rules of
// getRegs.
func (v *VCPU) GetSregs(s *Sregs) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetSregs, s); err != nil {
		return fmt.Errorf("get sregs: %w", err)
	}
	return nil
}

// SetSregs writes s to KVM now, under the rules of SetRegs. KVM rejects
// combinations that no processor can have with EINVAL.
func (v *VCPU) SetSregs(s *Sregs) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetSregs, s); err != nil {
		return fmt.Errorf("set sregs: %w", err)
	}
	*v.sregs = *s
	v.page.cr8 = s.CR8
	v.dirty &^= syncSregsBit
	return nil
}
