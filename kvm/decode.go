package kvm

import (
	"encoding/binary"
	"fmt"
)

// decode fills e from the exit that KVM left in page. mapping is the whole
// shared memory, which holds the data of in and out after the page.
//
// The offsets are the offsets in the union in struct kvm_run, shown beside each
// field. TestExitDecode has them as gcc lays that struct out.
func (e *Exit) decode(page *runPage, mapping []byte) error {
	le := binary.LittleEndian
	u := &page.exit
	e.Reason = Reason(page.exitReason)
	e.Flags = page.flags
	e.Raw = u[:]

	switch e.Reason {
	case ReasonIO:
		// u8 direction, u8 size, u16 port, u32 count, u64 data_offset
		e.IO.In = u[0] == 0
		e.IO.Size = u[1]
		e.IO.Port = le.Uint16(u[2:])
		e.IO.Count = le.Uint32(u[4:])
		off, n := le.Uint64(u[8:]), uint64(e.IO.Size)*uint64(e.IO.Count)
		if size := uint64(len(mapping)); off > size || n > size-off {
			e.IO.Data = nil
			return fmt.Errorf("decode io exit: %d bytes at offset %#x are outside the shared memory of %d bytes", n, off, size)
		}
		e.IO.Data = mapping[off : off+n : off+n]
	case ReasonMMIO:
		// u64 phys_addr, u8 data[8], u32 len, u8 is_write
		e.MMIO.GPA = le.Uint64(u[0:])
		e.MMIO.Data = [8]byte(u[8:16])
		e.MMIO.Len = le.Uint32(u[16:])
		e.MMIO.Write = u[20] != 0
		if e.MMIO.Len == 0 || e.MMIO.Len > 8 {
			return fmt.Errorf("decode mmio exit: length %d at gpa %#x is not 1 to 8", e.MMIO.Len, e.MMIO.GPA)
		}
	case ReasonDebug:
		// struct kvm_debug_exit_arch: u32 exception, u32 pad, u64 pc, dr6, dr7
		e.Debug.Exception = le.Uint32(u[0:])
		e.Debug.PC = le.Uint64(u[8:])
		e.Debug.DR6 = le.Uint64(u[16:])
		e.Debug.DR7 = le.Uint64(u[24:])
	case ReasonException:
		// u32 exception, u32 error_code
		e.Exception.Vector = le.Uint32(u[0:])
		e.Exception.Code = le.Uint32(u[4:])
	case ReasonInternalError:
		e.Internal.decode(u)
	case ReasonFailEntry:
		// u64 hardware_entry_failure_reason, u32 cpu
		e.FailEntry.Reason = le.Uint64(u[0:])
		e.FailEntry.CPU = le.Uint32(u[8:])
	case ReasonSystemEvent:
		// u32 type, u32 ndata, u64 data[16]
		e.SystemEvent.Type = le.Uint32(u[0:])
		e.SystemEvent.NData = min(le.Uint32(u[4:]), 16)
		readWords(&e.SystemEvent.Data, u[8:])
	case ReasonRDMSR, ReasonWRMSR:
		// u8 error, u8 pad[7], u32 reason, u32 index, u64 data
		e.MSR.Cause = le.Uint32(u[8:])
		e.MSR.Index = le.Uint32(u[12:])
		e.MSR.Data = le.Uint64(u[16:])
	case ReasonHypercall:
		// u64 nr, u64 args[6], u64 ret, u32 longmode
		e.Hypercall.Nr = le.Uint64(u[0:])
		for i := range e.Hypercall.Args {
			e.Hypercall.Args[i] = le.Uint64(u[8+8*i:])
		}
		e.Hypercall.Long = le.Uint32(u[64:]) != 0
	case ReasonTPRAccess:
		// u64 rip, u32 is_write
		e.TPRAccess.RIP = le.Uint64(u[0:])
		e.TPRAccess.Write = le.Uint32(u[8:]) != 0
	case ReasonMemoryFault:
		e.MemoryFault.decode(u)
	case ReasonIOAPICEOI:
		e.EOIVector = u[0]
	case ReasonNotify:
		e.NotifyFlags = le.Uint32(u[0:])
	case ReasonIntr:
		// A signal, reported without EINTR: the caller need not do anything about it
		// either.
		e.Reason = ReasonInterrupted
	case ReasonUnknown:
		return &UnknownExitError{Reason: e.Reason, Hardware: le.Uint64(u[0:]), Raw: *u}
	case ReasonHLT, ReasonInterruptWindow, ReasonShutdown, ReasonSetTPR, ReasonNMI,
		ReasonHyperV, ReasonDirtyRingFull, ReasonAPResetHold, ReasonBusLock, ReasonXen,
		ReasonWatchdog, ReasonTDX:
		// No payload, or one that Raw shows.
	default:
		// Another architecture's, or newer than this program.
		return &UnknownExitError{Reason: e.Reason, Raw: *u}
	}
	return nil
}

// decode reads struct internal or, for an emulation failure, the overlay
// emulation_failure: u32 suberror, u32 ndata, u64 flags, u8 insn_size,
// u8 insn_bytes[15].
func (e *InternalExit) decode(u *[256]byte) {
	le := binary.LittleEndian
	e.Suberror = le.Uint32(u[0:])
	e.NData = min(le.Uint32(u[4:]), 16)
	readWords(&e.Data, u[8:])
	e.insnLen = 0
	// ndata counts the words from flags on; the instruction takes two.
	if e.Suberror == SuberrorEmulation && e.NData >= 3 && e.Data[0]&emulationHasBytes != 0 {
		e.insnLen = min(u[16], 15)
		copy(e.insn[:], u[17:32])
	}
}

// decode reads struct memory_fault: u64 flags, u64 gpa, u64 size.
func (e *MemoryFaultExit) decode(u *[256]byte) {
	le := binary.LittleEndian
	e.Flags, e.GPA, e.Size = le.Uint64(u[0:]), le.Uint64(u[8:]), le.Uint64(u[16:])
}

// readWords reads 16 words of 64 bits.
func readWords(dst *[16]uint64, src []byte) {
	for i := range dst {
		dst[i] = binary.LittleEndian.Uint64(src[8*i:])
	}
}
