package flow

import (
	"fmt"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// Rule is a set of rules for what may be displaced.
type Rule uint8

// The rules.
const (
	// Kernel: exactly those of Linux 6.12 on x86-64, of a kernel built without
	// RETPOLINE and IBT (arch/x86/kernel/kprobes/opt.c: can_optimize,
	// copy_optimized_instructions).
	Kernel Rule = iota
	// KernelThunks: of a kernel built with RETPOLINE or IBT: there indirect
	// jumps are no obstacle.
	KernelThunks
	// Ours: what a detour can do when its displacement holds an int3 at each
	// old instruction boundary.
	Ours
	// OursCalls: Ours, and the last instruction may be a direct call, which
	// Region.AppendCopy turns into a push of the original return address and a
	// jump. Not for guests with shadow stacks (CR4.CET): the return would not
	// match.
	OursCalls
)

var ruleNames = [...]string{"kernel", "kernel_thunks", "ours", "ours_calls"}

// String returns the rule's name.
func (r Rule) String() string {
	if int(r) < len(ruleNames) {
		return ruleNames[r]
	}
	return "invalid"
}

// maxRegion is the most bytes of a region: 4, and one instruction more.
const maxRegion = insn.JmpLen - 1 + insn.MaxLen

// Region is what a jump at Addr displaces: whole instructions, the first 5
// bytes of which it overwrites.
type Region struct {
	Addr uint64 // of the first byte
	Off  int    // from the function's first byte
	Len  int    // bytes, 5 to 19; the detour goes back to Addr+Len
	// Insts are the displaced instructions, in order. By our rules int3 padding
	// may be among them.
	Insts []insn.Inst
	// Boundaries are the offsets from the region's first byte, 1 to 4 and
	// ascending, at which one of them begins: where the jump's displacement must
	// hold an int3 (Ours), because a context may stand there or an unforeseen jump
	// may go there. Padding behind an instruction that does not go on is not among
	// them: nothing ever runs it.
	Boundaries []int
	// Call: the last instruction is a direct call (OursCalls).
	Call bool
}

// Region decides whether the instruction at off can be the first one of a
// region by the rules r.
//
// What it cannot know is left to the caller: whether the function may be probed
// at all, other probes and post handlers on the site or in the region, and
// whether a detour is within reach.
func (f *Func) Region(off int, r Rule) (Region, *Refusal) {
	if f.size > MaxCode {
		return Region{}, refuse(ReasonFunctionTooLong, -1, fmt.Sprintf("%d bytes, more than %d", f.size, MaxCode))
	}
	k, ok := f.Index(off)
	if !ok {
		if f.badErr != nil && off >= f.bad && off < f.size {
			return Region{}, f.undecodable()
		}
		return Region{}, refuse(ReasonNotBoundary, off, "")
	}
	if f.size-off < insn.JmpLen {
		return Region{}, refuse(ReasonFunctionTooShort, off, fmt.Sprintf("%d bytes up to the next symbol", f.size-off))
	}
	kernel := r <= KernelThunks
	if kernel {
		if !kernelProbeable(&f.insts[k].Inst) {
			return Region{}, refuse(ReasonNotProbeable, off, "")
		}
		if no := f.kernelFunction(off, r); no != nil {
			return Region{}, no
		}
	}
	reg := Region{Addr: f.in.Addr + uint64(off), Off: off}
	reached := true // the instruction can be reached by falling into it, or otherwise
	for ; reg.Len < insn.JmpLen; k++ {
		if k == len(f.insts) {
			if f.badErr != nil {
				return Region{}, f.undecodable()
			}
			return Region{}, refuse(ReasonFunctionTooShort, off, "the region's last instruction reaches into the next symbol")
		}
		i := &f.insts[k]
		// First, since then the bytes are not those that run.
		if what := f.patched(i); what != "" {
			return Region{}, refuse(ReasonPatchedSite, i.Off, what)
		}
		padding := !kernel && !reached && i.Len == 1 && isInt3(&i.Inst)
		if !padding {
			no := (*Refusal)(nil)
			if kernel {
				no = kernelDisplaced(i)
			} else {
				no = f.displaced(i, r)
			}
			if no != nil {
				return Region{}, no
			}
			reached = true
		}
		if reg.Len > 0 && !padding {
			reg.Boundaries = append(reg.Boundaries, reg.Len)
		}
		reg.Insts = append(reg.Insts, i.Inst)
		reg.Len += int(i.Len)
		reg.Call = i.Class() == insn.ClassCall
		if reg.Call && reg.Len < insn.JmpLen {
			return Region{}, refuse(ReasonCallInRegion, i.Off, "it would return into the region")
		}
		if !i.Falls() {
			reached = false
		}
	}
	if !kernel {
		if no := f.surroundings(&reg, k); no != nil {
			return Region{}, no
		}
	}
	return reg, nil
}

// patched returns what the guest rewrites the instruction for, or "".
func (f *Func) patched(i *Inst) string {
	if f.in.Patched == nil {
		return ""
	}
	at := f.in.Addr + uint64(i.Off)
	return f.in.Patched(at, at+uint64(i.Len))
}

// undecodable is the refusal for the place where decoding ended.
func (f *Func) undecodable() *Refusal {
	return refuse(ReasonUndecodable, f.bad, f.badErr.Error())
}

// kernelFunction applies those of the kernel's rules that look at the whole
// function, except for the length.
func (f *Func) kernelFunction(off int, r Rule) *Refusal {
	addr := f.in.Addr + uint64(off)
	switch {
	case f.exception >= 0:
		return refuse(ReasonExceptionEntry, f.exception, "in the function")
	case f.badErr != nil:
		return f.undecodable()
	case r == Kernel && f.farJump >= 0:
		return refuse(ReasonIndirectJump, f.farJump, "far")
	case r == Kernel && len(f.indirect) > 0:
		return refuse(ReasonIndirectJump, f.indirect[0].Off, "")
	}
	// Up to and including +5, one byte more than the jump takes.
	if b, ok := into(f.kernel, addr+1, addr+insn.JmpLen+1); ok {
		return refuse(ReasonJumpIntoRegion, b.from, fmt.Sprintf("to +%#x", b.to-f.in.Addr))
	}
	return nil
}

// kernelProbeable reports whether Linux 6.12 takes a kprobe on the instruction,
// as far as that is not said by kernelDisplaced too: prepare_emulation has no
// emulation for indirect branches through memory, far branches, iret, and 0F 01
// C0 to C7, and the slot has no room for 15 bytes and an int3.
func kernelProbeable(i *insn.Inst) bool {
	switch c := i.Class(); {
	case i.Len == insn.MaxLen:
		return false
	case c == insn.ClassCallInd, c == insn.ClassJumpInd:
		return i.Mod() == 3
	case c == insn.ClassFar: // far returns are taken for near ones
		return i.Opcode != 0xff
	case c == insn.ClassIRet:
		return false
	}
	return i.Enc != insn.Legacy || i.Map != insn.Map0F || i.Opcode != 0x01 || i.ModRM&0xf8 != 0xc0
}

// kernelDisplaced applies the kernel's rules for one displaced instruction.
func kernelDisplaced(i *Inst) *Refusal {
	if i.Class() == insn.ClassLoadSS {
		return refuse(ReasonMasksExceptions, i.Off, "")
	}
	if i.KernelBoostable() {
		return nil
	}
	switch i.Class() {
	case insn.ClassCall, insn.ClassCallInd:
		return refuse(ReasonCallInRegion, i.Off, "")
	case insn.ClassJump, insn.ClassCondJump, insn.ClassLoop:
		return refuse(ReasonBranchInRegion, i.Off, "")
	case insn.ClassInterrupt, insn.ClassUndefined:
		return trap(i)
	}
	if i.IsEndbr() {
		return refuse(ReasonEndbrInRegion, i.Off, "")
	}
	return refuse(ReasonNotBoostable, i.Off, "")
}

func trap(i *Inst) *Refusal {
	if isInt3(&i.Inst) {
		return refuse(ReasonInt3InRegion, i.Off, "")
	}
	return refuse(ReasonTrapInRegion, i.Off, "")
}

// displaced applies our rules for one displaced instruction: its copy in the
// detour, between other copies, must do exactly what it does in its place, and
// must not show where it ran.
func (f *Func) displaced(i *Inst, r Rule) *Refusal {
	if f.in.Exception != nil && f.in.Exception(f.in.Addr+uint64(i.Off)) {
		return refuse(ReasonExceptionEntry, i.Off, "")
	}
	if i.VendorDependent() {
		return refuse(ReasonNotMovable, i.Off, "16-bit near branch")
	}
	switch c := i.Class(); c {
	case insn.ClassCall:
		if r != OursCalls {
			return refuse(ReasonCallInRegion, i.Off, "")
		}
		return lockedBranch(i)
	case insn.ClassCallInd:
		return refuse(ReasonCallInRegion, i.Off, "indirect")
	case insn.ClassJump, insn.ClassCondJump, insn.ClassLoop, insn.ClassRet, insn.ClassJumpInd, insn.ClassInterruptFlag:
		return lockedBranch(i)
	case insn.ClassFar, insn.ClassIRet, insn.ClassTransfer, insn.ClassTransaction:
		return refuse(ReasonNotMovable, i.Off, c.String())
	case insn.ClassInterrupt, insn.ClassUndefined:
		return trap(i)
	case insn.ClassLoadSS:
		return refuse(ReasonMasksExceptions, i.Off, "")
	case insn.ClassSyscall, insn.ClassVMEntry, insn.ClassWait:
		// syscall leaves its return address in RCX; waits stand there for long,
		// and one behind sti must not lose its place in the shadow.
		return refuse(ReasonNotBoostable, i.Off, c.String())
	}
	if i.IsEndbr() {
		return refuse(ReasonEndbrInRegion, i.Off, "")
	}
	if i.Enc == insn.Legacy && i.Map == insn.Map0 && i.Opcode >= 0xd8 && i.Opcode <= 0xdf {
		// SDM Vol. 1, 8.1.8: fnstenv and fxsave show where it ran.
		return refuse(ReasonNotBoostable, i.Off, "x87 keeps its address")
	}
	return nil
}

// lockedBranch refuses a branch with LOCK: it raises #UD, which would report
// the copy's address (SDM Vol. 2, LOCK).
func lockedBranch(i *Inst) *Refusal {
	if i.Has(insn.PrefixLock) {
		return refuse(ReasonNotMovable, i.Off, "lock prefix")
	}
	return nil
}

// surroundings applies those of our rules that look at what is around the
// region; next is the index of the instruction behind it.
func (f *Func) surroundings(reg *Region, next int) *Refusal {
	lo, hi := reg.Addr+1, reg.Addr+uint64(reg.Len)
	if b, ok := into(f.branches, lo, hi); ok {
		return f.jumpInto(b)
	}
	if f.in.Targets != nil {
		for _, t := range f.in.Targets(lo, hi) {
			if t >= lo && t < hi {
				return f.jumpInto(branch{t, -1})
			}
		}
	}
	first := next - len(reg.Insts)
	if first > 0 && f.insts[first-1].Class() == insn.ClassLoadSS {
		// The jump would run in its shadow instead of the instruction that sets RSP.
		return refuse(ReasonMasksExceptions, f.insts[first-1].Off, "right before the region")
	}
	last := &f.insts[next-1]
	if isSTI(&last.Inst) && next < len(f.insts) {
		// The jump back would run in its shadow (SDM Vol. 2, STI), and the
		// interrupt would come before the wait for it.
		switch c := f.insts[next].Class(); c {
		case insn.ClassWait, insn.ClassTransfer, insn.ClassVMEntry, insn.ClassIRet:
			return refuse(ReasonInterruptShadow, last.Off, c.String()+" follows")
		}
	}
	return nil
}

// jumpInto is the refusal for a known jump into the region: it would trap on
// every pass.
func (f *Func) jumpInto(b branch) *Refusal {
	detail := fmt.Sprintf("to +%#x", b.to-f.in.Addr)
	if _, ok := f.Index(int(b.to - f.in.Addr)); !ok {
		detail += ", inside an instruction"
	}
	if b.from < 0 {
		detail += ", from elsewhere"
	}
	return refuse(ReasonJumpIntoRegion, b.from, detail)
}

func isInt3(i *insn.Inst) bool { return i.Class() == insn.ClassInterrupt && i.Opcode == 0xcc }

func isSTI(i *insn.Inst) bool {
	return i.Class() == insn.ClassInterruptFlag && i.Opcode == 0xfb
}
