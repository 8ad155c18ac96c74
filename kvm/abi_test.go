package kvm

import (
	"testing"
	"unsafe"

	gokvm "github.com/bobuhiro11/gokvm/kvm"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// The literals of this file are what gcc makes of linux/kvm.h and asm/kvm.h
// for x86-64.

func TestIoctlNumbers(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"KVM_GET_API_VERSION", ioGetAPIVersion, 0xae00},
		{"KVM_CREATE_VM", ioCreateVM, 0xae01},
		{"KVM_GET_MSR_INDEX_LIST", ioGetMSRIndexList, 0xc004ae02},
		{"KVM_CHECK_EXTENSION", ioCheckExtension, 0xae03},
		{"KVM_GET_VCPU_MMAP_SIZE", ioGetVCPUMmapSize, 0xae04},
		{"KVM_GET_SUPPORTED_CPUID", ioGetSupportedCPUID, 0xc008ae05},
		{"KVM_CREATE_VCPU", ioCreateVCPU, 0xae41},
		{"KVM_SET_USER_MEMORY_REGION", ioSetUserMemoryRegion, 0x4020ae46},
		{"KVM_SET_TSS_ADDR", ioSetTSSAddr, 0xae47},
		{"KVM_SET_IDENTITY_MAP_ADDR", ioSetIdentityMapAddr, 0x4008ae48},
		{"KVM_CREATE_IRQCHIP", ioCreateIRQChip, 0xae60},
		{"KVM_IRQ_LINE", ioIRQLine, 0x4008ae61},
		{"KVM_SIGNAL_MSI", ioSignalMSI, 0x4020aea5},
		{"KVM_CREATE_PIT2", ioCreatePIT2, 0x4040ae77},
		{"KVM_GET_IRQCHIP", ioGetIRQChip, 0xc208ae62},
		{"KVM_SET_IRQCHIP", ioSetIRQChip, 0x8208ae63},
		{"KVM_SET_CLOCK", ioSetClock, 0x4030ae7b},
		{"KVM_GET_CLOCK", ioGetClock, 0x8030ae7c},
		{"KVM_GET_PIT2", ioGetPIT2, 0x8070ae9f},
		{"KVM_SET_PIT2", ioSetPIT2, 0x4070aea0},
		{"KVM_KVMCLOCK_CTRL", ioKVMClockCtrl, 0xaead},
		{"KVM_GET_LAPIC", ioGetLAPIC, 0x8400ae8e},
		{"KVM_SET_LAPIC", ioSetLAPIC, 0x4400ae8f},
		{"KVM_RUN", ioRun, 0xae80},
		{"KVM_GET_REGS", ioGetRegs, 0x8090ae81},
		{"KVM_SET_REGS", ioSetRegs, 0x4090ae82},
		{"KVM_GET_SREGS", ioGetSregs, 0x8138ae83},
		{"KVM_SET_SREGS", ioSetSregs, 0x4138ae84},
		{"KVM_TRANSLATE", ioTranslate, 0xc018ae85},
		{"KVM_INTERRUPT", ioInterrupt, 0x4004ae86},
		{"KVM_GET_MSRS", ioGetMSRs, 0xc008ae88},
		{"KVM_SET_MSRS", ioSetMSRs, 0x4008ae89},
		{"KVM_SET_CPUID2", ioSetCPUID2, 0x4008ae90},
		{"KVM_GET_CPUID2", ioGetCPUID2, 0xc008ae91},
		{"KVM_GET_MP_STATE", ioGetMPState, 0x8004ae98},
		{"KVM_SET_MP_STATE", ioSetMPState, 0x4004ae99},
		{"KVM_NMI", ioNMI, 0xae9a},
		{"KVM_GET_TSC_KHZ", ioGetTSCKHz, 0xaea3},
		{"KVM_SET_GUEST_DEBUG", ioSetGuestDebug, 0x4048ae9b},
		{"KVM_GET_VCPU_EVENTS", ioGetEvents, 0x8040ae9f},
		{"KVM_SET_VCPU_EVENTS", ioSetEvents, 0x4040aea0},
		{"KVM_GET_DEBUGREGS", ioGetDebugRegs, 0x8080aea1},
		{"KVM_SET_DEBUGREGS", ioSetDebugRegs, 0x4080aea2},
		{"KVM_ENABLE_CAP", ioEnableCap, 0x4068aea3},
		{"KVM_GET_XSAVE", ioGetXSave, 0x9000aea4},
		{"KVM_SET_XSAVE", ioSetXSave, 0x5000aea5},
		{"KVM_GET_XCRS", ioGetXCRs, 0x8188aea6},
		{"KVM_SET_XCRS", ioSetXCRs, 0x4188aea7},
		{"KVM_GET_XSAVE2", ioGetXSave2, 0x9000aecf},
		{"KVM_GET_NESTED_STATE", ioGetNestedState, 0xc080aebe},
	} {
		if tt.got != tt.want {
			t.Errorf("%s = %#x, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

func TestStructSizes(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uintptr
	}{
		{"kvm_run", unsafe.Sizeof(runPage{}), 2352},
		{"kvm_run (constant)", sizeofRunPage, 2352},
		{"kvm_regs", unsafe.Sizeof(Regs{}), 144},
		{"kvm_regs (constant)", sizeofRegs, 144},
		{"kvm_sregs", unsafe.Sizeof(Sregs{}), 312},
		{"kvm_sregs (constant)", sizeofSregs, 312},
		{"kvm_segment", unsafe.Sizeof(Segment{}), 24},
		{"kvm_dtable", unsafe.Sizeof(Descriptor{}), 16},
		{"kvm_sync_regs", unsafe.Sizeof(syncRegs{}), 520},
		{"kvm_vcpu_events", unsafe.Sizeof(Events{}), 64},
		{"kvm_vcpu_events (constant)", sizeofEvents, 64},
		{"kvm_guest_debug", unsafe.Sizeof(GuestDebug{}), 72},
		{"kvm_guest_debug (constant)", sizeofGuestDebug, 72},
		{"kvm_debugregs", unsafe.Sizeof(DebugRegs{}), 128},
		{"kvm_debugregs (constant)", sizeofDebugRegs, 128},
		{"kvm_xsave (constant)", xsaveLegacySize, 4096},
		{"kvm_xcrs", unsafe.Sizeof(XCRs{}), 392},
		{"kvm_xcrs (constant)", sizeofXCRs, 392},
		{"kvm_xcr", unsafe.Sizeof(gokvm.XRC{}), 16},
		{"kvm_mp_state", unsafe.Sizeof(MPState(0)), 4},
		{"kvm_translation", unsafe.Sizeof(Translation{}), 24},
		{"kvm_translation (constant)", sizeofTranslation, 24},
		{"kvm_userspace_memory_region", unsafe.Sizeof(gokvm.UserspaceMemoryRegion{}), 32},
		{"kvm_userspace_memory_region (constant)", sizeofMemoryRegion, 32},
		{"kvm_enable_cap", unsafe.Sizeof(enableCap{}), 104},
		{"kvm_enable_cap (constant)", sizeofEnableCap, 104},
		{"kvm_irq_level", unsafe.Sizeof(irqLevel{}), 8},
		{"kvm_msi", unsafe.Sizeof(msiMessage{}), 32},
		{"kvm_msi (constant)", sizeofMSI, 32},
		{"kvm_irq_level (constant)", sizeofIRQLevel, 8},
		{"kvm_pit_config", unsafe.Sizeof(pitConfig{}), 64},
		{"kvm_pit_config (constant)", sizeofPITConfig, 64},
		{"kvm_irqchip", unsafe.Sizeof(irqChip{}), 520},
		{"kvm_irqchip (constant)", sizeofIRQChip, 520},
		{"kvm_pit_state2 (constant)", sizeofPITState, 112},
		{"kvm_clock_data", unsafe.Sizeof(clockData{}), 48},
		{"kvm_clock_data (constant)", sizeofClockData, 48},
		{"kvm_lapic_state", unsafe.Sizeof(LAPIC{}), 1024},
		{"kvm_lapic_state (constant)", sizeofLAPIC, 1024},
		{"kvm_cpuid2 (constant)", sizeofCPUIDHeader, 8},
		{"kvm_cpuid_entry2", unsafe.Sizeof(CPUIDEntry{}), 40},
		{"kvm_msrs (constant)", sizeofMSRsHeader, 8},
		{"kvm_msr_entry", unsafe.Sizeof(MSR{}), 16},
		{"kvm_msr_entry (constant)", sizeofMSREntry, 16},
	} {
		if tt.got != tt.want {
			t.Errorf("sizeof %s = %d, want %d", tt.name, tt.got, tt.want)
		}
	}
}

type field struct {
	name      string
	got, want uintptr
}

func checkOffsets(t *testing.T, fields []field) {
	t.Helper()
	for _, f := range fields {
		if f.got != f.want {
			t.Errorf("offset of %s = %d, want %d", f.name, f.got, f.want)
		}
	}
}

func TestRunPageOffsets(t *testing.T) {
	var p runPage
	checkOffsets(t, []field{
		{"kvm_run.request_interrupt_window", unsafe.Offsetof(p.in), 0},
		{"kvm_run.exit_reason", unsafe.Offsetof(p.exitReason), 8},
		{"kvm_run.ready_for_interrupt_injection", unsafe.Offsetof(p.readyForIntr), 12},
		{"kvm_run.if_flag", unsafe.Offsetof(p.ifFlag), 13},
		{"kvm_run.flags", unsafe.Offsetof(p.flags), 14},
		{"kvm_run.cr8", unsafe.Offsetof(p.cr8), 16},
		{"kvm_run.apic_base", unsafe.Offsetof(p.apicBase), 24},
		{"kvm_run.hw", unsafe.Offsetof(p.exit), 32},
		{"kvm_run.kvm_valid_regs", unsafe.Offsetof(p.validRegs), 288},
		{"kvm_run.kvm_dirty_regs", unsafe.Offsetof(p.dirtyRegs), 296},
		{"kvm_run.s", unsafe.Offsetof(p.sync), 304},
		{"kvm_sync_regs.regs", unsafe.Offsetof(p.sync.regs), 0},
		{"kvm_sync_regs.sregs", unsafe.Offsetof(p.sync.sregs), 144},
		{"kvm_sync_regs.events", unsafe.Offsetof(p.sync.events), 456},
	})
	// request_interrupt_window is byte 0 and immediate_exit byte 1 of the
	// little endian word in; the values are booleans.
	if runRequestWindow != 0x0000_0001 || runImmediateExit != 0x0000_0100 {
		t.Errorf("masks of in: %#x and %#x, want 0x1 and 0x100", runRequestWindow, runImmediateExit)
	}
	if syncRegsBit != 1 || syncSregsBit != 2 {
		t.Errorf("KVM_SYNC_X86_REGS, SREGS = %d, %d, want 1, 2", syncRegsBit, syncSregsBit)
	}
}

func TestRegisterOffsets(t *testing.T) {
	var (
		r Regs
		s Sregs
		g Segment
		d Descriptor
	)
	checkOffsets(t, []field{
		{"kvm_regs.rax", unsafe.Offsetof(r.RAX), 0},
		{"kvm_regs.rbx", unsafe.Offsetof(r.RBX), 8},
		{"kvm_regs.rcx", unsafe.Offsetof(r.RCX), 16},
		{"kvm_regs.rdx", unsafe.Offsetof(r.RDX), 24},
		{"kvm_regs.rsi", unsafe.Offsetof(r.RSI), 32},
		{"kvm_regs.rdi", unsafe.Offsetof(r.RDI), 40},
		{"kvm_regs.rsp", unsafe.Offsetof(r.RSP), 48},
		{"kvm_regs.rbp", unsafe.Offsetof(r.RBP), 56},
		{"kvm_regs.r8", unsafe.Offsetof(r.R8), 64},
		{"kvm_regs.r9", unsafe.Offsetof(r.R9), 72},
		{"kvm_regs.r10", unsafe.Offsetof(r.R10), 80},
		{"kvm_regs.r11", unsafe.Offsetof(r.R11), 88},
		{"kvm_regs.r12", unsafe.Offsetof(r.R12), 96},
		{"kvm_regs.r13", unsafe.Offsetof(r.R13), 104},
		{"kvm_regs.r14", unsafe.Offsetof(r.R14), 112},
		{"kvm_regs.r15", unsafe.Offsetof(r.R15), 120},
		{"kvm_regs.rip", unsafe.Offsetof(r.RIP), 128},
		{"kvm_regs.rflags", unsafe.Offsetof(r.RFLAGS), 136},
		{"kvm_sregs.cs", unsafe.Offsetof(s.CS), 0},
		{"kvm_sregs.ds", unsafe.Offsetof(s.DS), 24},
		{"kvm_sregs.es", unsafe.Offsetof(s.ES), 48},
		{"kvm_sregs.fs", unsafe.Offsetof(s.FS), 72},
		{"kvm_sregs.gs", unsafe.Offsetof(s.GS), 96},
		{"kvm_sregs.ss", unsafe.Offsetof(s.SS), 120},
		{"kvm_sregs.tr", unsafe.Offsetof(s.TR), 144},
		{"kvm_sregs.ldt", unsafe.Offsetof(s.LDT), 168},
		{"kvm_sregs.gdt", unsafe.Offsetof(s.GDT), 192},
		{"kvm_sregs.idt", unsafe.Offsetof(s.IDT), 208},
		{"kvm_sregs.cr0", unsafe.Offsetof(s.CR0), 224},
		{"kvm_sregs.cr2", unsafe.Offsetof(s.CR2), 232},
		{"kvm_sregs.cr3", unsafe.Offsetof(s.CR3), 240},
		{"kvm_sregs.cr4", unsafe.Offsetof(s.CR4), 248},
		{"kvm_sregs.cr8", unsafe.Offsetof(s.CR8), 256},
		{"kvm_sregs.efer", unsafe.Offsetof(s.EFER), 264},
		{"kvm_sregs.apic_base", unsafe.Offsetof(s.ApicBase), 272},
		{"kvm_sregs.interrupt_bitmap", unsafe.Offsetof(s.InterruptBitmap), 280},
		{"kvm_segment.base", unsafe.Offsetof(g.Base), 0},
		{"kvm_segment.limit", unsafe.Offsetof(g.Limit), 8},
		{"kvm_segment.selector", unsafe.Offsetof(g.Selector), 12},
		{"kvm_segment.type", unsafe.Offsetof(g.Typ), 14},
		{"kvm_segment.present", unsafe.Offsetof(g.Present), 15},
		{"kvm_segment.dpl", unsafe.Offsetof(g.DPL), 16},
		{"kvm_segment.db", unsafe.Offsetof(g.DB), 17},
		{"kvm_segment.s", unsafe.Offsetof(g.S), 18},
		{"kvm_segment.l", unsafe.Offsetof(g.L), 19},
		{"kvm_segment.g", unsafe.Offsetof(g.G), 20},
		{"kvm_segment.avl", unsafe.Offsetof(g.AVL), 21},
		{"kvm_segment.unusable", unsafe.Offsetof(g.Unusable), 22},
		{"kvm_dtable.base", unsafe.Offsetof(d.Base), 0},
		{"kvm_dtable.limit", unsafe.Offsetof(d.Limit), 8},
	})
}

func TestStateOffsets(t *testing.T) {
	var (
		v Events
		g GuestDebug
		d DebugRegs
		x XCRs
		c gokvm.XRC
	)
	checkOffsets(t, []field{
		{"kvm_vcpu_events.exception", unsafe.Offsetof(v.E), 0},
		{"exception.injected", unsafe.Offsetof(v.E.Inject), 0},
		{"exception.nr", unsafe.Offsetof(v.E.Nr), 1},
		{"exception.has_error_code", unsafe.Offsetof(v.E.HadErrorCode), 2},
		{"exception.pending", unsafe.Offsetof(v.E.Pending), 3},
		{"exception.error_code", unsafe.Offsetof(v.E.ErrorCode), 4},
		{"kvm_vcpu_events.interrupt", unsafe.Offsetof(v.I), 8},
		{"interrupt.injected", unsafe.Offsetof(v.I.Inject), 0},
		{"interrupt.nr", unsafe.Offsetof(v.I.Nr), 1},
		{"interrupt.soft", unsafe.Offsetof(v.I.Soft), 2},
		{"interrupt.shadow", unsafe.Offsetof(v.I.Shadow), 3},
		{"kvm_vcpu_events.nmi", unsafe.Offsetof(v.N), 12},
		{"nmi.injected", unsafe.Offsetof(v.N.Inject), 0},
		{"nmi.pending", unsafe.Offsetof(v.N.Pending), 1},
		{"nmi.masked", unsafe.Offsetof(v.N.Masked), 2},
		{"kvm_vcpu_events.sipi_vector", unsafe.Offsetof(v.SipiVector), 16},
		{"kvm_vcpu_events.flags", unsafe.Offsetof(v.Flags), 20},
		{"kvm_vcpu_events.smi", unsafe.Offsetof(v.S), 24},
		{"smi.latched_init", unsafe.Offsetof(v.S.LatchedInit), 3},
		{"kvm_vcpu_events.triple_fault", unsafe.Offsetof(v.TripleFault), 28},
		{"kvm_vcpu_events.exception_has_payload", unsafe.Offsetof(v.ExceptionHasPayload), 55},
		{"kvm_vcpu_events.exception_payload", unsafe.Offsetof(v.ExceptionPayload), 56},
		{"kvm_guest_debug.control", unsafe.Offsetof(g.Control), 0},
		{"kvm_guest_debug.arch.debugreg", unsafe.Offsetof(g.Reg), 8},
		{"kvm_debugregs.db", unsafe.Offsetof(d.DB), 0},
		{"kvm_debugregs.dr6", unsafe.Offsetof(d.DR6), 32},
		{"kvm_debugregs.dr7", unsafe.Offsetof(d.DR7), 40},
		{"kvm_debugregs.flags", unsafe.Offsetof(d.Flags), 48},
		{"kvm_xcrs.nr_xcrs", unsafe.Offsetof(x.NrXRCS), 0},
		{"kvm_xcrs.flags", unsafe.Offsetof(x.Flags), 4},
		{"kvm_xcrs.xcrs", unsafe.Offsetof(x.Registers), 8},
		{"kvm_xcr.xcr", unsafe.Offsetof(c.XRC), 0},
		{"kvm_xcr.value", unsafe.Offsetof(c.Value), 8},
	})
}

func TestRequestOffsets(t *testing.T) {
	var (
		m gokvm.UserspaceMemoryRegion
		e enableCap
		p CPUIDEntry
		l Translation
		n MSR
	)
	checkOffsets(t, []field{
		{"kvm_userspace_memory_region.slot", unsafe.Offsetof(m.Slot), 0},
		{"kvm_userspace_memory_region.flags", unsafe.Offsetof(m.Flags), 4},
		{"kvm_userspace_memory_region.guest_phys_addr", unsafe.Offsetof(m.GuestPhysAddr), 8},
		{"kvm_userspace_memory_region.memory_size", unsafe.Offsetof(m.MemorySize), 16},
		{"kvm_userspace_memory_region.userspace_addr", unsafe.Offsetof(m.UserspaceAddr), 24},
		{"kvm_enable_cap.cap", unsafe.Offsetof(e.cap), 0},
		{"kvm_enable_cap.flags", unsafe.Offsetof(e.flags), 4},
		{"kvm_enable_cap.args", unsafe.Offsetof(e.args), 8},
		{"kvm_msi.address_hi", unsafe.Offsetof(msiMessage{}.addressHi), 4},
		{"kvm_msi.data", unsafe.Offsetof(msiMessage{}.data), 8},
		{"kvm_msi.devid", unsafe.Offsetof(msiMessage{}.devid), 16},
		{"kvm_irq_level.irq", unsafe.Offsetof(irqLevel{}.irq), 0},
		{"kvm_irq_level.level", unsafe.Offsetof(irqLevel{}.level), 4},
		{"kvm_pit_config.flags", unsafe.Offsetof(pitConfig{}.flags), 0},
		{"kvm_cpuid_entry2.function", unsafe.Offsetof(p.Function), 0},
		{"kvm_cpuid_entry2.index", unsafe.Offsetof(p.Index), 4},
		{"kvm_cpuid_entry2.flags", unsafe.Offsetof(p.Flags), 8},
		{"kvm_cpuid_entry2.eax", unsafe.Offsetof(p.Eax), 12},
		{"kvm_cpuid_entry2.ebx", unsafe.Offsetof(p.Ebx), 16},
		{"kvm_cpuid_entry2.ecx", unsafe.Offsetof(p.Ecx), 20},
		{"kvm_cpuid_entry2.edx", unsafe.Offsetof(p.Edx), 24},
		{"kvm_translation.linear_address", unsafe.Offsetof(l.LinearAddress), 0},
		{"kvm_translation.physical_address", unsafe.Offsetof(l.PhysicalAddress), 8},
		{"kvm_translation.valid", unsafe.Offsetof(l.Valid), 16},
		{"kvm_translation.writeable", unsafe.Offsetof(l.Writeable), 17},
		{"kvm_translation.usermode", unsafe.Offsetof(l.Usermode), 18},
		{"kvm_msr_entry.index", unsafe.Offsetof(n.Index), 0},
		{"kvm_msr_entry.data", unsafe.Offsetof(n.Data), 8},
	})
}

func TestConstants(t *testing.T) {
	for _, tt := range []struct {
		name      string
		got, want uint32
	}{
		{"KVM_MEM_LOG_DIRTY_PAGES", uint32(MemLogDirty), 1},
		{"KVM_MEM_READONLY", uint32(MemReadOnly), 2},
		{"KVM_GUESTDBG_ENABLE", uint32(DebugEnable), 0x1},
		{"KVM_GUESTDBG_SINGLESTEP", uint32(DebugSingleStep), 0x2},
		{"KVM_GUESTDBG_USE_SW_BP", uint32(DebugUseSWBP), 0x10000},
		{"KVM_GUESTDBG_USE_HW_BP", uint32(DebugUseHWBP), 0x20000},
		{"KVM_GUESTDBG_INJECT_DB", uint32(DebugInjectDB), 0x40000},
		{"KVM_GUESTDBG_INJECT_BP", uint32(DebugInjectBP), 0x80000},
		{"KVM_GUESTDBG_BLOCKIRQ", uint32(DebugBlockIRQ), 0x100000},
		{"KVM_VCPUEVENT_VALID_NMI_PENDING", EventNMIPending, 1},
		{"KVM_VCPUEVENT_VALID_SIPI_VECTOR", EventSIPIVector, 2},
		{"KVM_VCPUEVENT_VALID_SHADOW", EventShadow, 4},
		{"KVM_VCPUEVENT_VALID_SMM", EventSMM, 8},
		{"KVM_VCPUEVENT_VALID_PAYLOAD", EventPayload, 0x10},
		{"KVM_VCPUEVENT_VALID_TRIPLE_FAULT", EventTripleFault, 0x20},
		{"KVM_PIT_SPEAKER_DUMMY", pitSpeakerDummy, 1},
		{"KVM_RUN_X86_SMM", uint32(RunSMM), 1},
		{"KVM_RUN_X86_BUS_LOCK", uint32(RunBusLock), 2},
		{"KVM_MP_STATE_RUNNABLE", uint32(MPRunnable), 0},
		{"KVM_MP_STATE_UNINITIALIZED", uint32(MPUninitialized), 1},
		{"KVM_MP_STATE_INIT_RECEIVED", uint32(MPInitReceived), 2},
		{"KVM_MP_STATE_HALTED", uint32(MPHalted), 3},
		{"KVM_MP_STATE_SIPI_RECEIVED", uint32(MPSIPIReceived), 4},
		{"KVM_INTERNAL_ERROR_EMULATION", SuberrorEmulation, 1},
		{"KVM_INTERNAL_ERROR_SIMUL_EX", SuberrorSimultaneous, 2},
		{"KVM_INTERNAL_ERROR_DELIVERY_EV", SuberrorDeliveryEvent, 3},
		{"KVM_INTERNAL_ERROR_UNEXPECTED_EXIT_REASON", SuberrorUnexpectedExitReason, 4},
		{"KVM_INTERNAL_ERROR_EMULATION_FLAG_INSTRUCTION_BYTES", emulationHasBytes, 1},
		{"RFLAGS.IF", x86.FlagIF, 0x200},
	} {
		if tt.got != tt.want {
			t.Errorf("%s = %#x, want %#x", tt.name, tt.got, tt.want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	want := map[string]Capability{
		"KVM_CAP_IRQCHIP": 0, "KVM_CAP_PIT2": 33, "KVM_CAP_TSC_DEADLINE_TIMER": 72,
		"KVM_CAP_USER_MEMORY": 3, "KVM_CAP_SET_TSS_ADDR": 4, "KVM_CAP_EXT_CPUID": 7,
		"KVM_CAP_NR_VCPUS": 9, "KVM_CAP_NR_MEMSLOTS": 10, "KVM_CAP_MP_STATE": 14,
		"KVM_CAP_SYNC_MMU": 16, "KVM_CAP_DESTROY_MEMORY_REGION_WORKS": 21,
		"KVM_CAP_SET_GUEST_DEBUG": 23, "KVM_CAP_SET_IDENTITY_MAP_ADDR": 37,
		"KVM_CAP_INTERNAL_ERROR_DATA": 40, "KVM_CAP_VCPU_EVENTS": 41, "KVM_CAP_DEBUGREGS": 50,
		"KVM_CAP_X86_ROBUST_SINGLESTEP": 51, "KVM_CAP_XSAVE": 55, "KVM_CAP_XCRS": 56,
		"KVM_CAP_MAX_VCPUS": 66, "KVM_CAP_SYNC_REGS": 74, "KVM_CAP_READONLY_MEM": 81,
		"KVM_CAP_ENABLE_CAP_VM": 98, "KVM_CAP_CHECK_EXTENSION_VM": 105,
		"KVM_CAP_DISABLE_QUIRKS": 116, "KVM_CAP_IMMEDIATE_EXIT": 136,
		"KVM_CAP_EXCEPTION_PAYLOAD": 164, "KVM_CAP_X86_USER_SPACE_MSR": 188,
		"KVM_CAP_X86_BUS_LOCK_EXIT": 193, "KVM_CAP_EXIT_HYPERCALL": 201,
		"KVM_CAP_EXIT_ON_EMULATION_FAILURE": 204, "KVM_CAP_XSAVE2": 208,
		"KVM_CAP_X86_TRIPLE_FAULT_EVENT": 218, "KVM_CAP_X86_NOTIFY_VMEXIT": 219,
	}
	if len(want) != len(capabilityNames) {
		t.Errorf("%d capabilities have names, want %d", len(capabilityNames), len(want))
	}
	for name, c := range want {
		if got := c.String(); got != name {
			t.Errorf("capability %d is %s, want %s", c, got, name)
		}
	}
	if got, want := Capability(300).String(), "KVM_CAP_300"; got != want {
		t.Errorf("capability 300 is %s, want %s", got, want)
	}
}
