package probe

import (
	"bytes"
	"math/bits"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// assemble makes the trampolines of the table for the address at, and, where it is
// shared, behind them what they lead to. Where it is not, a trampoline is an int3.
func (t *instances) assemble(at guest.GVA, exit []byte) []byte {
	t.tramps = at
	if !t.shared() {
		a := insn.NewAsm(uint64(at))
		end := a.NewLabel()
		for range t.n { // of which all but the int3 is there to be read
			a.Append(bytes.Repeat([]byte{insn.Int3}, trampJump))
			a.Jmp(end)
			a.Append([]byte{insn.Int3})
		}
		t.head(a)
		a.Place(end)
		t.end = guest.GVA(a.PC())
		return a.Code()
	}
	a := insn.NewAsm(uint64(at))
	common := a.NewLabel()
	for i := range t.n {
		// Behind the return address on the stack, which the host looks for there.
		a.Lea(8, insn.RSP, insn.At(insn.RSP, -8))
		t.push = a.Len() % trampSize
		a.Push(insn.Imm(i))
		a.Jmp(common)
		a.Align(trampSize)
	}
	t.head(a)
	a.Place(common)
	t.returnCode(a, exit)
	t.end = guest.GVA(a.PC())
	return a.Code()
}

// stackSlot returns how far above the context of a Stage the interrupted RSP is.
func stackSlot(user bool) int {
	if user {
		return frameSize + redZone
	}
	return frameSize
}

// entryStack is how many bytes of the interrupted stack the code of entryStage uses
// itself: the registers that it keeps, one more around the call, and that.
const entryStack = 6 * 8

// moreContext returns how many bytes the context of a return stage has behind
// struct pt_regs.
func moreContext(x *Stage) int { return 8 * max(0, bits.Len32(x.Reads)-insn.PtRegsSize/8) }

// stack returns what Stage.Stack would be for the table's code, with the stages that it
// calls, at entry and return: there the number of the record is on the stack as well.
func (t *instances) stack() int {
	atEntry, x := entryStack, t.rp.probe.ReturnStage
	if entry := t.rp.probe.Stage; entry != nil {
		atEntry += entry.Stack
	}
	return max(atEntry, 8+moreContext(x)+x.Stack)
}

// entryStage makes the Stage that stands for the kretprobe in its detour. RSI is
// the vCPU's line, and what the function returns to is in the interrupted code's
// topmost word.
//
// The record is complete before the trampoline is on the stack, and live only
// then. In between it is nobody else's: at CPL3 the task can be preempted anywhere.
// Who has come without a call may have no word there that can be read and written: such
// a call is missed, as on the host.
func (t *instances) entryStage() *Stage {
	const rax, rcx, rdx, rsi, rdi, rsp = insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.RSP
	entry, records := t.rp.probe.Stage, uint64(t.records())
	word := func(base insn.Reg64, n int) insn.Mem { return insn.At(base, 8*n) }
	place := insn.At(rdx, 0)
	var a insn.Asm
	missed, full, raise, raised := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	taken, wrap, got, out, fits := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	kept := []insn.Reg64{rcx, rdx, rdi, rsi}
	line := insn.At(rsp, 0) // the vCPU's, where RSI is kept
	restore := func() {
		for i := len(kept) - 1; i >= 0; i-- {
			a.Pop(kept[i])
		}
		a.Ret()
	}
	for _, r := range kept {
		a.Push(r)
	}
	a.Lea(8, rdx, insn.At(rdi, stackSlot(t.user))) // the return address's place
	a.Test(1, rdx, insn.Imm(7))
	a.Jcc(insn.CondNE, missed) // no ABI has such a stack

	// One more in use, if that many may be; and the high mark.
	a.Mov(8, rcx, insn.Imm(t.base))
	a.Mov(4, rax, insn.Imm(1))
	a.Lock().Xadd(8, word(rcx, wordUsed), rax)
	a.Cmp(8, rax, insn.Imm(t.max))
	a.Jcc(insn.CondAE, full)
	a.Inc(8, rax)
	a.Cmp(8, rax, word(rcx, wordHigh))
	a.Jcc(insn.CondA, raise)
	a.Place(raised)

	// The record to begin with: see origin.home.
	load := a.Len()
	a.Mov(8, rax, place)
	a.ImulImm(8, rax, rax, spreadRet)
	a.ImulImm(8, rcx, rdx, spread)
	a.Add(8, rcx, rax)
	a.Shr(8, rcx, insn.Imm(24))
	a.And(4, rcx, insn.Imm(t.n-1))
	a.ImulImm(8, rcx, rcx, insn.Imm(t.stride))
	a.Mov(8, rax, insn.Imm(records))
	a.Add(8, rcx, rax)
	a.Mov(4, rdi, insn.Imm(2*t.n)) // tries: others may take what was passed by
	try := a.Here()
	a.Mov(8, rax, word(rcx, instState))
	a.Test(1, rax, insn.Imm(phaseMask))
	a.Jcc(insn.CondNE, taken)
	// As fit does, without looking through trampolines.
	a.Mov(8, rsi, word(rcx, instNext))
	a.Test(8, rsi, rsi)
	a.Jcc(insn.CondE, fits)
	same := a.Len()
	a.Cmp(8, rsi, place)
	a.Jcc(insn.CondE, fits)
	if t.steal {
		a.Test(1, word(rcx, instHeld), insn.Imm(heldElsewhere))
		a.Jcc(insn.CondNE, taken)
	} else {
		a.Jmp(taken)
	}
	a.Place(fits)
	a.Lea(8, rsi, insn.At(rax, nextTaken))
	a.Lock().Cmpxchg(8, word(rcx, instState), rsi)
	a.Jcc(insn.CondE, got)
	a.Place(taken)
	a.Add(8, rcx, insn.Imm(t.stride))
	a.Mov(8, rax, insn.Imm(records+uint64(t.n*t.stride)))
	a.Cmp(8, rcx, rax)
	a.Jcc(insn.CondB, wrap)
	a.Mov(8, rcx, insn.Imm(records))
	a.Place(wrap)
	a.Dec(4, rdi)
	a.Jcc(insn.CondNE, try)

	a.Place(full)
	a.Mov(8, rcx, insn.Imm(t.base))
	a.Lock().Dec(8, word(rcx, wordUsed))
	a.Place(missed)
	a.Mov(8, rsi, line)
	a.Inc(8, word(rsi, cellMissed))
	a.Place(out)
	restore()

	a.Place(raise)
	a.Mov(8, rdi, rax)
	again := a.Here()
	a.Mov(8, rax, word(rcx, wordHigh))
	a.Cmp(8, rdi, rax)
	a.Jcc(insn.CondBE, raised)
	a.Lock().Cmpxchg(8, word(rcx, wordHigh), rdi)
	a.Jcc(insn.CondNE, again)
	a.Jmp(raised)

	a.Place(got)
	a.Mov(8, rsi, line)
	a.Mov(8, word(rcx, instPlace), rdx)
	a.Mov(8, rax, place)
	a.Mov(8, word(rcx, instNext), rax)
	a.Mov(8, word(rcx, instRoot), insn.Imm(0))
	var task Fixup
	if x := t.tasks; x != nil {
		if x.GS {
			a.Mov(8, rdi, insn.AtGS(int(x.TaskOff)))
			a.Mov(8, word(rcx, instOwner), rdi)
		} else {
			a.Mov(8, rdi, rdx)
			a.And(8, rdi, insn.Imm(int32(x.StackMask)))
			a.Mov(4, rax, insn.Imm(0)) // what stays where the number is on a page that is not there
		}
		task.Fault = a.Len()
		a.Mov(4, rax, insn.At(rdi, int(x.PIDOff)))
		a.Inc(8, rax)
		task.Resume = a.Len()
		a.Mov(8, word(rcx, instTask), rax)
	}
	call, skip := a.NewLabel(), a.NewLabel()
	if entry != nil {
		a.Push(rdx)
		a.Mov(8, rdi, insn.At(rsp, 16)) // the context
		a.Mov(8, rsi, word(rsi, cellEntryBlock))
		a.Lea(8, rdx, insn.At(rcx, lineSize)) // the data
		a.Call(call)
		a.Pop(rdx)
		a.Mov(8, rsi, line)
		a.Test(8, rax, rax)
		a.Jcc(insn.CondNE, skip)
	}
	a.Mov(8, rax, word(rcx, instTramp))
	store := a.Len()
	a.Mov(8, place, rax)
	a.Inc(8, word(rsi, cellHandled))
	a.Inc(8, word(rcx, instState)) // live
	restore()
	undo := a.Here()
	a.Neg(8, word(rcx, instTask))
	a.Dec(8, word(rcx, instState)) // free
	a.Jmp(full)
	s := &Stage{Stack: entryStack, NoStrings: true, Aligned: true, Block: t.cells(), Stride: lineSize, Lost: t.base + 8*wordLost, Counts: t.counts, table: t}
	if !t.prof.GS { // a kernel's stack is there
		s.Fixups = []Fixup{{load, a.Offset(full)}, {same, a.Offset(full)}, {store, a.Offset(undo)}}
		if t.tasks != nil {
			s.Fixups = append(s.Fixups, task)
		}
	}
	if entry != nil {
		a.Place(skip)
		a.Neg(8, word(rcx, instTask))
		a.Dec(8, word(rcx, instState)) // free
		a.Inc(8, word(rsi, cellFiltered))
		a.Mov(8, rcx, insn.Imm(t.base))
		a.Lock().Dec(8, word(rcx, wordUsed))
		a.Jmp(out)
		a.Align(detourAlign)
		a.Place(call)
		for _, f := range entry.Fixups {
			s.Fixups = append(s.Fixups, Fixup{Fault: a.Len() + f.Fault, Resume: a.Len() + f.Resume})
		}
		a.Append(entry.Code)
		s.Reads, s.NoStrings, s.Aligned = entry.Reads, entry.NoStrings, entry.Aligned
		s.Stack += entry.Stack
	}
	s.Code = a.Code()
	return s
}

// returnCode appends what the trampolines lead to. The return address's place on
// the stack is then directly above RSP's word, which is the number of the record.
//
// The place keeps the trampoline's address until the activation is over: the host
// tells by it. All the guest's registers are as the function has left them in
// the end, and RSP is the caller's. On a stack that shows no vCPU the host sees to it, as to
// a return that no activation is known for.
func (t *instances) returnCode(a *insn.Asm, exit []byte) {
	const rax, rcx, rdx, rsi, rdi, rsp = insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.RSP
	x := t.rp.probe.ReturnStage
	word := func(base insn.Reg64, n int) insn.Mem { return insn.At(base, 8*n) }
	stray, ended, call := a.NewLabel(), a.NewLabel(), a.NewLabel()
	c := newStageFrame([]*Stage{x}, t.user)
	c.more, c.kept, c.pushed = moreContext(x), keptReturn, 16
	c.size = frameSize + c.more // the caller's red zone is what the function had above its own
	c.deep = c.size + x.Stack + 8
	for _, r := range []insn.Reg64{rcx, rdx} {
		c.reads |= 1 << (insn.PtReg(r) / 8)
	}
	leave := func(what int) {
		c.note(a, c.deepest(), what)
		for _, r := range []insn.Reg64{rcx, rdx} {
			a.Mov(8, r, insn.At(rsp, insn.PtReg(r)))
		}
		c.leave(a, what)
	}
	c.note(a, stance{}, again)
	if t.user {
		a.Lea(8, rsp, insn.At(rsp, 8-c.deep))
		c.note(a, stance{below: c.deep - 8}, again)
		t.touch = touch{a.Len(), c.deep - 8}
		a.Push(rax)
		c.note(a, stance{below: c.deep}, again)
		a.Lea(8, rsp, insn.At(rsp, c.deep))
		c.note(a, stance{}, again)
	}
	c.enter(a, 0)
	if c.checks {
		a.Test(4, insn.At(rsp, insn.PtFlags), insn.Imm(insn.FlagAC))
		a.Jcc(insn.CondNE, stray)
	}
	a.Mov(8, rax, insn.At(rsp, c.size)) // number
	a.ImulImm(8, rcx, rax, insn.Imm(t.stride))
	a.Mov(8, rax, insn.Imm(t.records()))
	a.Add(8, rcx, rax)
	a.Lea(8, rdx, insn.At(rsp, c.size+8))
	a.Cmp(8, word(rcx, instPlace), rdx)
	a.Jcc(insn.CondNE, stray)
	a.Mov(8, rax, word(rcx, instState))
	a.And(4, rax, insn.Imm(phaseMask))
	a.Cmp(4, rax, insn.Imm(phaseLive))
	a.Jcc(insn.CondNE, stray)
	a.Mov(8, rax, rdx)
	loads := vcpuNumber(a, &t.prof, t.cpus, stray)
	a.ImulImm(8, rsi, rax, lineSize)
	a.Mov(8, rax, insn.Imm(t.cells()))
	a.Add(8, rsi, rax)
	a.Inc(8, word(rcx, instState)) // leaving
	c.note(a, c.deepest(), neither)
	if c.asked(insn.PtSP) {
		a.Lea(8, rax, insn.At(rsp, c.size+16))
		a.Mov(8, insn.At(rsp, insn.PtSP), rax)
	}
	if c.asked(insn.PtIP) {
		a.Mov(8, rax, word(rcx, instNext))
		a.Mov(8, insn.At(rsp, insn.PtIP), rax)
	}
	for at := 0; at < c.more; at += 8 {
		field := insn.At(rsp, insn.PtRegsSize+at)
		switch {
		case !c.asked(insn.PtRegsSize + at):
		case at+8 <= t.stride-lineSize:
			a.Mov(8, rax, insn.At(rcx, lineSize+at))
			a.Mov(8, field, rax)
		default: // nothing was kept there
			a.Mov(8, field, insn.Imm(0))
		}
	}
	a.Inc(8, word(rsi, cellReturns))
	a.Mov(8, rax, insn.Imm(t.base+8*wordRun))
	a.Cmp(8, insn.At(rax, 0), insn.Imm(0))
	a.Jcc(insn.CondE, ended)
	a.Mov(8, rsi, word(rsi, cellReturnBlock))
	a.Mov(8, rdi, rsp)
	a.Lea(8, rdx, insn.At(rcx, lineSize))
	a.Call(call)
	a.Place(ended)
	a.Mov(8, rax, word(rcx, instNext))
	a.Mov(8, insn.At(rsp, c.size+8), rax)
	a.Neg(8, word(rcx, instTask))
	a.Sub(8, word(rcx, instState), insn.Imm(phaseLeaving)) // free
	a.Mov(8, rax, insn.Imm(t.base))
	a.Lock().Dec(8, word(rax, wordUsed))
	t.ended = guest.GVA(a.PC())
	leave(over)
	if t.user {
		// A ret would take the processor's prediction of another one.
		a.Lea(8, rsp, insn.At(rsp, 16))
		c.note(a, stance{below: -16}, over)
		a.JmpAt(insn.At(rsp, -8))
	} else {
		// An interrupt may come at any time, and uses what is below RSP.
		a.Lea(8, rsp, insn.At(rsp, 8))
		c.note(a, stance{below: -8}, over)
		a.Ret()
	}
	a.Place(stray)
	t.placed = nil
	for _, load := range loads {
		t.placed = append(t.placed, placedStage{fixups: []Fixup{{Fault: 0, Resume: a.Len() - load}}, at: t.tramps + guest.GVA(load)})
	}
	leave(again)
	t.exit = guest.GVA(a.PC())
	a.Append(exit)
	a.Align(detourAlign)
	a.Place(call)
	c.note(a, stance{inside: true}, neither)
	t.stances = c.stances
	t.placed = append(t.placed, placedStage{x.Code, x.Fixups, guest.GVA(a.PC())})
	a.Append(x.Code)
}
