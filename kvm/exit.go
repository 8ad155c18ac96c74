package kvm

// Exit is the reason and data of the end of a Run. The caller owns it and passes
// the same one to every Run, which allocates nothing. Only the payload that
// belongs to Reason is meaningful; the others hold leftovers of earlier exits.
type Exit struct {
	Reason Reason
	Flags  uint16 // KVM_RUN_X86_*: RunSMM, RunBusLock

	IO          IOExit          // ReasonIO
	MMIO        MMIOExit        // ReasonMMIO
	Debug       DebugExit       // ReasonDebug
	Exception   ExceptionExit   // ReasonException
	Internal    InternalExit    // ReasonInternalError
	FailEntry   FailEntryExit   // ReasonFailEntry
	SystemEvent SystemEventExit // ReasonSystemEvent
	MSR         MSRExit         // ReasonRDMSR, ReasonWRMSR
	Hypercall   HypercallExit   // ReasonHypercall
	TPRAccess   TPRAccessExit   // ReasonTPRAccess
	MemoryFault MemoryFaultExit // ReasonMemoryFault
	EOIVector   uint8           // ReasonIOAPICEOI
	NotifyFlags uint32          // ReasonNotify

	// Raw is the whole exit union of kvm_run, 256 bytes, as KVM left it, for
	// reasons without a payload here (Hyper-V, Xen, TDX) and for messages. It
	// is memory shared with the kernel and good until the next Run.
	Raw []byte
}

// Bits of Exit.Flags.
const (
	RunSMM     uint16 = 1 << 0
	RunBusLock uint16 = 1 << 1
)

// IOExit is an in or out instruction.
type IOExit struct {
	Port  uint16
	Size  uint8  // of one item in bytes: 1, 2 or 4
	Count uint32 // of items: more than 1 for ins and outs with rep
	In    bool   // the guest reads

	// Data has Size*Count bytes of memory shared with the kernel, valid until the
	// next Run: the bytes that the guest wrote, or the place for the bytes that it
	// reads.
	Data []byte
}

// MMIOExit is an access to a guest physical address without memory, or a write
// to read-only memory. A read is answered by VCPU.SetMMIO before the next Run.
type MMIOExit struct {
	GPA   uint64
	Len   uint32  // 1 to 8
	Write bool    // the guest writes
	Data  [8]byte // of a write: the first Len bytes
}

// DebugExit is a breakpoint, watchpoint or step of SetGuestDebug.
type DebugExit struct {
	Exception uint32 // vector: 1 or 3
	PC        uint64 // linear address of the instruction
	DR6, DR7  uint64 // SDM Vol. 3, 19.2.3 and 19.2.4
}

// ExceptionExit is an exception that KVM does not handle.
type ExceptionExit struct{ Vector, Code uint32 }

// The suberrors of InternalExit.
const (
	SuberrorEmulation            uint32 = 1 // KVM's emulator cannot do the instruction
	SuberrorSimultaneous         uint32 = 2 // unexpected simultaneous exceptions
	SuberrorDeliveryEvent        uint32 = 3 // exit while an event was being delivered
	SuberrorUnexpectedExitReason uint32 = 4
)

// emulationHasBytes is KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES.
const emulationHasBytes = 1 << 0

// InternalExit is something that KVM gave up on.
type InternalExit struct {
	Suberror uint32
	NData    uint32 // valid words of Data, at most 16
	Data     [16]uint64

	insn    [15]byte
	insnLen uint8
}

// EmulationBytes returns the instruction bytes from RIP on at which KVM's
// emulator failed, 1 to 15 of them. It returns nil for another error, or if KVM
// did not supply the bytes. They are valid until the Exit is used again.
func (e *InternalExit) EmulationBytes() []byte {
	if e.Suberror != SuberrorEmulation || e.insnLen == 0 {
		return nil
	}
	return e.insn[:e.insnLen]
}

// FailEntryExit is a virtual processor state that the hardware rejects.
type FailEntryExit struct {
	Reason uint64 // of the hardware: VMX exit reason (SDM Vol. 3, 28.8) or SVM exit code
	CPU    uint32 // of the host
}

// SystemEventExit is a shutdown, reset or crash that the guest asked for.
type SystemEventExit struct {
	Type  uint32 // KVM_SYSTEM_EVENT_*
	NData uint32 // valid words of Data, at most 16
	Data  [16]uint64
}

// MSRExit is an rdmsr or wrmsr that KVM leaves to user space
// (CapX86UserSpaceMSR). It is answered by VCPU.SetMSRResult.
type MSRExit struct {
	Index uint32
	Cause uint32 // KVM_MSR_EXIT_REASON_*
	Data  uint64 // of a wrmsr
}

// HypercallExit is a hypercall that KVM leaves to user space.
type HypercallExit struct {
	Nr   uint64
	Args [6]uint64
	Long bool // 64-bit mode
}

// TPRAccessExit is an access to the APIC's task priority register.
type TPRAccessExit struct {
	RIP   uint64
	Write bool
}

// MemoryFaultExit is an access that the host's memory could not serve. KVM
// reports it together with EFAULT or EHWPOISON, so Run returns a *RunError that
// holds it.
type MemoryFaultExit struct {
	Flags uint64
	GPA   uint64
	Size  uint64
}
