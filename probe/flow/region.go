package flow

import (
	"fmt"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Rule is a set of rules about the instructions that may be displaced.
type Rule uint8

// The rules.
const (
	// Kernel: the rules of Linux 6.12 on x86-64, for a kernel built without RETPOLINE
	// and IBT (arch/x86/kernel/kprobes/opt.c: can_optimize,
	// copy_optimized_instructions).
	Kernel Rule = iota
	// KernelThunks: the same for a kernel built with RETPOLINE or IBT, where indirect
	// jumps are no obstacle.
	KernelThunks
	// Ours: the capabilities of a detour whose displacement holds an int3 at each old
	// instruction boundary, on a host where all code that runs there is known.
	Ours
	// OursCalls: Ours, and the last instruction may be a direct call, which
	// Region.AppendCopy turns into a push of the original return address and a jump.
	// Not for guests with shadow stacks (CR4.CET): the return would not match.
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

// MaxRegion is the most bytes of a region: 4, and one instruction more.
const MaxRegion = x86.JmpLen - 1 + x86.MaxLen

// Region is the set of instructions that a jump at Addr displaces: whole
// instructions, the first 5 bytes of which it overwrites.
type Region struct {
	Addr uint64 // of the first byte
	Off  int    // from the function's first byte
	Len  int    // bytes, 5 to 19; the detour returns to Addr+Len
	// Insts are the displaced instructions, in order. By our rules they may include
	// padding, after an instruction that does not fall through.
	Insts []x86.Inst
	// Boundaries are the offsets from the region's first byte, 1 to 4 and ascending,
	// at which one of them begins, padding included. There the jump's displacement
	// must hold an int3 (Ours), because a context may be there or an unforeseen jump
	// may lead there.
	Boundaries []int
	// Call: the last instruction is a direct call (OursCalls).
	Call bool
}

// add appends an instruction.
func (r *Region) add(i *x86.Inst) {
	if r.Len > 0 && r.Len < x86.JmpLen {
		r.Boundaries = append(r.Boundaries, r.Len)
	}
	r.Insts = append(r.Insts, *i)
	r.Len += int(i.Len)
}

// Region decides whether the instruction at off can be the first one of a
// region by the rules r.
//
// The caller must check the rest: whether the function may be probed at all, other
// probes and post handlers on the site or in the region, and whether a detour is
// within reach.
func (f *Func) Region(off int, r Rule) (Region, *Refusal) {
	switch {
	case f.size > MaxCode:
		return Region{}, refuse(ReasonFunctionTooLong, -1, fmt.Sprintf("%d bytes, more than %d", f.size, MaxCode))
	case r <= KernelThunks:
		return f.kernelRegion(off, r)
	}
	k, ok := f.Index(off)
	switch {
	case off < 0 || off >= f.size:
		return Region{}, refuse(ReasonNotBoundary, off, "")
	case !ok:
		return Region{}, f.refuseNoInstruction(off)
	case f.size-off < x86.JmpLen:
		return Region{}, f.refuseTooShort(off)
	case !f.insts[k].Reached:
		return Region{}, f.refuseUnreached(off)
	}
	reg := Region{Addr: f.in.Addr + uint64(off), Off: off}
	for reg.Len < x86.JmpLen {
		i := &f.insts[k]
		// First, because then the bytes are not the ones that run.
		if what := f.patchedReason(i); what != "" {
			return Region{}, refuse(ReasonPatchedSite, i.Off, what)
		}
		if no := f.checkDisplaced(i, r); no != nil {
			return Region{}, no
		}
		reg.add(&i.Inst)
		reg.Call = i.Class() == x86.ClassCall
		switch {
		case reg.Len >= x86.JmpLen:
		case reg.Call:
			return Region{}, refuse(ReasonCallInRegion, i.Off, "it would return into the region")
		case !i.Falls():
			if no := f.addPadding(&reg); no != nil {
				return Region{}, no
			}
		default:
			if k, ok = f.Index(i.end()); !ok {
				return Region{}, f.refuseNoInstruction(i.end())
			}
		}
	}
	if no := f.checkSurroundings(&reg); no != nil {
		return Region{}, no
	}
	return reg, nil
}

// refuseTooShort is the refusal for a site at the function's end.
func (f *Func) refuseTooShort(off int) *Refusal {
	return refuse(ReasonFunctionTooShort, off, fmt.Sprintf("%d bytes up to the next symbol", f.size-off))
}

// refuseNoInstruction is the refusal for a place where no instruction begins.
func (f *Func) refuseNoInstruction(off int) *Refusal {
	switch {
	case off >= f.size:
		return refuse(ReasonFunctionTooShort, off, "the region's last instruction reaches into the next symbol")
	case f.insideReached(off):
		return refuse(ReasonNotBoundary, off, "")
	}
	if _, err := x86.Decode(f.in.Code[off:]); err != nil {
		return refuse(ReasonUndecodable, off, err.Error())
	}
	return refuse(ReasonNotBoundary, off, "")
}

// refuseUnreached is the refusal for bytes that no known path reaches.
func (f *Func) refuseUnreached(off int) *Refusal {
	k, _ := f.Index(off)
	if what := f.Data(off, int(f.insts[k].Len)); what != "" {
		return refuse(ReasonData, off, what)
	}
	return refuse(ReasonUnreached, off, "")
}

// addPadding adds the padding after the region, up to the jump's length. The bytes
// are padding only if all of them are, up to the next symbol or the place where a
// known path continues, and nothing refers to them.
func (f *Func) addPadding(reg *Region) *Refusal {
	start := reg.Off + reg.Len
	end := start
	for end < f.size {
		if f.reachedAt(end) {
			if reg.Len < x86.JmpLen {
				at := f.in.Addr + uint64(end)
				b, ok := firstInto(f.branches, at, at+1)
				if !ok {
					b = branch{at, -1}
				}
				return f.jumpInto(b)
			}
			break
		}
		i, err := x86.Decode(f.in.Code[end:])
		if err != nil || !isPadding(&i) || f.insideReached(end) {
			return refuse(ReasonNotPadding, end, "")
		}
		if what := f.patchedReason(&Inst{Off: end, Inst: i}); what != "" && reg.Len < x86.JmpLen {
			return refuse(ReasonPatchedSite, end, what)
		}
		if reg.Len < x86.JmpLen {
			reg.add(&i)
		}
		end += int(i.Len)
	}
	switch lo := f.in.Addr + uint64(start); {
	case reg.Len < x86.JmpLen:
		return f.refuseTooShort(reg.Off)
	case end >= f.size && f.in.Open:
		return refuse(ReasonNotPadding, end, "what follows is not known")
	case f.referred(lo, f.in.Addr+uint64(end)):
		return refuse(ReasonData, start, "something refers to it")
	}
	return nil
}

// reachedAt reports whether a reached instruction begins at off.
func (f *Func) reachedAt(off int) bool {
	k, ok := f.Index(off)
	return ok && f.insts[k].Reached
}

// isPadding reports whether i is one of the instructions that assemblers and
// linkers fill gaps with: int3, and nops of any length.
func isPadding(i *x86.Inst) bool {
	switch {
	case isInt3(i):
		return i.Len == 1
	case i.Class() != x86.ClassNop || i.Enc != x86.Legacy:
		return false
	case i.Map == x86.Map0:
		return !i.Has(x86.PrefixRep) // that would make it pause
	}
	return i.Opcode == 0x1f && i.Reg() == 0
}

// patchedReason returns why the guest rewrites the instruction, or "".
func (f *Func) patchedReason(i *Inst) string {
	if f.in.Patched == nil {
		return ""
	}
	at := f.in.Addr + uint64(i.Off)
	return f.in.Patched(at, at+uint64(i.Len))
}

func trap(i *Inst) *Refusal {
	if isInt3(&i.Inst) {
		return refuse(ReasonInt3InRegion, i.Off, "")
	}
	return refuse(ReasonTrapInRegion, i.Off, "")
}

// checkDisplaced applies our rules for one displaced instruction: its copy in the
// detour, between other copies, must have exactly the same effect as in its place,
// and must not reveal where it ran.
func (f *Func) checkDisplaced(i *Inst, r Rule) *Refusal {
	if f.in.Exception != nil && f.in.Exception(f.in.Addr+uint64(i.Off)) {
		return refuse(ReasonExceptionEntry, i.Off, "")
	}
	if i.VendorDependent() {
		return refuse(ReasonNotMovable, i.Off, "16-bit near branch")
	}
	switch c := i.Class(); c {
	case x86.ClassCall:
		if r != OursCalls {
			return refuse(ReasonCallInRegion, i.Off, "")
		}
		return lockedBranch(i)
	case x86.ClassCallInd:
		return refuse(ReasonCallInRegion, i.Off, "indirect")
	case x86.ClassJump, x86.ClassCondJump, x86.ClassLoop, x86.ClassRet, x86.ClassJumpInd, x86.ClassInterruptFlag:
		return lockedBranch(i)
	case x86.ClassFar, x86.ClassIRet, x86.ClassTransfer, x86.ClassTransaction:
		return refuse(ReasonNotMovable, i.Off, c.String())
	case x86.ClassInterrupt, x86.ClassUndefined:
		return trap(i)
	case x86.ClassLoadSS:
		return refuse(ReasonMasksExceptions, i.Off, "")
	case x86.ClassSyscall, x86.ClassVMEntry, x86.ClassWait:
		// syscall leaves its return address in RCX; a wait can stay there for long,
		// and one after sti must not lose its place in the shadow.
		return refuse(ReasonNotBoostable, i.Off, c.String())
	}
	if i.IsEndbr() {
		return refuse(ReasonEndbrInRegion, i.Off, "")
	}
	if i.Enc == x86.Legacy && i.Map == x86.Map0 && i.Opcode >= 0xd8 && i.Opcode <= 0xdf {
		// SDM Vol. 1, 8.1.8: fnstenv and fxsave show where it ran.
		return refuse(ReasonNotBoostable, i.Off, "x87 keeps its address")
	}
	return nil
}

// lockedBranch rejects a branch with LOCK: it raises #UD, which would report the
// copy's address (SDM Vol. 2, LOCK).
func lockedBranch(i *Inst) *Refusal {
	if i.Has(x86.PrefixLock) {
		return refuse(ReasonNotMovable, i.Off, "lock prefix")
	}
	return nil
}

// checkSurroundings applies our rules about the code around the region.
func (f *Func) checkSurroundings(reg *Region) *Refusal {
	// A jump to a computed place may lead into an instruction, and so execute bytes
	// of ours.
	if f.lost >= 0 {
		return refuse(ReasonIndirectJump, f.lost, "where it leads is not known")
	}
	lo, hi := reg.Addr+1, reg.Addr+uint64(reg.Len)
	if b, ok := firstInto(f.branches, lo, hi); ok {
		return f.jumpInto(b)
	}
	if f.in.Known != nil {
		if !f.in.Known().Complete() {
			return refuse(ReasonJumpIntoRegion, -1, "the image has more branches than can be looked at")
		}
		if t := f.in.Known().Targets(lo, hi); len(t) != 0 {
			return f.jumpInto(branch{t[0], -1})
		}
	}
	if no := f.checkOverlap(reg); no != nil {
		return no
	}
	if f.in.Object != nil {
		at := reg.Addr
		for k := range reg.Insts {
			next := at + uint64(reg.Insts[k].Len)
			if what := f.in.Object(at, next); what != "" {
				return refuse(ReasonData, int(at-f.in.Addr), what)
			}
			at = next
		}
	}
	if f.referred(lo, hi) {
		return refuse(ReasonData, reg.Off, "something refers to it")
	}
	k, found := f.Index(reg.Off + reg.Len)
	if last := &reg.Insts[len(reg.Insts)-1]; isSTI(last) && found {
		// The jump back would run in its shadow (SDM Vol. 2, STI), and the
		// interrupt would come before the wait for it.
		switch c := f.insts[k].Class(); c {
		case x86.ClassWait, x86.ClassTransfer, x86.ClassVMEntry, x86.ClassIRet:
			return refuse(ReasonInterruptShadow, reg.Off+reg.Len-int(last.Len), c.String()+" follows")
		}
	}
	return nil
}

// checkOverlap checks the instructions before the region: one that is the other half
// of overlapping code may reach into it, and mov ss right before it would cover the
// jump instead of the instruction that sets RSP.
func (f *Func) checkOverlap(reg *Region) *Refusal {
	k, _ := f.Index(reg.Off)
	for k--; k >= 0 && f.insts[k].Off > reg.Off-x86.MaxLen; k-- {
		switch i := &f.insts[k]; {
		case i.Reached && i.end() > reg.Off:
			return refuse(ReasonOverlap, i.Off, "")
		case i.end() == reg.Off && i.Class() == x86.ClassLoadSS:
			return refuse(ReasonMasksExceptions, i.Off, "right before the region")
		}
	}
	return nil
}

// jumpInto is the refusal for a known jump into the region, which would trap each
// time.
func (f *Func) jumpInto(b branch) *Refusal {
	detail := fmt.Sprintf("to +%#x", b.to-f.in.Addr)
	if f.insideReached(int(b.to - f.in.Addr)) {
		detail += ", inside an instruction"
	}
	if b.from < 0 {
		detail += ", from elsewhere"
	}
	return refuse(ReasonJumpIntoRegion, b.from, detail)
}

func isInt3(i *x86.Inst) bool { return i.Class() == x86.ClassInterrupt && i.Opcode == 0xcc }

func isSTI(i *x86.Inst) bool {
	return i.Class() == x86.ClassInterruptFlag && i.Opcode == 0xfb
}
