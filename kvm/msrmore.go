package kvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
)

// msrRanges are MSRs that KVM keeps for a guest but does not list (arch/x86/kvm:
// mtrr.c, x86.c kvm_set_msr_common and set_msr_mce, vmx/vmx.c, svm/svm.c). Which
// of them exist depends on the processor and on the CPUID of the vCPU.
var msrRanges = []struct{ first, n uint32 }{
	// MSRs that KVM's list lacks on some processors, although it keeps them.
	{0x3a, 2},       // FEATURE_CONTROL, TSC_ADJUST
	{0x48, 1},       // SPEC_CTRL
	{0xe1, 1},       // UMWAIT_CONTROL
	{0x140, 1},      // MISC_FEATURES_ENABLES
	{0x1a0, 1},      // MISC_ENABLE
	{0x1c4, 2},      // XFD, XFD_ERR
	{0xd90, 1},      // BNDCFGS
	{0xda0, 1},      // XSS
	{0xc0000103, 1}, // TSC_AUX
	{0xc001011f, 1}, // VIRT_SPEC_CTRL
	// MSRs that are in no list.
	{0x17a, 2},       // MCG_STATUS, MCG_CTL
	{0x1d9, 1},       // DEBUGCTL
	{0x1db, 4},       // LASTBRANCHFROMIP to LASTINTTOIP
	{0x200, 16},      // variable MTRRs
	{0x250, 1},       // fixed MTRRs
	{0x258, 2},       //
	{0x268, 8},       //
	{0x277, 1},       // PAT
	{0x280, 32},      // MCi_CTL2
	{0x2ff, 1},       // MTRRdefType
	{0x400, 4 * 32},  // MCi_CTL, _STATUS, _ADDR, _MISC
	{0xc0010015, 1},  // HWCR
	{0xc0010114, 1},  // VM_CR
	{0xc0010117, 1},  // VM_HSAVE_PA
	{0xc0010140, 2},  // OSVW
	{0xc0011022, 1},  // DC_CFG
	{0xc0011029, 1},  // DE_CFG
	{0x4b564d00, 32}, // KVM's own: MIGRATION_CONTROL, and additions of cloud kernels
}

// StateMSRs returns the numbers of all MSRs that belong to the state of a guest
// with vCPU v: the ones of msrIndexes, and others that KVM has for v. It finds
// the others by reading all candidates.
func (s *System) StateMSRs(v *VCPU) ([]uint32, error) {
	all, err := s.msrIndexes()
	if err != nil {
		return nil, err
	}
	var more []uint32
	for _, r := range msrRanges {
		for i := range r.n {
			if !slices.Contains(all, r.first+i) {
				more = append(more, r.first+i)
			}
		}
	}
	have, err := v.ReadMSRs(more)
	if err != nil {
		return nil, err
	}
	for _, m := range have {
		all = append(all, m.Index)
	}
	return all, nil
}

// nestedState is the beginning of struct kvm_nested_state.
type nestedState struct {
	flags, format uint16
	size          uint32
	vmxon         uint64 // of format 0: ~0 outside of VMX operation
	rest          [112 + 2*4096]byte
}

// Bits of nestedState.flags (KVM_STATE_NESTED_*).
const (
	nestedGuestMode = 1 << 0
	nestedGIF       = 1 << 8 // format 1
)

// RunsGuests reports whether the guest's code on the vCPU is a hypervisor that has entered VMX operation or has a guest of its own
// in work (KVM_GET_NESTED_STATE, section 4.114).
func (v *VCPU) RunsGuests() (bool, error) {
	var s nestedState
	s.size = uint32(binary.Size(&s))
	switch _, err := ioctlPtr(v.fd.num(), ioGetNestedState, &s); {
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTTY):
		return false, nil // no guest has guests on this host
	case err != nil:
		return false, fmt.Errorf("get nested state: %w", err)
	case s.format == 0:
		return s.flags&nestedGuestMode != 0 || s.size > 16 && s.vmxon != ^uint64(0), nil
	}
	return s.flags&nestedGuestMode != 0 || s.flags&nestedGIF == 0, nil
}
