package hostdoc

// fact is a behavior of hosts that doctor does not measure, and the test that
// asserts it on each host.
type fact struct {
	what  string
	hosts [3]string // in the order of the columns
	test  string    // in package kvm if not qualified
}

// commonFact is a fact that holds on all hosts.
func commonFact(s string) [3]string { return [3]string{s, s, s} }

var facts = []fact{
	{"int3 that belongs to no probe, back to the guest after its exit: where RIP must be when #BP is injected",
		[3]string{"after the int3 (CPL0); CPL3 never left the guest", "at the int3: KVM adds the length that it remembers from the exit", "never left the guest"},
		"TestBreakpointToGuest"},
	{"the same, when registers changed in between, or KVM_RUN ended at once by a kick",
		[3]string{"still delivered", "still delivered", "not applicable"}, "TestBreakpointToGuest"},
	{"other exceptions injected at CPL0 and CPL3, with and without error code, CR2", commonFact("frame, code and CR2 as on a processor"), "TestInjectException"},
	{"RIP when `out` ended KVM_RUN, CPL0",
		[3]string{"after the `out`", "at the `out`; the next KVM_RUN steps over it if RIP is unchanged", "as on VMX"}, "TestPortIORIP"},
	{"RIP when `out` ended KVM_RUN, CPL3 with IOPL 3",
		[3]string{"after the `out`", "at the `out`", "at the `out`"}, "TestPortIORIP"},
	{"KVM_INTERRUPT without in-kernel irqchip, interrupt window, CPL0 and CPL3", commonFact("works"), "TestInterruptWindow"},
	{"no window while IF is clear, CPL0 and CPL3; IF stays clear across exits", commonFact("works"), "TestInterruptWindowClosed"},
	{"read-only memory slot: reads and fetches", commonFact("from memory"), "TestReadOnlyMemory, TestReadOnlyMemoryRuns"},
	{"read-only memory slot: writes, plain, locked and as page-table updates of string instructions",
		commonFact("KVM_EXIT_MMIO, memory unchanged"), "TestReadOnlyMemory, TestReadOnlyMemoryWrites"},
	{"code in a read-only slot that the host rewrites between two exits", commonFact("the guest runs the new bytes"), "TestReadOnlyMemoryRuns"},
	{"registers changed while single-stepping", commonFact("stepping continues (KVM_SET_GUEST_DEBUG is needed again)"), "TestSingleStep"},
	{"steps, first touch of a page", [3]string{"once per instruction", "one more exit at the same RIP after each EPT violation", "once per instruction"}, "TestTraps"},
	{"NT in the frame of an exception, CPL0 and CPL3", [3]string{"CPL0: kept; CPL3: dropped, user code runs without NT", "kept", "kept"}, "TestExceptionFlags"},
	{"int3 at CPL3 with an RSP that is not canonical, as after such an `iretq`", [3]string{"#UD", "#BP", "#BP"}, "TestBreakpointOnNoStack"},
	{"KVM_GET_CPUID2 says how many entries it filled in", [3]string{"yes", "no (Linux 6.1)", "no (Linux 6.1)"}, "TestCPUID"},
}
