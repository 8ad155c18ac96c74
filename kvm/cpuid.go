package kvm

import (
	"errors"
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"golang.org/x/sys/unix"
)

// CPUIDEntry is one leaf of CPUID: struct kvm_cpuid_entry2.
type CPUIDEntry = gokvm.CPUIDEntry2

// maxCPUIDEntries is KVM's own limit (KVM_MAX_CPUID_ENTRIES).
const maxCPUIDEntries = 256

// SupportedCPUID returns the CPUID leaves that KVM can show to guests on this
// host (KVM_GET_SUPPORTED_CPUID, section 4.46). Filter them and pass them to
// VCPU.SetCPUID.
func (s *System) SupportedCPUID() ([]CPUIDEntry, error) {
	for n := 64; ; n *= 2 {
		c := gokvm.CPUID{Nent: uint32(n), Entries: make([]CPUIDEntry, n)}
		err := gokvm.GetSupportedCPUID(uintptr(s.fd.num()), &c)
		if errors.Is(err, unix.E2BIG) && n < maxCPUIDEntries {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get supported cpuid: %w", err)
		}
		return c.Entries, nil
	}
}

// SetCPUID sets the result of the CPUID instruction on this vCPU
// (KVM_SET_CPUID2), before its first Run. Not every host lets all of it be
// chosen: kvm_pvm shows the host's feature bits in leaves 1 and 7. CPUID returns
// the actual values.
func (v *VCPU) SetCPUID(entries []CPUIDEntry) error {
	if len(entries) > maxCPUIDEntries {
		return fmt.Errorf("set cpuid: %d entries, at most %d: %w", len(entries), maxCPUIDEntries, unix.E2BIG)
	}
	c := gokvm.CPUID{Nent: uint32(len(entries)), Entries: entries}
	if err := gokvm.SetCPUID2(uintptr(v.fd.num()), &c); err != nil {
		return fmt.Errorf("set cpuid: %w", err)
	}
	v.cpuids = len(entries)
	return nil
}

// CPUID returns the leaves of SetCPUID, with the bits that KVM itself keeps up
// to date (KVM_GET_CPUID2).
func (v *VCPU) CPUID() ([]CPUIDEntry, error) {
	// Room for exactly the entries that were set: Linux 6.1 does not report how
	// many entries a successful call has filled in. Later kernels do.
	c := gokvm.CPUID{Nent: uint32(v.cpuids), Entries: make([]CPUIDEntry, v.cpuids)}
	if err := gokvm.GetCPUID2(uintptr(v.fd.num()), &c); err != nil {
		return nil, fmt.Errorf("get cpuid: %w", err)
	}
	return c.Entries, nil
}
