package probe

import (
	"bytes"
	"math/bits"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// assemble makes the trampolines of the table for the address at and, if the table is
// shared, the code after them that they jump to. If it is not shared, a trampoline is
// an int3.
func (t *instances) assemble(at guest.GVA, exit []byte) []byte {
	t.tramps = at
	if !t.shared() {
		a := x86.NewAsm(uint64(at))
		end := a.NewLabel()
		for range t.n { // the int3 is enough to trap; the rest is there for readers
			a.Append(bytes.Repeat([]byte{x86.Int3}, trampJump))
			a.Jmp(end)
			a.Append([]byte{x86.Int3})
		}
		t.appendHead(a)
		a.Place(end)
		t.end = guest.GVA(a.PC())
		return a.Code()
	}
	a := x86.NewAsm(uint64(at))
	common := a.NewLabel()
	for i := range t.n {
		// Past the return address on the stack, where the host looks for it.
		a.Lea(8, x86.RSP, x86.At(x86.RSP, -8))
		t.push = a.Len() % trampSize
		a.Push(x86.Imm(i))
		a.Jmp(common)
		a.Align(trampSize)
	}
	t.appendHead(a)
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
// itself: the registers that it saves, one more around the call, and the call's
// return address.
const entryStack = 6 * 8

// extraContext returns how many bytes the context of a return stage has after struct
// pt_regs.
func extraContext(x *Stage) int { return 8 * max(0, bits.Len32(x.Reads)-x86.PtRegsSize/8) }

// stack returns the Stage.Stack for the table's code, with the stages that it calls,
// at entry and return: there the number of the record is on the stack too.
func (t *instances) stack() int {
	atEntry, x := entryStack, t.rp.probe.ReturnStage
	if entry := t.rp.probe.Stage; entry != nil {
		atEntry += entry.Stack
	}
	return max(atEntry, 8+extraContext(x)+x.Stack)
}

// entryStage makes the Stage that represents the kretprobe in its detour. RSI is the
// vCPU's line, and the topmost word of the interrupted code is the return address.
//
// The record is complete before the trampoline is on the stack, and live only from
// then on. Until then no other context uses it: at CPL3 the task can be preempted
// anywhere. Code that did not arrive by a call may have no word there that can be
// read and written: such a call is missed, as on the host.
func (t *instances) entryStage() *Stage {
	const rax, rcx, rdx, rsi, rdi, rsp = x86.RAX, x86.RCX, x86.RDX, x86.RSI, x86.RDI, x86.RSP
	entry, records := t.rp.probe.Stage, uint64(t.records())
	word := func(base x86.Reg64, n int) x86.Mem { return x86.At(base, 8*n) }
	place := x86.At(rdx, 0)
	var a x86.Asm
	missed, full, raise, raised := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	taken, wrap, got, out, fits := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	kept := []x86.Reg64{rcx, rdx, rdi, rsi}
	line := x86.At(rsp, 0) // the vCPU's, where RSI is kept
	restore := func() {
		for i := len(kept) - 1; i >= 0; i-- {
			a.Pop(kept[i])
		}
		a.Ret()
	}
	for _, r := range kept {
		a.Push(r)
	}
	a.Lea(8, rdx, x86.At(rdi, stackSlot(t.user))) // the return address's place
	a.Test(1, rdx, x86.Imm(7))
	a.Jcc(x86.CondNE, missed) // no ABI has such a stack

	// One more in use, if the maximum allows it; and the high mark.
	a.Mov(8, rcx, x86.Imm(t.base))
	a.Mov(4, rax, x86.Imm(1))
	a.Lock().Xadd(8, word(rcx, wordUsed), rax)
	a.Cmp(8, rax, x86.Imm(t.max))
	a.Jcc(x86.CondAE, full)
	a.Inc(8, rax)
	a.Cmp(8, rax, word(rcx, wordHigh))
	a.Jcc(x86.CondA, raise)
	a.Place(raised)

	// The record to begin with: see origin.home.
	load := a.Len()
	a.Mov(8, rax, place)
	a.ImulImm(8, rax, rax, spreadRet)
	a.ImulImm(8, rcx, rdx, spread)
	a.Add(8, rcx, rax)
	a.Shr(8, rcx, x86.Imm(24))
	a.And(4, rcx, x86.Imm(t.n-1))
	a.ImulImm(8, rcx, rcx, x86.Imm(t.stride))
	a.Mov(8, rax, x86.Imm(records))
	a.Add(8, rcx, rax)
	a.Mov(4, rdi, x86.Imm(2*t.n)) // tries: other contexts may take the records that were skipped
	try := a.LabelHere()
	a.Mov(8, rax, word(rcx, instState))
	a.Test(1, rax, x86.Imm(phaseMask))
	a.Jcc(x86.CondNE, taken)
	// As fit does, without looking through trampolines.
	a.Mov(8, rsi, word(rcx, instNext))
	a.Test(8, rsi, rsi)
	a.Jcc(x86.CondE, fits)
	same := a.Len()
	a.Cmp(8, rsi, place)
	a.Jcc(x86.CondE, fits)
	if t.steal {
		a.Test(1, word(rcx, instHeld), x86.Imm(heldElsewhere))
		a.Jcc(x86.CondNE, taken)
	} else {
		a.Jmp(taken)
	}
	a.Place(fits)
	a.Lea(8, rsi, x86.At(rax, nextTaken))
	a.Lock().Cmpxchg(8, word(rcx, instState), rsi)
	a.Jcc(x86.CondE, got)
	a.Place(taken)
	a.Add(8, rcx, x86.Imm(t.stride))
	a.Mov(8, rax, x86.Imm(records+uint64(t.n*t.stride)))
	a.Cmp(8, rcx, rax)
	a.Jcc(x86.CondB, wrap)
	a.Mov(8, rcx, x86.Imm(records))
	a.Place(wrap)
	a.Dec(4, rdi)
	a.Jcc(x86.CondNE, try)

	a.Place(full)
	a.Mov(8, rcx, x86.Imm(t.base))
	a.Lock().Dec(8, word(rcx, wordUsed))
	a.Place(missed)
	a.Mov(8, rsi, line)
	a.Inc(8, word(rsi, cellMissed))
	a.Place(out)
	restore()

	a.Place(raise)
	a.Mov(8, rdi, rax)
	again := a.LabelHere()
	a.Mov(8, rax, word(rcx, wordHigh))
	a.Cmp(8, rdi, rax)
	a.Jcc(x86.CondBE, raised)
	a.Lock().Cmpxchg(8, word(rcx, wordHigh), rdi)
	a.Jcc(x86.CondNE, again)
	a.Jmp(raised)

	a.Place(got)
	a.Mov(8, rsi, line)
	a.Mov(8, word(rcx, instPlace), rdx)
	a.Mov(8, rax, place)
	a.Mov(8, word(rcx, instNext), rax)
	a.Mov(8, word(rcx, instRoot), x86.Imm(0))
	var task Fixup
	if x := t.tasks; x != nil {
		if x.GS {
			a.Mov(8, rdi, x86.AtGS(int(x.TaskOff)))
			a.Mov(8, word(rcx, instOwner), rdi)
		} else {
			a.Mov(8, rdi, rdx)
			a.And(8, rdi, x86.Imm(int32(x.StackMask)))
			a.Mov(4, rax, x86.Imm(0)) // the value that stays if the number is on a page that is not mapped
		}
		task.Fault = a.Len()
		a.Mov(4, rax, x86.At(rdi, int(x.PIDOff)))
		a.Inc(8, rax)
		task.Resume = a.Len()
		a.Mov(8, word(rcx, instTask), rax)
	}
	call, skip := a.NewLabel(), a.NewLabel()
	if entry != nil {
		a.Push(rdx)
		a.Mov(8, rdi, x86.At(rsp, 16)) // the context
		a.Mov(8, rsi, word(rsi, cellEntryBlock))
		a.Lea(8, rdx, x86.At(rcx, lineSize)) // the data
		a.Call(call)
		a.Pop(rdx)
		a.Mov(8, rsi, line)
		a.Test(8, rax, rax)
		a.Jcc(x86.CondNE, skip)
	}
	a.Mov(8, rax, word(rcx, instTramp))
	store := a.Len()
	a.Mov(8, place, rax)
	a.Inc(8, word(rsi, cellHandled))
	a.Inc(8, word(rcx, instState)) // live
	restore()
	undo := a.LabelHere()
	a.Neg(8, word(rcx, instTask))
	a.Dec(8, word(rcx, instState)) // free
	a.Jmp(full)
	s := &Stage{Stack: entryStack, NoStrings: true, Aligned: true, Block: t.cells(), Stride: lineSize, Lost: t.base + 8*wordLost, Counts: t.counts, table: t}
	if !t.prof.GS { // a kernel's stack is always mapped
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
		a.Mov(8, rcx, x86.Imm(t.base))
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

// returnCode appends the code that the trampolines lead to. The return address's
// place on the stack is then directly above RSP's word, which is the number of the
// record.
//
// The place keeps the trampoline's address until the activation is over: the host
// recognizes it by that. The final values of all the guest's registers are those the
// function left, and RSP is the caller's. On a stack that does not identify the vCPU,
// the host handles the return, as it does one without a known activation.
func (t *instances) returnCode(a *x86.Asm, exit []byte) {
	const rax, rcx, rdx, rsi, rdi, rsp = x86.RAX, x86.RCX, x86.RDX, x86.RSI, x86.RDI, x86.RSP
	x := t.rp.probe.ReturnStage
	word := func(base x86.Reg64, n int) x86.Mem { return x86.At(base, 8*n) }
	stray, ended, call := a.NewLabel(), a.NewLabel(), a.NewLabel()
	c := newStageFrame([]*Stage{x}, t.user, &t.prof)
	c.more, c.kept, c.pushed = extraContext(x), keptReturn, 16
	c.size = frameSize + c.more // the caller's red zone is what the function had above its own
	c.deep = c.size + x.Stack + 8
	for _, r := range []x86.Reg64{rcx, rdx} {
		c.reads |= 1 << (x86.PtReg(r) / 8)
	}
	leave := func(what int) {
		c.note(a, c.deepestStance(), what)
		for _, r := range []x86.Reg64{rcx, rdx} {
			a.Mov(8, r, x86.At(rsp, x86.PtReg(r)))
		}
		c.leave(a, what)
	}
	c.note(a, stance{}, again)
	if t.user {
		a.Lea(8, rsp, x86.At(rsp, 8-c.deep))
		c.note(a, stance{below: c.deep - 8}, again)
		t.touch = touch{a.Len(), c.deep - 8}
		a.Push(rax)
		c.note(a, stance{below: c.deep}, again)
		a.Lea(8, rsp, x86.At(rsp, c.deep))
		c.note(a, stance{}, again)
	}
	c.enter(a, 0)
	if c.checks {
		a.Test(4, x86.At(rsp, x86.PtFlags), x86.Imm(x86.FlagAC))
		a.Jcc(x86.CondNE, stray)
	}
	a.Mov(8, rax, x86.At(rsp, c.size)) // number
	a.ImulImm(8, rcx, rax, x86.Imm(t.stride))
	a.Mov(8, rax, x86.Imm(t.records()))
	a.Add(8, rcx, rax)
	a.Lea(8, rdx, x86.At(rsp, c.size+8))
	a.Cmp(8, word(rcx, instPlace), rdx)
	a.Jcc(x86.CondNE, stray)
	a.Mov(8, rax, word(rcx, instState))
	a.And(4, rax, x86.Imm(phaseMask))
	a.Cmp(4, rax, x86.Imm(phaseLive))
	a.Jcc(x86.CondNE, stray)
	a.Mov(8, rax, rdx)
	c.checkStack(a, stray)
	loads := vcpuNumber(a, &t.prof, t.cpus, stray)
	a.ImulImm(8, rsi, rax, lineSize)
	a.Mov(8, rax, x86.Imm(t.cells()))
	a.Add(8, rsi, rax)
	a.Inc(8, word(rcx, instState)) // leaving
	c.note(a, c.deepestStance(), neither)
	if c.asked(x86.PtSP) {
		a.Lea(8, rax, x86.At(rsp, c.size+16))
		a.Mov(8, x86.At(rsp, x86.PtSP), rax)
	}
	if c.asked(x86.PtIP) {
		a.Mov(8, rax, word(rcx, instNext))
		a.Mov(8, x86.At(rsp, x86.PtIP), rax)
	}
	for at := 0; at < c.more; at += 8 {
		field := x86.At(rsp, x86.PtRegsSize+at)
		switch {
		case !c.asked(x86.PtRegsSize + at):
		case at+8 <= t.stride-lineSize:
			a.Mov(8, rax, x86.At(rcx, lineSize+at))
			a.Mov(8, field, rax)
		default: // nothing was kept there
			a.Mov(8, field, x86.Imm(0))
		}
	}
	a.Inc(8, word(rsi, cellReturns))
	a.Mov(8, rax, x86.Imm(t.base+8*wordRun))
	a.Cmp(8, x86.At(rax, 0), x86.Imm(0))
	a.Jcc(x86.CondE, ended)
	c.beginLoads(a)
	a.Mov(8, rsi, word(rsi, cellReturnBlock))
	a.Mov(8, rdi, rsp)
	a.Lea(8, rdx, x86.At(rcx, lineSize))
	a.Call(call)
	c.endLoads(a)
	a.Place(ended)
	a.Mov(8, rax, word(rcx, instNext))
	a.Mov(8, x86.At(rsp, c.size+8), rax)
	a.Neg(8, word(rcx, instTask))
	a.Sub(8, word(rcx, instState), x86.Imm(phaseLeaving)) // free
	a.Mov(8, rax, x86.Imm(t.base))
	a.Lock().Dec(8, word(rax, wordUsed))
	t.ended = guest.GVA(a.PC())
	leave(over)
	if t.user {
		// A ret would consume the processor's prediction for another one.
		a.Lea(8, rsp, x86.At(rsp, 16))
		c.note(a, stance{below: -16}, over)
		a.JmpAt(x86.At(rsp, -8))
	} else {
		// An interrupt may occur at any time, and overwrites the memory below RSP.
		a.Lea(8, rsp, x86.At(rsp, 8))
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
