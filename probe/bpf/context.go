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
const RegsSize = insn.PtRegsSize

// ReturnSize is the size in bytes of the context of a Kretprobe's program: behind
// struct pt_regs stands what PutEntry has kept. Linux has nothing like it.
const ReturnSize = RegsSize + EntrySize

// ContextSize returns the size in bytes of the context of a probe's program.
func (k Kind) ContextSize() int {
	if k == Kretprobe {
		return ReturnSize
	}
	return RegsSize
}

// PutContext writes the context of the program into dst, which has at least ReturnSize
// bytes, and returns it: the saved registers and the selectors of the interrupted code,
// and at a return what PutEntry has kept.
func (p *Program) PutContext(dst []byte, r *insn.Regs, cs, ss uint16, entry []byte) []byte {
	if !p.kind.typed() {
		PutRegs(dst, r, cs, ss)
		if !p.kind.AtReturn() {
			return dst[:RegsSize]
		}
		clear(dst[RegsSize+copy(dst[RegsSize:ReturnSize], entry) : ReturnSize])
		return dst[:ReturnSize]
	}
	if p.kind == Fentry {
		var now [EntrySize]byte
		PutEntry(now[:], 0, r)
		copy(dst, now[entryArgs:])
	} else {
		copy(dst, entry[entryArgs:EntrySize])
	}
	binary.LittleEndian.PutUint64(dst[8*p.args:], r.RAX) // behind the context, unless the program's has it
	return dst[:p.contextSize()]
}

// PutRegs writes the context of a program into dst, which has at least RegsSize
// bytes: the saved registers, and the selectors of the interrupted code. As in
// a kprobe handler, orig_ax is -1.
func PutRegs(dst []byte, r *insn.Regs, cs, ss uint16) {
	dst = dst[:RegsSize]
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(dst[off:], v) }
	put(insn.PtR15, r.R15)
	put(insn.PtR14, r.R14)
	put(insn.PtR13, r.R13)
	put(insn.PtR12, r.R12)
	put(insn.PtBP, r.RBP)
	put(insn.PtBX, r.RBX)
	put(insn.PtR11, r.R11)
	put(insn.PtR10, r.R10)
	put(insn.PtR9, r.R9)
	put(insn.PtR8, r.R8)
	put(insn.PtAX, r.RAX)
	put(insn.PtCX, r.RCX)
	put(insn.PtDX, r.RDX)
	put(insn.PtSI, r.RSI)
	put(insn.PtDI, r.RDI)
	put(insn.PtOrigAX, ^uint64(0))
	put(insn.PtIP, r.RIP)
	put(insn.PtCS, uint64(cs))
	put(insn.PtFlags, r.RFLAGS)
	put(insn.PtSP, r.RSP)
	put(insn.PtSS, uint64(ss))
}
