package bpf

import (
	"encoding/binary"
	"errors"

	"github.com/guestprobe/guestprobe/probe/insn"
)

var errNoGuest = errors.New("no guest")

// RegsSize is the size in bytes of the context of a probe's program: struct
// pt_regs of x86-64 Linux (arch/x86/include/asm/ptrace.h), which clang's output
// and the PT_REGS macros know.
const RegsSize = 21 * 8

// ReturnSize is the size in bytes of the context of a Kretprobe's program: behind
// struct pt_regs stand the time of the function's entry, as of ktime_get_ns, and
// what its six integer arguments were then, 8 bytes each. Linux has nothing like
// it. PutEntry writes them.
const (
	ReturnSize = RegsSize + EntrySize
	EntrySize  = 7 * 8
)

// ContextSize returns the size in bytes of the context of a probe's program.
func (k Kind) ContextSize() int {
	if k == Kretprobe {
		return ReturnSize
	}
	return RegsSize
}

// PutEntry writes what a function's entry leaves for the program at its return
// into dst, which has at least EntrySize bytes.
func PutEntry(dst []byte, now uint64, r *insn.Regs) {
	dst = dst[:EntrySize]
	for i, v := range [...]uint64{now, r.RDI, r.RSI, r.RDX, r.RCX, r.R8, r.R9} {
		binary.LittleEndian.PutUint64(dst[8*i:], v)
	}
}

// Offsets in the context.
const (
	offR15    = 0
	offR14    = 8
	offR13    = 16
	offR12    = 24
	offBP     = 32
	offBX     = 40
	offR11    = 48
	offR10    = 56
	offR9     = 64
	offR8     = 72
	offAX     = 80
	offCX     = 88
	offDX     = 96
	offSI     = 104
	offDI     = 112
	offOrigAX = 120
	offIP     = 128
	offCS     = 136
	offFlags  = 144
	offSP     = 152
	offSS     = 160
)

// funcArgs is where the integer arguments of a function stand (System V ABI,
// 3.2.3).
var funcArgs = [6]int{offDI, offSI, offDX, offCX, offR8, offR9}

// PutRegs writes the context of a program into dst, which has at least RegsSize
// bytes: the saved registers, and the selectors of the interrupted code. As in
// a kprobe handler, orig_ax is -1.
func PutRegs(dst []byte, r *insn.Regs, cs, ss uint16) {
	dst = dst[:RegsSize]
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(dst[off:], v) }
	put(offR15, r.R15)
	put(offR14, r.R14)
	put(offR13, r.R13)
	put(offR12, r.R12)
	put(offBP, r.RBP)
	put(offBX, r.RBX)
	put(offR11, r.R11)
	put(offR10, r.R10)
	put(offR9, r.R9)
	put(offR8, r.R8)
	put(offAX, r.RAX)
	put(offCX, r.RCX)
	put(offDX, r.RDX)
	put(offSI, r.RSI)
	put(offDI, r.RDI)
	put(offOrigAX, ^uint64(0))
	put(offIP, r.RIP)
	put(offCS, uint64(cs))
	put(offFlags, r.RFLAGS)
	put(offSP, r.RSP)
	put(offSS, uint64(ss))
}
