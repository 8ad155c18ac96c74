package kvm

import "fmt"

// Reason says why KVM_RUN returned: KVM_EXIT_* of the KVM API document,
// section 5, and one of our own, ReasonInterrupted.
type Reason uint32

// The exit reasons. The reasons of other architectures are here for their names
// only: a processor of this one never gives them.
const (
	ReasonUnknown         Reason = 0
	ReasonException       Reason = 1
	ReasonIO              Reason = 2
	ReasonHypercall       Reason = 3
	ReasonDebug           Reason = 4
	ReasonHLT             Reason = 5
	ReasonMMIO            Reason = 6
	ReasonInterruptWindow Reason = 7
	ReasonShutdown        Reason = 8
	ReasonFailEntry       Reason = 9
	ReasonIntr            Reason = 10
	ReasonSetTPR          Reason = 11
	ReasonTPRAccess       Reason = 12
	ReasonS390SIEIC       Reason = 13
	ReasonS390Reset       Reason = 14
	ReasonDCR             Reason = 15
	ReasonNMI             Reason = 16
	ReasonInternalError   Reason = 17
	ReasonOSI             Reason = 18
	ReasonPAPRHcall       Reason = 19
	ReasonS390UControl    Reason = 20
	ReasonWatchdog        Reason = 21
	ReasonS390TSCH        Reason = 22
	ReasonEPR             Reason = 23
	ReasonSystemEvent     Reason = 24
	ReasonS390STSI        Reason = 25
	ReasonIOAPICEOI       Reason = 26
	ReasonHyperV          Reason = 27
	ReasonARMNISV         Reason = 28
	ReasonRDMSR           Reason = 29
	ReasonWRMSR           Reason = 30
	ReasonDirtyRingFull   Reason = 31
	ReasonAPResetHold     Reason = 32
	ReasonBusLock         Reason = 33
	ReasonXen             Reason = 34
	ReasonRISCVSBI        Reason = 35
	ReasonRISCVCSR        Reason = 36
	ReasonNotify          Reason = 37
	ReasonLoongArchIOCSR  Reason = 38
	ReasonMemoryFault     Reason = 39
	ReasonTDX             Reason = 40
	ReasonARMSEA          Reason = 41

	// ReasonInterrupted: a signal or a Kick ended the run; the guest did nothing
	// that needs an answer. The kernel reports it as EINTR.
	ReasonInterrupted Reason = 1 << 31
)

var reasonNames = [...]string{
	ReasonUnknown:         "unknown",
	ReasonException:       "exception",
	ReasonIO:              "io",
	ReasonHypercall:       "hypercall",
	ReasonDebug:           "debug",
	ReasonHLT:             "hlt",
	ReasonMMIO:            "mmio",
	ReasonInterruptWindow: "irq-window-open",
	ReasonShutdown:        "shutdown",
	ReasonFailEntry:       "fail-entry",
	ReasonIntr:            "intr",
	ReasonSetTPR:          "set-tpr",
	ReasonTPRAccess:       "tpr-access",
	ReasonS390SIEIC:       "s390-sieic",
	ReasonS390Reset:       "s390-reset",
	ReasonDCR:             "dcr",
	ReasonNMI:             "nmi",
	ReasonInternalError:   "internal-error",
	ReasonOSI:             "osi",
	ReasonPAPRHcall:       "papr-hcall",
	ReasonS390UControl:    "s390-ucontrol",
	ReasonWatchdog:        "watchdog",
	ReasonS390TSCH:        "s390-tsch",
	ReasonEPR:             "epr",
	ReasonSystemEvent:     "system-event",
	ReasonS390STSI:        "s390-stsi",
	ReasonIOAPICEOI:       "ioapic-eoi",
	ReasonHyperV:          "hyperv",
	ReasonARMNISV:         "arm-nisv",
	ReasonRDMSR:           "x86-rdmsr",
	ReasonWRMSR:           "x86-wrmsr",
	ReasonDirtyRingFull:   "dirty-ring-full",
	ReasonAPResetHold:     "ap-reset-hold",
	ReasonBusLock:         "x86-bus-lock",
	ReasonXen:             "xen",
	ReasonRISCVSBI:        "riscv-sbi",
	ReasonRISCVCSR:        "riscv-csr",
	ReasonNotify:          "notify",
	ReasonLoongArchIOCSR:  "loongarch-iocsr",
	ReasonMemoryFault:     "memory-fault",
	ReasonTDX:             "tdx",
	ReasonARMSEA:          "arm-sea",
}

// NumReasons is one more than the largest exit reason of the kernel that has a
// name here; ReasonInterrupted is outside.
const NumReasons = len(reasonNames)

// known reports whether r is an exit reason that has a name.
func (r Reason) known() bool { return int64(r) < int64(NumReasons) || r == ReasonInterrupted }

// String returns the kernel's name in lower case with dashes, without
// KVM_EXIT_; "interrupted"; or exit- and the number.
func (r Reason) String() string {
	switch {
	case int64(r) < int64(NumReasons):
		return reasonNames[r]
	case r == ReasonInterrupted:
		return "interrupted"
	}
	return fmt.Sprintf("exit-%d", uint32(r))
}
