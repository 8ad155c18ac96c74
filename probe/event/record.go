package event

import (
	"syscall"
)

// A record, little endian. Header, addresses and arguments stand where the
// kernel has them in its own records (events/.../format); bytes 0 and 1, its
// event number, hold stage and privilege level here.
//
//	 0  u8   stage
//	 1  u8   cpl
//	 2  u8   flags (TRACE_FLAG_*)
//	 3  u8   preempt count: 0, not known
//	 4  s32  pid: 0 without a profile
//	 8  u64  __probe_ip, or __probe_func of a return probe
//	16  u64  __probe_ret_ip, only of a return probe
//	 .. arguments, packed; text as u32 data_loc: length with NUL << 16 | offset
//	 .. one status byte per argument
//	 .. task name (with a profile), then registers (if asked for)
//	 .. u64 duration in nanoseconds, only of a return probe
//	 .. text
//
// A record of stage post ends behind the arguments' place: header,
// __probe_ip, task name, registers.
const (
	entryArgs  = 16
	returnArgs = 24
	maxRecord  = 65535 // a data_loc's offset has 16 bits
	entrySlot  = 9     // 8 bytes of value, 1 of status
)

// Status byte of an argument: how many elements at its end could not be read,
// and whether some text was cut.
const (
	statusFaults = 0x7f
	statusCut    = 0x80
)

// flagIRQsOff is TRACE_FLAG_IRQS_OFF.
const flagIRQsOff = 0x01

const enoent = syscall.ENOENT

// Stage says when a record was captured.
type Stage uint8

// The stages.
const (
	StagePre    Stage = iota // before the probed instruction
	StagePost                // after it: registers only
	StageReturn              // at the function's return
)

// String returns "pre", "post" or "return".
func (s Stage) String() string {
	switch s {
	case StagePre:
		return "pre"
	case StagePost:
		return "post"
	case StageReturn:
		return "return"
	}
	return "unknown"
}
