package kvm

import "fmt"

// String returns the exit on one line, for logs and crash reports.
func (e *Exit) String() string {
	switch e.Reason {
	case ReasonIO:
		dir := "out"
		if e.IO.In {
			dir = "in"
		}
		return fmt.Sprintf("io: %s port %#x, %d x %d bytes", dir, e.IO.Port, e.IO.Count, e.IO.Size)
	case ReasonMMIO:
		if e.MMIO.Write {
			return fmt.Sprintf("mmio: write % x to gpa %#x", e.MMIO.Data[:min(e.MMIO.Len, 8)], e.MMIO.GPA)
		}
		return fmt.Sprintf("mmio: read %d bytes from gpa %#x", e.MMIO.Len, e.MMIO.GPA)
	case ReasonDebug:
		return fmt.Sprintf("debug: exception %d at %#x, dr6 %#x, dr7 %#x",
			e.Debug.Exception, e.Debug.PC, e.Debug.DR6, e.Debug.DR7)
	case ReasonException:
		return fmt.Sprintf("exception: vector %d, code %#x", e.Exception.Vector, e.Exception.Code)
	case ReasonInternalError:
		return "internal-error: " + e.Internal.String()
	case ReasonFailEntry:
		return fmt.Sprintf("fail-entry: hardware reason %#x on cpu %d", e.FailEntry.Reason, e.FailEntry.CPU)
	case ReasonSystemEvent:
		return fmt.Sprintf("system-event: type %d, data %#x", e.SystemEvent.Type, e.SystemEvent.Data[:min(e.SystemEvent.NData, 16)])
	case ReasonRDMSR:
		return fmt.Sprintf("x86-rdmsr: msr %#x, cause %#x", e.MSR.Index, e.MSR.Cause)
	case ReasonWRMSR:
		return fmt.Sprintf("x86-wrmsr: msr %#x to %#x, cause %#x", e.MSR.Index, e.MSR.Data, e.MSR.Cause)
	case ReasonHypercall:
		return fmt.Sprintf("hypercall: %d, arguments %#x", e.Hypercall.Nr, e.Hypercall.Args)
	case ReasonTPRAccess:
		return fmt.Sprintf("tpr-access: rip %#x, write %v", e.TPRAccess.RIP, e.TPRAccess.Write)
	case ReasonMemoryFault:
		return fmt.Sprintf("memory-fault: gpa %#x, %#x bytes, flags %#x",
			e.MemoryFault.GPA, e.MemoryFault.Size, e.MemoryFault.Flags)
	case ReasonIOAPICEOI:
		return fmt.Sprintf("ioapic-eoi: vector %#x", e.EOIVector)
	case ReasonNotify:
		return fmt.Sprintf("notify: flags %#x", e.NotifyFlags)
	}
	return e.Reason.String()
}

// String returns the suberror by name with the instruction or the data that
// came with it.
func (e *InternalExit) String() string {
	name := fmt.Sprintf("suberror %d", e.Suberror)
	switch e.Suberror {
	case SuberrorEmulation:
		name = "emulation failed"
	case SuberrorSimultaneous:
		name = "simultaneous exceptions"
	case SuberrorDeliveryEvent:
		name = "exit during event delivery"
	case SuberrorUnexpectedExitReason:
		name = "unexpected exit reason"
	}
	if b := e.EmulationBytes(); b != nil {
		return fmt.Sprintf("%s at % x", name, b)
	}
	if e.NData > 0 {
		return fmt.Sprintf("%s, data %#x", name, e.Data[:min(e.NData, 16)])
	}
	return name
}
