package kvm

import (
	gokvm "github.com/bobuhiro11/gokvm/kvm"
)

// The version of the KVM API that this package speaks. It has been 12 since
// Linux 2.6.22 and is not going to change (KVM API document, section 4.1).
const apiVersion = 12

// The ioctl numbers, computed as the kernel computes them: direction, type
// 0xae, number, and size of the argument. TestIoctlNumbers compares each with
// the literal that the kernel headers expand to.
var (
	ioGetAPIVersion     = gokvm.IIO(0x00)
	ioCreateVM          = gokvm.IIO(0x01)
	ioCheckExtension    = gokvm.IIO(0x03)
	ioGetVCPUMmapSize   = gokvm.IIO(0x04)
	ioGetMSRIndexList   = gokvm.IIOWR(0x02, 4)
	ioGetSupportedCPUID = gokvm.IIOWR(0x05, sizeofCPUIDHeader)

	ioCreateVCPU          = gokvm.IIO(0x41)
	ioSetUserMemoryRegion = gokvm.IIOW(0x46, sizeofMemoryRegion)
	ioSetTSSAddr          = gokvm.IIO(0x47)
	ioSetIdentityMapAddr  = gokvm.IIOW(0x48, 8)
	ioCreateIRQChip       = gokvm.IIO(0x60)
	ioIRQLine             = gokvm.IIOW(0x61, sizeofIRQLevel)
	ioSignalMSI           = gokvm.IIOW(0xa5, sizeofMSI)
	ioCreatePIT2          = gokvm.IIOW(0x77, sizeofPITConfig)
	ioEnableCap           = gokvm.IIOW(0xa3, sizeofEnableCap)
	ioGetIRQChip          = gokvm.IIOWR(0x62, sizeofIRQChip)
	ioSetIRQChip          = gokvm.IIOR(0x63, sizeofIRQChip)
	ioSetClock            = gokvm.IIOW(0x7b, sizeofClockData)
	ioGetClock            = gokvm.IIOR(0x7c, sizeofClockData)
	ioGetPIT2             = gokvm.IIOR(0x9f, sizeofPITState)
	ioSetPIT2             = gokvm.IIOW(0xa0, sizeofPITState)

	ioRun           = gokvm.IIO(0x80)
	ioGetRegs       = gokvm.IIOR(0x81, sizeofRegs)
	ioSetRegs       = gokvm.IIOW(0x82, sizeofRegs)
	ioGetSregs      = gokvm.IIOR(0x83, sizeofSregs)
	ioSetSregs      = gokvm.IIOW(0x84, sizeofSregs)
	ioTranslate     = gokvm.IIOWR(0x85, sizeofTranslation)
	ioInterrupt     = gokvm.IIOW(0x86, 4)
	ioGetMSRs       = gokvm.IIOWR(0x88, sizeofMSRsHeader)
	ioSetMSRs       = gokvm.IIOW(0x89, sizeofMSRsHeader)
	ioGetLAPIC      = gokvm.IIOR(0x8e, sizeofLAPIC)
	ioSetLAPIC      = gokvm.IIOW(0x8f, sizeofLAPIC)
	ioSetCPUID2     = gokvm.IIOW(0x90, sizeofCPUIDHeader)
	ioGetCPUID2     = gokvm.IIOWR(0x91, sizeofCPUIDHeader)
	ioGetMPState    = gokvm.IIOR(0x98, 4)
	ioSetMPState    = gokvm.IIOW(0x99, 4)
	ioNMI           = gokvm.IIO(0x9a)
	ioGetTSCKHz     = gokvm.IIO(0xa3)
	ioSetGuestDebug = gokvm.IIOW(0x9b, sizeofGuestDebug)
	ioGetEvents     = gokvm.IIOR(0x9f, sizeofEvents)
	ioSetEvents     = gokvm.IIOW(0xa0, sizeofEvents)
	ioGetDebugRegs  = gokvm.IIOR(0xa1, sizeofDebugRegs)
	ioSetDebugRegs  = gokvm.IIOW(0xa2, sizeofDebugRegs)
	ioGetXSave      = gokvm.IIOR(0xa4, xsaveLegacySize)
	ioSetXSave      = gokvm.IIOW(0xa5, xsaveLegacySize)
	ioGetXCRs       = gokvm.IIOR(0xa6, sizeofXCRs)
	ioSetXCRs       = gokvm.IIOW(0xa7, sizeofXCRs)
	ioKVMClockCtrl  = gokvm.IIO(0xad)
	ioGetXSave2     = gokvm.IIOR(0xcf, xsaveLegacySize)

	ioGetNestedState = gokvm.IIOWR(0xbe, sizeofNestedState)
)

