package flow

import (
	"fmt"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// line is a function decoded in a straight line from its first byte, as Linux does
// (arch/x86/kernel/kprobes/core.c, can_probe; opt.c, can_optimize): data between
// instructions is decoded as instructions until that fails.
type line struct {
	starts    []uint64 // bit n: an instruction begins at offset n
	bad       int      // offset of the first byte that could not be decoded; size if all were
	badErr    error
	branches  []branch // branches according to Linux, ascending by target
	exception int      // offset of the first instruction with an exception-table entry, or -1
	farJump   int      // offset of the first far indirect jump, or -1
	indirect  int      // offset of the first near indirect jump, or -1
}

// line returns the straight line; any thread.
func (f *Func) line() *line {
	f.straight.once.Do(func() { f.straight.line = f.decodeLine() })
	return &f.straight.line
}

func (f *Func) decodeLine() line {
	l := line{starts: make([]uint64, (f.size+63)/64), exception: -1, farJump: -1, indirect: -1}
	for l.bad < f.size {
		i, err := x86.Decode(f.in.Code[l.bad:])
		if err != nil {
			l.badErr = err
			break
		}
		l.starts[l.bad/64] |= 1 << (l.bad % 64)
		if f.size <= MaxCode {
			l.noteInst(f, &i, f.in.Addr+uint64(l.bad))
		}
		l.bad += int(i.Len)
	}
	slices.SortFunc(l.branches, compareTargets)
	return l
}

// noteInst collects the data for the rules about the instruction at l.bad.
func (l *line) noteInst(f *Func, i *x86.Inst, at uint64) {
	if l.exception < 0 && f.in.Exception != nil && f.in.Exception(at) {
		l.exception = l.bad
	}
	// The end counts: it can be the fifth byte after the last region's first.
	if t, ok := kernelTarget(i, at); ok && t-f.in.Addr <= uint64(f.size) {
		l.branches = append(l.branches, branch{t, l.bad})
	}
	switch {
	case i.Class() == x86.ClassJumpInd && l.indirect < 0:
		l.indirect = l.bad
	case i.Class() == x86.ClassFar && i.Opcode == 0xff && i.Reg() == 5 && l.farJump < 0:
		l.farJump = l.bad
	}
}

// begins reports whether an instruction begins at off.
func (l *line) begins(off int) bool {
	return off >= 0 && off/64 < len(l.starts) && l.starts[off/64]>>(off%64)&1 != 0
}

// Boundary reports whether an instruction begins at off: one that a known path
// reaches or, without such a path, one of the straight line that Linux decodes. other
// is an instruction that contradicts this, or nil: a reached one that off is inside
// of; otherwise any that overlaps the one at off, because the straight line may have
// decoded data and jumped over the beginning of code.
func (f *Func) Boundary(off int) (ok bool, other *Inst) {
	k, found := f.Index(off)
	reached := found && f.insts[k].Reached
	ok = reached || f.line().begins(off)
	for n := k - 1; n >= 0 && f.insts[n].Off > off-x86.MaxLen; n-- {
		if i := &f.insts[n]; i.end() > off && (i.Reached || !reached) {
			other = i
			if i.Reached {
				return ok, other
			}
		}
	}
	if other != nil || reached || !ok {
		return ok, other
	}
	if found {
		k++
	}
	in, _ := x86.Decode(f.in.Code[off:]) // as the straight line did
	if k < len(f.insts) && f.insts[k].Off < off+int(in.Len) {
		other = &f.insts[k]
	}
	return ok, other
}

// FirstUndecodable returns the offset of the first byte at which decoding the
// function in a straight line fails, the error (of x86.Decode), and true; false if
// all of the function was decoded.
func (f *Func) FirstUndecodable() (off int, err error, bad bool) {
	l := f.line()
	return l.bad, l.badErr, l.badErr != nil
}

// kernelRegion is Region by the rules of Linux.
func (f *Func) kernelRegion(off int, r Rule) (Region, *Refusal) {
	l := f.line()
	switch {
	case !l.begins(off) && l.badErr != nil && off >= l.bad && off < f.size:
		return Region{}, l.refuseUndecodable()
	case !l.begins(off):
		return Region{}, refuse(ReasonNotBoundary, off, "")
	case f.size-off < x86.JmpLen:
		return Region{}, f.refuseTooShort(off)
	}
	reg := Region{Addr: f.in.Addr + uint64(off), Off: off}
	for reg.Len < x86.JmpLen {
		at := off + reg.Len
		if !l.begins(at) {
			return Region{}, refuse(ReasonFunctionTooShort, off, "the region's last instruction reaches into the next symbol")
		}
		in, _ := x86.Decode(f.in.Code[at:])
		i := Inst{Off: at, Inst: in}
		if reg.Len == 0 {
			if !kernelProbeable(&in) {
				return Region{}, refuse(ReasonNotProbeable, off, "")
			}
			if no := l.checkFunction(f.in.Addr, off, r); no != nil {
				return Region{}, no
			}
		}
		// First, because then the bytes are not the ones that run.
		if what := f.patchedReason(&i); what != "" {
			return Region{}, refuse(ReasonPatchedSite, at, what)
		}
		if no := kernelDisplaced(&i); no != nil {
			return Region{}, no
		}
		reg.add(&in)
	}
	return reg, nil
}

// refuseUndecodable is the refusal for the place where decoding ended.
func (l *line) refuseUndecodable() *Refusal {
	return refuse(ReasonUndecodable, l.bad, l.badErr.Error())
}

// checkFunction applies the rules about the whole function at addr, except for the
// length.
func (l *line) checkFunction(addr uint64, off int, r Rule) *Refusal {
	switch {
	case l.exception >= 0:
		return refuse(ReasonExceptionEntry, l.exception, "in the function")
	case l.badErr != nil:
		return l.refuseUndecodable()
	case r == Kernel && l.farJump >= 0:
		return refuse(ReasonIndirectJump, l.farJump, "far")
	case r == Kernel && l.indirect >= 0:
		return refuse(ReasonIndirectJump, l.indirect, "")
	}
	// Up to and including +5, one byte more than the jump takes.
	at := addr + uint64(off)
	if b, ok := firstInto(l.branches, at+1, at+x86.JmpLen+1); ok {
		return refuse(ReasonJumpIntoRegion, b.from, fmt.Sprintf("to +%#x", b.to-addr))
	}
	return nil
}

// kernelProbeable reports whether Linux 6.12 accepts a kprobe on the instruction,
// beyond the rules of kernelDisplaced: prepare_emulation has no emulation for
// indirect branches through memory, far branches, iret, and 0F 01 C0 to C7, and the
// slot has no room for 15 bytes and an int3.
func kernelProbeable(i *x86.Inst) bool {
	switch c := i.Class(); {
	case i.Len == x86.MaxLen:
		return false
	case c == x86.ClassCallInd, c == x86.ClassJumpInd:
		return i.Mod() == 3
	case c == x86.ClassFar: // far returns are treated as near ones
		return i.Opcode != 0xff
	case c == x86.ClassIRet:
		return false
	}
	return i.Enc != x86.Legacy || i.Map != x86.Map0F || i.Opcode != 0x01 || i.ModRM&0xf8 != 0xc0
}

// kernelDisplaced applies the kernel's rules for one displaced instruction.
func kernelDisplaced(i *Inst) *Refusal {
	if i.Class() == x86.ClassLoadSS {
		return refuse(ReasonMasksExceptions, i.Off, "")
	}
	if i.KernelBoostable() {
		return nil
	}
	switch i.Class() {
	case x86.ClassCall, x86.ClassCallInd:
		return refuse(ReasonCallInRegion, i.Off, "")
	case x86.ClassJump, x86.ClassCondJump, x86.ClassLoop:
		return refuse(ReasonBranchInRegion, i.Off, "")
	case x86.ClassInterrupt, x86.ClassUndefined:
		return trap(i)
	}
	if i.IsEndbr() {
		return refuse(ReasonEndbrInRegion, i.Off, "")
	}
	return refuse(ReasonNotBoostable, i.Off, "")
}

// kernelTarget returns the jump target of the instruction as seen by Linux 6.12
// (can_optimize and insn_jump_into_range): jmp, jcc, loop and jrcxz, but not call.
// Linux keeps the opcode of a VEX or EVEX instruction in the same field as one-byte
// opcodes, so it takes vzeroupper for a "ja" to the next instruction; so does this.
func kernelTarget(i *x86.Inst, addr uint64) (uint64, bool) {
	switch op := i.Opcode; {
	case i.Enc == x86.Legacy && i.Map == x86.Map0F:
		if op&0xf0 != 0x80 {
			return 0, false
		}
	case i.Enc == x86.Legacy && i.Map != x86.Map0:
		return 0, false
	case op >= 0xe0 && op <= 0xe3, op == 0xe9, op == 0xeb, op&0xf0 == 0x70:
	default:
		return 0, false
	}
	return addr + uint64(i.Len) + uint64(i.Imm), true
}
