package bpf

import (
	"encoding/binary"
	"errors"

	"github.com/guestprobe/guestprobe/guest/x86"
)

var errNoGuest = errors.New("no guest")

// RegsSize is the size in bytes of the context of a probe's program: struct pt_regs
// of x86-64 Linux (arch/x86/include/asm/ptrace.h), which clang's output and the
// PT_REGS macros use.
const RegsSize = x86.PtRegsSize

// ReturnSize is the size in bytes of the context of a Kretprobe's program: struct
// pt_regs followed by the data of PutEntry. Linux has nothing like it.
const ReturnSize = RegsSize + EntrySize

// MaxRecord is the size in bytes of the context of an Event's program. A record is
// not longer; bytes after it have no meaning.
const MaxRecord = 2048

// ContextSize returns the size in bytes of the context of a probe's program.
func (k Kind) ContextSize() int {
	switch k {
	case Kretprobe:
		return ReturnSize
	case SysEnter:
		return sysArgs + 8*len(sysCallArgs)
	case SysExit:
		return sysArgs + 8
	case Event:
		return MaxRecord
	}
	return RegsSize
}

// The context of the tracepoints of system calls (struct trace_event_raw_sys_enter
// and _sys_exit, as kernel/trace/trace_syscalls.c fills them in for programs): a
// header that is the kernel's own, the number of the call, and its arguments or its
// result. The function of a system call has them in the registers of the user's code,
// to which its only argument points (arch/x86/include/asm/syscall_wrapper.h).
const (
	sysNumber = 8
	sysArgs   = 16
)

// sysCallArgs are the offsets of a system call's arguments in struct pt_regs.
var sysCallArgs = [6]int{x86.PtDI, x86.PtSI, x86.PtDX, x86.PtR10, x86.PtR8, x86.PtR9}

// putCall writes the context of a system call's program into dst, of at least
// RegsSize bytes: regs is the address of the registers of the user's code. Unreadable
// words are 0.
func putCall(dst []byte, kind Kind, env Env, regs, result uint64) {
	user := dst[:RegsSize]
	if env.ReadKernel(regs, user) != nil {
		clear(user)
	}
	number, args := binary.LittleEndian.Uint64(user[x86.PtOrigAX:]), [len(sysCallArgs)]uint64{result}
	if kind == SysEnter {
		for i, at := range sysCallArgs {
			args[i] = binary.LittleEndian.Uint64(user[at:])
		}
	}
	clear(user)
	binary.LittleEndian.PutUint64(dst[sysNumber:], number)
	for i, v := range args {
		binary.LittleEndian.PutUint64(dst[sysArgs+8*i:], v)
	}
}

// PutContext writes the context of the program into dst, which has at least
// ReturnSize bytes, and returns it: the saved registers and the selectors of the
// interrupted code, at a return the data of PutEntry, and any guest memory it needs,
// read through env.
func (p *Program) PutContext(dst []byte, env Env, r *x86.Regs, cs, ss uint16, entry []byte) []byte {
	if p.kind.isCall() {
		regs := r.RDI
		if p.kind == SysExit {
			regs = binary.LittleEndian.Uint64(entry[entryArgs:])
		}
		putCall(dst, p.kind, env, regs, r.RAX)
		return dst[:p.kind.ContextSize()]
	}
	if !p.kind.typed() {
		PutRegs(dst, r, cs, ss)
		if !p.kind.AtReturn() {
			return dst[:RegsSize]
		}
		clear(dst[RegsSize+copy(dst[RegsSize:ReturnSize], entry) : ReturnSize])
		return dst[:ReturnSize]
	}
	switch p.kind {
	case Tracepoint:
		p.putTracepoint(dst, env, r)
		return dst[:p.contextSize()]
	case Fentry:
		var now [EntrySize]byte
		PutEntry(now[:], 0, r)
		copy(dst, now[entryArgs:])
	default:
		copy(dst, entry[entryArgs:EntrySize])
	}
	binary.LittleEndian.PutUint64(dst[8*p.args:], r.RAX) // after the context, unless the program's context has it
	return dst[:p.contextSize()]
}

// maxTracepointArgs is the maximum number of arguments of a Linux tracepoint
// (MAX_BPF_FUNC_ARGS, include/linux/bpf.h), and tracepointRegs is the number passed
// in registers: the first one is not the tracepoint's.
const (
	maxTracepointArgs = 12
	tracepointRegs    = len(x86.CallArgs) - 1
)

// putTracepoint writes the context of a tracepoint's program into dst. Unreadable
// words are 0.
func (p *Program) putTracepoint(dst []byte, env Env, r *x86.Regs) {
	var now [EntrySize]byte
	PutEntry(now[:], 0, r)
	n := copy(dst[:8*p.args], now[entryArgs+8:])
	if n < 8*p.args {
		if rest := dst[n : 8*p.args]; env.ReadKernel(r.RSP+8, rest) != nil {
			clear(rest)
		}
	}
}

// PutRegs writes the context of a program into dst, which has at least RegsSize
// bytes: the saved registers, and the selectors of the interrupted code. As in
// a kprobe handler, orig_ax is -1.
func PutRegs(dst []byte, r *x86.Regs, cs, ss uint16) {
	dst = dst[:RegsSize]
	put := func(off int, v uint64) { binary.LittleEndian.PutUint64(dst[off:], v) }
	put(x86.PtR15, r.R15)
	put(x86.PtR14, r.R14)
	put(x86.PtR13, r.R13)
	put(x86.PtR12, r.R12)
	put(x86.PtBP, r.RBP)
	put(x86.PtBX, r.RBX)
	put(x86.PtR11, r.R11)
	put(x86.PtR10, r.R10)
	put(x86.PtR9, r.R9)
	put(x86.PtR8, r.R8)
	put(x86.PtAX, r.RAX)
	put(x86.PtCX, r.RCX)
	put(x86.PtDX, r.RDX)
	put(x86.PtSI, r.RSI)
	put(x86.PtDI, r.RDI)
	put(x86.PtOrigAX, ^uint64(0))
	put(x86.PtIP, r.RIP)
	put(x86.PtCS, uint64(cs))
	put(x86.PtFlags, r.RFLAGS)
	put(x86.PtSP, r.RSP)
	put(x86.PtSS, uint64(ss))
}
