package kvm

import "testing"

func TestExitString(t *testing.T) {
	for _, tt := range []struct {
		e    Exit
		want string
	}{
		{Exit{Reason: ReasonHLT}, "hlt"},
		{Exit{Reason: ReasonInterrupted}, "interrupted"},
		{Exit{Reason: 77}, "exit-77"},
		{Exit{Reason: ReasonIO, IO: IOExit{Port: 0xe9, Size: 1, Count: 1}}, "io: out port 0xe9, 1 x 1 bytes"},
		{Exit{Reason: ReasonIO, IO: IOExit{Port: 0x3f8, Size: 4, Count: 12, In: true}}, "io: in port 0x3f8, 12 x 4 bytes"},
		{Exit{Reason: ReasonMMIO, MMIO: MMIOExit{GPA: 0xfee00000, Len: 2, Write: true, Data: [8]byte{1, 0xab, 3}}},
			"mmio: write 01 ab to gpa 0xfee00000"},
		{Exit{Reason: ReasonMMIO, MMIO: MMIOExit{GPA: 0x1000, Len: 8}}, "mmio: read 8 bytes from gpa 0x1000"},
		{Exit{Reason: ReasonDebug, Debug: DebugExit{Exception: 3, PC: 0x1234, DR6: 0xffff0ff0, DR7: 0x400}},
			"debug: exception 3 at 0x1234, dr6 0xffff0ff0, dr7 0x400"},
		{Exit{Reason: ReasonException, Exception: ExceptionExit{13, 0x18}}, "exception: vector 13, code 0x18"},
		{Exit{Reason: ReasonInternalError, Internal: InternalExit{Suberror: 1, NData: 3, insn: [15]byte{0xcc, 0xf4}, insnLen: 2}},
			"internal-error: emulation failed at cc f4"},
		{Exit{Reason: ReasonInternalError, Internal: InternalExit{Suberror: 1}}, "internal-error: emulation failed"},
		{Exit{Reason: ReasonInternalError, Internal: InternalExit{Suberror: 2, NData: 2, Data: [16]uint64{0x80000b0e, 5, 6}}},
			"internal-error: simultaneous exceptions, data [0x80000b0e 0x5]"},
		{Exit{Reason: ReasonInternalError, Internal: InternalExit{Suberror: 3}}, "internal-error: exit during event delivery"},
		{Exit{Reason: ReasonInternalError, Internal: InternalExit{Suberror: 4}}, "internal-error: unexpected exit reason"},
		{Exit{Reason: ReasonInternalError, Internal: InternalExit{Suberror: 9}}, "internal-error: suberror 9"},
		{Exit{Reason: ReasonFailEntry, FailEntry: FailEntryExit{0x80000021, 3}}, "fail-entry: hardware reason 0x80000021 on cpu 3"},
		{Exit{Reason: ReasonSystemEvent, SystemEvent: SystemEventExit{Type: 3, NData: 1, Data: [16]uint64{7, 8}}},
			"system-event: type 3, data [0x7]"},
		{Exit{Reason: ReasonRDMSR, MSR: MSRExit{Index: 0xc0000080, Cause: 2}}, "x86-rdmsr: msr 0xc0000080, cause 0x2"},
		{Exit{Reason: ReasonWRMSR, MSR: MSRExit{Index: 0x10, Cause: 4, Data: 9}}, "x86-wrmsr: msr 0x10 to 0x9, cause 0x4"},
		{Exit{Reason: ReasonHypercall, Hypercall: HypercallExit{Nr: 12, Args: [6]uint64{1, 2, 3, 4, 5, 6}}},
			"hypercall: 12, arguments [0x1 0x2 0x3 0x4 0x5 0x6]"},
		{Exit{Reason: ReasonTPRAccess, TPRAccess: TPRAccessExit{RIP: 0x10, Write: true}}, "tpr-access: rip 0x10, write true"},
		{Exit{Reason: ReasonMemoryFault, MemoryFault: MemoryFaultExit{Flags: 8, GPA: 0x1000, Size: 0x2000}},
			"memory-fault: gpa 0x1000, 0x2000 bytes, flags 0x8"},
		{Exit{Reason: ReasonIOAPICEOI, EOIVector: 0x31}, "ioapic-eoi: vector 0x31"},
		{Exit{Reason: ReasonNotify, NotifyFlags: 1}, "notify: flags 0x1"},
	} {
		if got := tt.e.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// Answers go where struct kvm_run has them.
func TestAnswers(t *testing.T) {
	for _, tt := range []struct {
		name string
		f    func(*VCPU)
		want bytesAt
	}{
		{"mmio", func(v *VCPU) { v.SetMMIO([8]byte{1, 2, 3, 4, 5, 6, 7, 8}) }, bytesAt{40: []byte{1, 2, 3, 4, 5, 6, 7, 8}}},
		{"msr", func(v *VCPU) { v.SetMSRResult(0x1122334455667788, false) }, bytesAt{48: uint64(0x1122334455667788)}},
		{"msr fault", func(v *VCPU) { v.SetMSRResult(0, true) }, bytesAt{32: uint8(1)}},
		{"hypercall", func(v *VCPU) { v.SetHypercallResult(1 << 63) }, bytesAt{88: uint64(1 << 63)}},
	} {
		v := &VCPU{page: new(runPage)}
		tt.f(v)
		if want := tt.want.union(); v.page.exit != want {
			t.Errorf("%s: got % x, want % x", tt.name, v.page.exit[:64], want[:64])
		}
	}
}
