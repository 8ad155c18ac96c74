package event

import (
	"encoding/binary"
	"syscall"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

var le = binary.LittleEndian

// A record, little endian. Every one begins with its time, source and moment; the
// rest is defined by its Layout.
//
//	 0  u64  time of ktime_get_ns
//	 8  u32  source << 2 | stage
//	12  s32  task's id; of no meaning where Options.Tasks is not set
//	16  u16  selector of the interrupted code: bits 0 and 1 are its privilege level
//	18  u16  low half of its RFLAGS
//	20       status: one byte per field, then padding up to a multiple of 8
//	 ..      of a return: u64 address returned to, u64 time of the entry
//	 ..      of a watch, and of code that may move: u64 address of the instruction
//	 ..      task name, then registers, then a stack, where the layout has them
//	 ..      fields, packed; text as u32 data_loc: length with NUL << 16 | offset
//	 ..      texts
const (
	RecordTime   = 0
	RecordMark   = 8
	RecordPID    = 12
	RecordCS     = 16
	RecordFlags  = 18
	RecordStatus = 20

	recordHeader = 16    // the part that can be read without a Layout
	maxRecord    = 65535 // a data_loc's offset has 16 bits
)

// MarkOf returns the word at RecordMark; ok is false if rec is too short for a
// record.
func MarkOf(rec []byte) (mark uint32, ok bool) {
	if len(rec) < recordHeader {
		return 0, false
	}
	return le.Uint32(rec[RecordMark:]), true
}

// markMoment returns the moment of a record with that mark.
func markMoment(mark uint32) Moment { return Moment(mark & 3) }

// Status byte of a field: the number of elements at its end that could not be read,
// and whether some text was truncated.
const (
	statusFaults = 0x7f
	StatusCut    = 0x80
)

const enoent = syscall.ENOENT

// Moment says when a record was made.
type Moment uint8

// The moments: of the pre handler, of the post handler, of the return handler.
const (
	AtPre    Moment = iota // before the probed instruction
	AtPost                 // after it: registers only
	AtReturn               // at the function's return
)

// String returns "pre", "post" or "return".
func (m Moment) String() string {
	switch m {
	case AtPre:
		return "pre"
	case AtPost:
		return "post"
	case AtReturn:
		return "return"
	}
	return "unknown"
}

// RecordRegs are the registers of a record, 8 bytes each, in the order of probe.Regs.
var RecordRegs = func() (regs [len(x86.PtFields)]Reg) {
	for i, at := range x86.PtFields {
		regs[i] = Reg(at / 8)
	}
	return regs
}()

// StackDepth is the most addresses in the stack of a record. Unused ones are 0.
const StackDepth = 64

const regsSize = 8 * len(RecordRegs)

func getRegs(b []byte) (r probe.Regs) {
	for i, p := range r.Fields() {
		*p = le.Uint64(b[8*i:])
	}
	return r
}

// getSized reads a little-endian number of 1, 2, 4 or 8 bytes.
func getSized(b []byte) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(le.Uint16(b))
	case 4:
		return uint64(le.Uint32(b))
	}
	return le.Uint64(b)
}
