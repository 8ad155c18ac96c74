package kvm

import "fmt"

// Capability is the number of a KVM capability (KVM_CAP_*, KVM API document,
// sections 4.4 and 6 to 8). gokvm's type of that name has 8 bits, which the
// kernel's numbers are about to outgrow.
type Capability uint32

// The capabilities that this project asks about.
const (
	CapIRQChip                Capability = 0
	CapUserMemory             Capability = 3
	CapSetTSSAddr             Capability = 4
	CapExtCPUID               Capability = 7
	CapNrVCPUs                Capability = 9  // recommended number of vCPUs per VM
	CapNrMemslots             Capability = 10 // number of memory slots
	CapMPState                Capability = 14
	CapSyncMMU                Capability = 16
	CapDestroyMemoryRegion    Capability = 21
	CapSetGuestDebug          Capability = 23
	CapPIT2                   Capability = 33
	CapSetIdentityMapAddr     Capability = 37
	CapInternalErrorData      Capability = 40
	CapVCPUEvents             Capability = 41
	CapDebugRegs              Capability = 50
	CapX86RobustSinglestep    Capability = 51
	CapXSave                  Capability = 55
	CapXCRs                   Capability = 56
	CapMaxVCPUs               Capability = 66
	CapTSCDeadlineTimer       Capability = 72
	CapSyncRegs               Capability = 74 // bit set of KVM_SYNC_X86_*
	CapReadOnlyMemory         Capability = 81
	CapEnableCapVM            Capability = 98
	CapCheckExtensionVM       Capability = 105
	CapDisableQuirks          Capability = 116
	CapImmediateExit          Capability = 136
	CapExceptionPayload       Capability = 164
	CapX86UserSpaceMSR        Capability = 188
	CapX86BusLockExit         Capability = 193
	CapExitHypercall          Capability = 201
	CapExitOnEmulationFailure Capability = 204
	CapXSave2                 Capability = 208 // size of the XSAVE buffer
	CapTripleFaultEvent       Capability = 218
	CapX86NotifyVMExit        Capability = 219
)

var capabilityNames = map[Capability]string{
	CapIRQChip:                "KVM_CAP_IRQCHIP",
	CapUserMemory:             "KVM_CAP_USER_MEMORY",
	CapSetTSSAddr:             "KVM_CAP_SET_TSS_ADDR",
	CapExtCPUID:               "KVM_CAP_EXT_CPUID",
	CapNrVCPUs:                "KVM_CAP_NR_VCPUS",
	CapNrMemslots:             "KVM_CAP_NR_MEMSLOTS",
	CapMPState:                "KVM_CAP_MP_STATE",
	CapSyncMMU:                "KVM_CAP_SYNC_MMU",
	CapDestroyMemoryRegion:    "KVM_CAP_DESTROY_MEMORY_REGION_WORKS",
	CapSetGuestDebug:          "KVM_CAP_SET_GUEST_DEBUG",
	CapPIT2:                   "KVM_CAP_PIT2",
	CapSetIdentityMapAddr:     "KVM_CAP_SET_IDENTITY_MAP_ADDR",
	CapInternalErrorData:      "KVM_CAP_INTERNAL_ERROR_DATA",
	CapVCPUEvents:             "KVM_CAP_VCPU_EVENTS",
	CapDebugRegs:              "KVM_CAP_DEBUGREGS",
	CapX86RobustSinglestep:    "KVM_CAP_X86_ROBUST_SINGLESTEP",
	CapXSave:                  "KVM_CAP_XSAVE",
	CapXCRs:                   "KVM_CAP_XCRS",
	CapMaxVCPUs:               "KVM_CAP_MAX_VCPUS",
	CapTSCDeadlineTimer:       "KVM_CAP_TSC_DEADLINE_TIMER",
	CapSyncRegs:               "KVM_CAP_SYNC_REGS",
	CapReadOnlyMemory:         "KVM_CAP_READONLY_MEM",
	CapEnableCapVM:            "KVM_CAP_ENABLE_CAP_VM",
	CapCheckExtensionVM:       "KVM_CAP_CHECK_EXTENSION_VM",
	CapDisableQuirks:          "KVM_CAP_DISABLE_QUIRKS",
	CapImmediateExit:          "KVM_CAP_IMMEDIATE_EXIT",
	CapExceptionPayload:       "KVM_CAP_EXCEPTION_PAYLOAD",
	CapX86UserSpaceMSR:        "KVM_CAP_X86_USER_SPACE_MSR",
	CapX86BusLockExit:         "KVM_CAP_X86_BUS_LOCK_EXIT",
	CapExitHypercall:          "KVM_CAP_EXIT_HYPERCALL",
	CapExitOnEmulationFailure: "KVM_CAP_EXIT_ON_EMULATION_FAILURE",
	CapXSave2:                 "KVM_CAP_XSAVE2",
	CapTripleFaultEvent:       "KVM_CAP_X86_TRIPLE_FAULT_EVENT",
	CapX86NotifyVMExit:        "KVM_CAP_X86_NOTIFY_VMEXIT",
}

// String returns the kernel's name of the capability, or KVM_CAP_ and its
// number.
func (c Capability) String() string {
	if s, ok := capabilityNames[c]; ok {
		return s
	}
	return fmt.Sprintf("KVM_CAP_%d", uint32(c))
}

// required are the capabilities without which this package does not work at all,
// and since when Linux has them. Open rejects a host that lacks one.
var required = []struct {
	cap   Capability
	since string
}{
	{CapUserMemory, "2.6.25"},
	{CapExtCPUID, "2.6.26"},
	{CapDestroyMemoryRegion, "2.6.29"},
	{CapSetGuestDebug, "2.6.30"},
	{CapVCPUEvents, "2.6.33"},
	{CapImmediateExit, "4.13"},
}
