package probe

import (
	"errors"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// redZone is the number of bytes that code of CPL3 uses below RSP (System V ABI,
// 3.2.2).
const redZone = 128

// exitStage emits the handler stage that is one exit to the host, with the vCPU's
// registers as at the hit.
func (o *optimizer) exitStage(user bool) stageBuilder {
	return func(guest.GVA, []*Stage) (stageBody, error) {
		var a x86.Asm
		o.emitExit(&a, user)
		return stageBody{code: a.Code()}, nil
	}
}

// emitExit emits the instruction that exits to the host.
func (o *optimizer) emitExit(a *x86.Asm, user bool) {
	if port := o.can[guest.Level(user)].DetourPort; port != 0 {
		a.Out(port)
	} else {
		a.Int3()
	}
}

// After the context: the flags, or the vCPU's number, while stages run.
const (
	scratchFlags = x86.PtRegsSize
	scratchCPU   = x86.PtRegsSize + 8
	frameSize    = x86.PtRegsSize + 16
)

// stageCode emits the handler stages of a site that is reported at ip, for code of that privilege. Where
// hits enter:
//
//	lea, push, lea, mov       CPL3: both ends of the stack that is needed are written to
//	lea -frame(%rsp), %rsp    with the red zone at CPL3
//	flags are kept: by lahf and seto at CPL3, by pushfq at CPL0, and there cli,
//	so that the stage is not preempted
//	registers that are used or read are saved
//	for each stage: vCPU number from the stack's profile, block, call
//	everything is restored
//
// The stages' code precedes it. If the profile does not identify the vCPU no stage
// runs, and their Lost are counted. Every processor with hardware virtualization has
// lahf and sahf, and they take a fifth of the time of popfq.
//
// At CPL3 the stack may end right below the interrupted RSP, or not be aligned where
// alignment is checked. So the first step is to write to the lowest and to the
// highest word that will be used, which are in one page or in two neighboring ones:
// if one faults, only RSP has changed, and the hit takes an exit instead (stack).
// Afterwards no access to the stack can fault, unless the guest unmaps the page in
// between.
func (o *optimizer) stageCode(ip guest.GVA, user bool) stageBuilder {
	const rax, rsi, rdi, rsp = x86.RAX, x86.RSI, x86.RDI, x86.RSP
	prof, _ := o.placer.Profile(user)
	return func(at guest.GVA, stages []*Stage) (stageBody, error) {
		a := x86.NewAsm(uint64(at))
		c := newStageFrame(stages, user, &prof)
		w, first := o.walks.Load(), uint32(0)
		if c.walk > 0 {
			var err error
			if first, err = o.firstRule(ip); err != nil || w == nil {
				return stageBody{}, errors.Join(err, errNoWalks)
			}
		}
		c.note(a, stance{inside: true}, neither)
		var placed []placedStage
		var calls []x86.Label
		for _, x := range stages {
			a.Align(detourAlign)
			calls = append(calls, a.LabelHere())
			placed = append(placed, placedStage{x.Code, x.Fixups, guest.GVA(a.PC())})
			a.Append(x.Code)
		}
		walk := a.NewLabel()
		if c.walk > 0 {
			a.Align(detourAlign)
			a.Place(walk)
			c.walkCode(a, w, &prof, ip, first)
		}
		lost, done := a.LabelHere(), a.NewLabel()
		c.note(a, c.deepestStance(), neither)
		for _, x := range stages {
			if x.Lost != 0 {
				a.Mov(8, rax, x86.Imm(x.Lost))
				a.Lock().Inc(8, x86.At(rax, 0))
			}
		}
		a.Jmp(done)
		a.Align(detourAlign)

		checked := a.LabelHere() // here no stage may run: undo, and exit to the host
		exit, undone := 0, a.Len()
		if c.checks || c.faults != nil || c.walk > 0 {
			c.leave(a, again)
			exit = a.Len()
			o.emitExit(a, user)
		}
		a.Align(detourAlign)
		entry := a.Len()
		touches := c.touch(a)
		c.enter(a, uint64(ip)+1)
		if c.checks {
			a.Test(4, x86.At(rsp, x86.PtFlags), x86.Imm(x86.FlagAC))
			a.Jcc(x86.CondNE, checked)
		}
		c.checkStack(a, checked)
		loads := vcpuNumber(a, &prof, len(o.cpus), lost)
		if len(stages) > 1 || c.walk > 0 {
			a.Mov(8, x86.At(rsp, scratchCPU), rax) // for the next stage: the stack's information may change
		}
		if c.walk > 0 {
			a.Call(walk)
			c.note(a, c.deepestStance(), neither)
			a.Test(4, rax, rax)
			a.Jcc(x86.CondNE, checked)
		}
		c.beginLoads(a)
		for i, x := range stages {
			if i > 0 || c.walk > 0 {
				a.Mov(8, rax, x86.At(rsp, scratchCPU))
			}
			a.ImulImm(8, rsi, rax, x86.Imm(x.Stride))
			a.Mov(8, rdi, x86.Imm(x.Block))
			a.Add(8, rsi, rdi)
			a.Mov(8, rdi, rsp)
			a.Call(calls[i])
			c.note(a, c.deepestStance(), neither)
		}
		c.endLoads(a)
		if c.walk > 0 {
			c.endWalk(a, w)
		}
		a.Place(done)
		ended := a.Len()
		c.leave(a, over)
		for _, load := range loads {
			placed = append(placed, placedStage{fixups: []Fixup{{Fault: 0, Resume: a.Offset(lost) - load}}, at: at + guest.GVA(load)})
		}
		return stageBody{code: a.Code(), entry: entry, exit: exit, placed: placed, touches: touches, stances: slices.Clone(c.stances), ended: ended, undone: undone}, nil
	}
}

// vcpuNumber emits RAX = number of the vCPU, from the interrupted RSP in RAX or from
// the kernel's memory of the vCPU, and jumps to lost if the number is not below cpus.
// RSI changes. It returns the offsets of the loads that may fault.
func vcpuNumber(a *x86.Asm, p *guest.Profile, cpus int, lost x86.Label) (loads []int) {
	const rax, rsi = x86.RAX, x86.RSI
	if p.GS {
		a.Mov(4, rax, x86.AtGS(int(p.CPUOff)))
	} else {
		a.And(8, rax, x86.Imm(int32(p.StackMask)))
		a.Mov(8, rsi, x86.Imm(p.StackMagic))
		magic := a.Len()
		a.Cmp(8, rsi, x86.At(rax, int(p.MagicOff)))
		a.Jcc(x86.CondNE, lost)
		loads = []int{magic, a.Len()}
		a.Mov(4, rax, x86.At(rax, int(p.CPUOff)))
	}
	a.Cmp(4, rax, x86.Imm(cpus))
	a.Jcc(x86.CondAE, lost)
	return loads
}

// stageFrame describes the data of a detour's stages on the interrupted stack.
type stageFrame struct {
	user   bool
	push   bool   // flags are kept by pushfq
	clear  bool   // DF must be cleared
	checks bool   // AC must be clear
	reads  uint32 // of all stages
	size   int
	more   int // bytes that the context has after struct pt_regs
	deep   int // how far below RSP the stages go
	walk   int // the largest Stage.Walk

	faults  *guest.FaultProfile // stages load from memory that may not be there, and the kernel handles their faults
	taskOff int32               // guest.Profile.TaskOff

	kept    keptRegs // the final contents of the context
	pushed  int      // bytes that were on the stack before
	stances stances
}

// Additional states of a stance.
const (
	neither = iota
	again   // nothing has been done
	over    // everything has
)

// note records the stance from here on.
func (c *stageFrame) note(a *x86.Asm, s stance, what int) {
	s.below += c.pushed
	s.again, s.done = what == again, what == over
	c.stances.note(a, s)
}

// deepestStance is the stance between enter and leave.
func (c *stageFrame) deepestStance() stance {
	if c.push {
		return stance{below: c.size, kept: c.kept, flags: flagsWord, flagsAt: x86.PtFlags}
	}
	return stance{below: c.size, kept: c.kept, flags: flagsByte, flagsAt: scratchFlags + c.more}
}

func newStageFrame(stages []*Stage, user bool, prof *guest.Profile) stageFrame {
	c := stageFrame{user: user, push: !user, size: frameSize, kept: keptScrap, taskOff: prof.TaskOff}
	if user {
		c.size += redZone
	}
	for _, x := range stages {
		if len(x.Fixups) != 0 && !user {
			c.faults = prof.Faults
		}
		c.reads |= x.Reads
		c.clear = c.clear || !x.NoStrings
		c.checks = c.checks || user && !x.Aligned
		c.deep = max(c.deep, x.Stack+8)
		c.walk = max(c.walk, x.Walk)
	}
	c.deep += c.size
	c.push = c.push || c.clear
	if c.checks {
		c.reads |= 1 << (x86.PtFlags / 8)
	}
	return c
}

// How a stage loads from memory that may not be there
//
// In a kernel that handles the faults of stages itself (guest.FaultProfile), such a
// fault is an exception on the interrupted stack, with interrupts off. The kernel must
// not wait for the memory, and finds the load in no table of its own; the owner of the
// stage probes the function that would look, and changes the RIP there. So the detour
// first makes sure that an exception does no harm here, and tells the kernel that the
// task must not wait.

// exceptionStacks are the bits of RSP, from exceptionShift on, of the stacks of the
// interrupt stack table, and of nothing else that kernel code runs on:
// CPU_ENTRY_AREA_PGD (arch/x86/include/asm/pgtable_64_types.h), with 4 and 5 levels of
// page tables. The handlers of #DB and #MC there may have interrupted that of #PF
// before it has read CR2.
const (
	exceptionStacks = -4
	exceptionShift  = 39
)

// faultRoom is how much of a task's stack must be left for stages that may fault, in
// bytes: their own, and what the kernel uses for the exception (680 bytes were seen).
const faultRoom = 4096

// stac sets RFLAGS.AC (SDM Vol. 2, STAC).
const stac = "\x0f\x01\xcb"

// checkStack emits: if a fault would be dangerous here, to no. RAX is the interrupted
// RSP, and keeps its value; RSI and RDI change.
func (c *stageFrame) checkStack(a *x86.Asm, no x86.Label) {
	const rax, rsi, rdi = x86.RAX, x86.RSI, x86.RDI
	f := c.faults
	if f == nil {
		return
	}
	a.Mov(8, rsi, rax)
	a.Sar(8, rsi, x86.Imm(exceptionShift))
	a.Cmp(8, rsi, x86.Imm(exceptionStacks))
	a.Jcc(x86.CondE, no)
	a.Mov(8, rdi, x86.AtGS(int(c.taskOff)))
	a.Mov(8, rsi, rax)
	a.Sub(8, rsi, x86.At(rdi, int(f.StackOff)))
	a.Cmp(8, rsi, x86.Imm(faultRoom)) // beyond that: stacks of interrupts, too
	a.Jcc(x86.CondB, no)
	if f.SignalMask != 0 {
		a.Test(1, x86.At(rdi, int(f.SignalOff)), x86.Imm(int8(f.SignalMask)))
		a.Jcc(x86.CondNE, no)
	}
}

// beginLoads emits: from here on the stages may load from memory that may not be
// there. RDI changes.
func (c *stageFrame) beginLoads(a *x86.Asm) {
	if f := c.faults; f != nil {
		a.Mov(8, x86.RDI, x86.AtGS(int(c.taskOff)))
		a.Inc(4, x86.At(x86.RDI, int(f.CountOff)))
		c.note(a, c.deepestStance(), neither)
		if f.SMAP {
			a.Append([]byte(stac)) // the interrupted code's flags will be restored
		}
	}
}

// endLoads emits: the stages have ended. RAX changes.
func (c *stageFrame) endLoads(a *x86.Asm) {
	if f := c.faults; f != nil {
		a.Mov(8, x86.RAX, x86.AtGS(int(c.taskOff)))
		a.Dec(4, x86.At(x86.RAX, int(f.CountOff)))
	}
}

// asked reports whether a stage may read the field at off.
func (c *stageFrame) asked(off int) bool { return c.reads>>(off/8)&1 != 0 }

// touch is an instruction that writes to the interrupted stack before anything except
// RSP has changed: at that offset of the code, with RSP that far below.
type touch struct{ off, below int }

// touch writes, at CPL3, to both ends of the stack memory that the stages need, and
// leaves RSP unchanged.
func (c *stageFrame) touch(a *x86.Asm) []touch {
	const rax, rsp = x86.RAX, x86.RSP
	c.note(a, stance{}, again)
	if !c.user {
		return nil // a kernel's stack has room for an interrupt anywhere
	}
	a.Lea(8, rsp, x86.At(rsp, 8-c.deep))
	c.note(a, stance{below: c.deep - 8}, again)
	low := touch{a.Len(), c.deep - 8}
	a.Push(rax)
	c.note(a, stance{below: c.deep}, again)
	a.Lea(8, rsp, x86.At(rsp, c.deep))
	c.note(a, stance{}, again)
	high := touch{a.Len(), 0}
	a.Mov(8, x86.At(rsp, -redZone-8), rax)
	return []touch{low, high}
}

// enter makes room, saves the flags, and fills in the parts of the context that the
// stages read. RSP is then at the context, and RAX the interrupted RSP.
func (c *stageFrame) enter(a *x86.Asm, ip uint64) {
	const rax, rsi, rsp = x86.RAX, x86.RSI, x86.RSP
	now := stance{below: c.size}
	if c.push {
		a.Lea(8, rsp, x86.At(rsp, x86.PtFlags+8-c.size))
		c.note(a, stance{below: c.size - x86.PtFlags - 8}, again)
		a.Pushfq()
		c.note(a, stance{below: c.size - x86.PtFlags}, again)
		if !c.user {
			a.Cli()
		}
		if c.clear {
			a.Cld()
		}
		c.note(a, stance{below: c.size - x86.PtFlags, flags: flagsWord}, again)
		a.Lea(8, rsp, x86.At(rsp, -x86.PtFlags))
		now.flags, now.flagsAt = flagsWord, x86.PtFlags
	} else {
		a.Lea(8, rsp, x86.At(rsp, -c.size))
	}
	c.note(a, now, again)
	for _, r := range x86.PtRegs {
		if off := x86.PtReg(r); r == rax || r == rsi || r == x86.RDI || c.asked(off) {
			a.Mov(8, x86.At(rsp, off), r)
		}
	}
	now.kept = c.kept
	c.note(a, now, again)
	if !c.push {
		if c.asked(x86.PtFlags) {
			a.Pushfq()
			c.note(a, stance{below: c.size + 8, kept: c.kept, context: 8}, again)
			a.Pop(x86.At(rsp, x86.PtFlags))
			c.note(a, now, again)
		}
		a.Lahf()
		a.Setcc(x86.CondO, rax)
		a.Mov(8, x86.At(rsp, scratchFlags+c.more), rax)
		c.note(a, c.deepestStance(), again)
	}
	a.Lea(8, rax, x86.At(rsp, c.size))
	if c.asked(x86.PtSP) {
		a.Mov(8, x86.At(rsp, x86.PtSP), rax)
	}
	if c.asked(x86.PtIP) {
		a.Mov(8, rsi, x86.Imm(ip))
		a.Mov(8, x86.At(rsp, x86.PtIP), rsi)
	}
	cs, ss := guest.SelKernelCode, guest.SelKernelData
	if c.user {
		cs, ss = guest.SelUserCode, guest.SelUserData
	}
	for _, f := range []struct{ off, v int }{{x86.PtOrigAX, -1}, {x86.PtCS, cs}, {x86.PtSS, ss}} {
		if c.asked(f.off) {
			a.Mov(8, x86.At(rsp, f.off), x86.Imm(f.v))
		}
	}
}

// leave restores everything that enter and the call of a stage have changed. what
// says how much was done by then.
func (c *stageFrame) leave(a *x86.Asm, what int) {
	const rax, rsp = x86.RAX, x86.RSP
	c.note(a, c.deepestStance(), what)
	if !c.push {
		a.Mov(8, rax, x86.At(rsp, scratchFlags+c.more))
		a.Add(1, rax, x86.Imm(0x7f)) // overflows if it was 1
		a.Sahf()
	}
	for _, r := range []x86.Reg64{rax, x86.RSI, x86.RDI} {
		a.Mov(8, r, x86.At(rsp, x86.PtReg(r)))
	}
	if c.push {
		a.Lea(8, rsp, x86.At(rsp, x86.PtFlags))
		c.note(a, stance{below: c.size - x86.PtFlags, flags: flagsWord}, what)
		a.Popfq()
		c.note(a, stance{below: c.size - x86.PtFlags - 8}, what)
		a.Lea(8, rsp, x86.At(rsp, c.size-x86.PtFlags-8))
	} else {
		c.note(a, stance{below: c.size}, what)
		a.Lea(8, rsp, x86.At(rsp, c.size))
	}
	c.note(a, stance{}, what)
}