// Sizes of the kernel's structures, in bytes, as they go into the ioctl
// numbers. TestStructSizes proves that the Go types have them.
const (
	sizeofCPUIDHeader  = 8    // struct kvm_cpuid2 without entries
	sizeofCPUIDEntry   = 40   // struct kvm_cpuid_entry2
	sizeofMSRsHeader   = 8    // struct kvm_msrs without entries
	sizeofMSREntry     = 16   // struct kvm_msr_entry
	sizeofMemoryRegion = 32   // struct kvm_userspace_memory_region
	sizeofEnableCap    = 104  // struct kvm_enable_cap
	sizeofIRQLevel     = 8    // struct kvm_irq_level
	sizeofMSI          = 32   // struct kvm_msi
	sizeofPITConfig    = 64   // struct kvm_pit_config
	sizeofIRQChip      = 520  // struct kvm_irqchip
	sizeofPITState     = 112  // struct kvm_pit_state2
	sizeofClockData    = 48   // struct kvm_clock_data
	sizeofLAPIC        = 1024 // struct kvm_lapic_state
	sizeofRegs         = 144  // struct kvm_regs
	sizeofSregs        = 312  // struct kvm_sregs
	sizeofTranslation  = 24   // struct kvm_translation
	sizeofGuestDebug   = 72   // struct kvm_guest_debug
	sizeofEvents       = 64   // struct kvm_vcpu_events
	sizeofDebugRegs    = 128  // struct kvm_debugregs
	sizeofXCRs         = 392  // struct kvm_xcrs
	sizeofNestedState  = 128  // struct kvm_nested_state without data
	xsaveLegacySize    = 4096 // struct kvm_xsave without extra
	sizeofRunPage      = 2352 // struct kvm_run
)

// runPage mirrors struct kvm_run of x86, the start of the mapping that a vCPU
// shares with the kernel (KVM API document, section 5).
type runPage struct {
	// in holds four bytes that user space writes: request_interrupt_window,
	// immediate_exit and padding. They are one word here because two threads
	// set them (the owner the first, any thread the second) and Go has no
	// atomic operations on bytes. See the run* masks.
	in uint32
	_  [4]byte

	exitReason   uint32
	readyForIntr uint8
	ifFlag       uint8
	flags        uint16
	cr8          uint64
	apicBase     uint64
	exit         [256]byte // the union of exit data
	validRegs    uint64    // classes that KVM_RUN stores on return
	dirtyRegs    uint64    // classes that KVM_RUN loads on entry
	sync         syncRegs
	_            [2048 - sizeofRegs - sizeofSregs - sizeofEvents]byte
}

// syncRegs mirrors struct kvm_sync_regs of x86.
type syncRegs struct {
	regs   Regs
	sregs  Sregs
	events Events
}

// Masks of runPage.in, by the offsets of struct kvm_run: byte 0 is
// request_interrupt_window, byte 1 is immediate_exit.
const (
	runRequestWindow uint32 = 1 << 0
	runImmediateExit uint32 = 1 << 8
)

// Bits of kvm_valid_regs and kvm_dirty_regs (KVM_SYNC_X86_*).
const (
	syncRegsBit  uint64 = 1 << 0
	syncSregsBit uint64 = 1 << 1
)

// msiMessage mirrors struct kvm_msi.
type msiMessage struct {
	addressLo, addressHi uint32
	data                 uint32
	flags                uint32
	devid                uint32
	_                    [12]byte
}

// irqLevel mirrors struct kvm_irq_level.
type irqLevel struct {
	irq   uint32
	level uint32
}

// pitConfig mirrors struct kvm_pit_config.
type pitConfig struct {
	flags uint32
	_     [15]uint32
}

// pitSpeakerDummy has the kernel answer port 0x61 as well, the gate of the PIT's third
// channel (KVM_PIT_SPEAKER_DUMMY).
const pitSpeakerDummy = 1 << 0

// enableCap mirrors struct kvm_enable_cap.
type enableCap struct {
	cap   uint32
	flags uint32
	args  [4]uint64
	_     [64]byte
}
