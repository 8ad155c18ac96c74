package probe

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// spread and spreadRet are what the place of a return address on the stack, and the
// address itself, are multiplied with: an activation begins to look for an instance
// where the last one of the same place and caller had found its own. So what an
// instance remembers of its last activation mostly stays right for a return that
// nobody announces (see arriveStray).
const (
	spread    = 0x61c88647
	spreadRet = 0x2c1b3c6d
)

// stackSlot returns how far above the context of a Stage the interrupted RSP is.
func stackSlot(user bool) int {
	if user {
		return frameSize + redZone
	}
	return frameSize
}

// entryStage makes the Stage that stands for the kretprobe in its detour. RSI is
// the vCPU's line, and what the function returns to is in the interrupted code's
// topmost word.
//
// The instance is complete before the trampoline is on the stack, and live only
// then. In between it is busy, and nobody else's: at CPL3 the task can be
// preempted anywhere.
func (g *retStage) entryStage(entry *Stage) *Stage {
	const rax, rcx, rdx, rsi, rdi, rsp = insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.RSP
	insts := uint64(g.insts())
	word := func(base insn.Reg64, n int) insn.Mem { return insn.At(base, 8*n) }
	ret := insn.At(rdx, -stateBusy) // the return address's place, while RDX has the state
	var a insn.Asm
	crooked, full, raise, raised := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	taken, wrap, got, out := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	kept := []insn.Reg64{rcx, rdx, rsi, rdi}
	restore := func() {
		for i := len(kept) - 1; i >= 0; i-- {
			a.Pop(kept[i])
		}
		a.Ret()
	}
	for _, r := range kept {
		a.Push(r)
	}
	a.Lea(8, rdx, insn.At(rdi, stackSlot(g.user))) // the return address's place
	a.Test(1, rdx, insn.Imm(7))
	a.Jcc(insn.CondNE, crooked) // no ABI has such a stack
	a.Inc(8, rdx)               // busy

	// One more in use, if that many may be; and the high mark.
	a.Mov(8, rcx, insn.Imm(g.base))
	a.Mov(4, rax, insn.Imm(1))
	a.Lock().Xadd(8, word(rcx, wordUsed), rax)
	a.Sub(8, rax, word(rcx, wordLimit))
	a.Jcc(insn.CondGE, full)
	a.Inc(8, rax)
	a.Cmp(8, rax, word(rcx, wordHigh))
	a.Jcc(insn.CondG, raise)
	a.Place(raised)

	// The instance to begin with.
	a.Mov(8, rax, ret)
	a.ImulImm(8, rax, rax, spreadRet)
	a.ImulImm(8, rcx, rdx, spread)
	a.Add(8, rcx, rax)
	a.Shr(8, rcx, insn.Imm(24))
	a.And(4, rcx, insn.Imm(g.n-1))
	a.ImulImm(8, rcx, rcx, insn.Imm(g.stride))
	a.Mov(8, rax, insn.Imm(insts))
	a.Add(8, rcx, rax)
	a.Mov(4, rdi, insn.Imm(2*g.n)) // tries: others may take what was passed by
	try := a.Here()
	a.Mov(8, rax, word(rcx, instState))
	a.Test(8, rax, rax)
	a.Jcc(insn.CondNE, taken)
	a.Lock().Cmpxchg(8, word(rcx, instState), rdx)
	a.Jcc(insn.CondE, got)
	a.Place(taken)
	a.Add(8, rcx, insn.Imm(g.stride))
	a.Mov(8, rax, insn.Imm(insts+uint64(g.n*g.stride)))
	a.Cmp(8, rcx, rax)
	a.Jcc(insn.CondB, wrap)
	a.Mov(8, rcx, insn.Imm(insts))
	a.Place(wrap)
	a.Dec(4, rdi)
	a.Jcc(insn.CondNE, try)

	a.Place(full)
	a.Mov(8, rcx, insn.Imm(g.base))
	a.Lock().Dec(8, word(rcx, wordUsed))
	a.Place(crooked)
	a.Inc(8, word(rsi, cellMissed))
	a.Place(out)
	restore()

	a.Place(raise)
	a.Mov(8, rdi, rax)
	again := a.Here()
	a.Mov(8, rax, word(rcx, wordHigh))
	a.Cmp(8, rdi, rax)
	a.Jcc(insn.CondLE, raised)
	a.Lock().Cmpxchg(8, word(rcx, wordHigh), rdi)
	a.Jcc(insn.CondNE, again)
	a.Jmp(raised)

	a.Place(got)
	a.Mov(8, rax, ret)
	a.Mov(8, word(rcx, instRet), rax)
	if t := g.tasks; t != nil {
		a.Mov(8, rax, rdx)
		a.And(8, rax, insn.Imm(int32(t.StackMask)))
		a.Mov(4, rax, insn.At(rax, int(t.PIDOff)))
		a.Mov(8, word(rcx, instTask), rax)
	}
	call, skip := a.NewLabel(), a.NewLabel()
	if entry != nil {
		a.Push(rdx)
		a.Mov(8, rdi, insn.At(rsp, 8)) // the context
		a.Mov(8, rsi, word(rsi, cellEntryBlock))
		a.Lea(8, rdx, insn.At(rcx, lineSize)) // the data
		a.Call(call)
		a.Pop(rdx)
		a.Mov(8, rsi, insn.At(rsp, 8)) // the vCPU's line
		a.Test(8, rax, rax)
		a.Jcc(insn.CondNE, skip)
	}
	a.Mov(8, rax, word(rcx, instTramp))
	a.Mov(8, ret, rax)
	a.Inc(8, word(rsi, cellHandled))
	a.Dec(8, rdx)
	a.Mov(8, word(rcx, instState), rdx)
	restore()
	s := &Stage{Stack: 48, NoStrings: true, Block: g.cells(), Stride: lineSize, Lost: g.base + 8*wordLost, Counts: g.counts}
	if entry != nil {
		a.Place(skip)
		a.Mov(8, word(rcx, instState), insn.Imm(0))
		a.Inc(8, word(rsi, cellFiltered))
		a.Mov(8, rcx, insn.Imm(g.base))
		a.Lock().Dec(8, word(rcx, wordUsed))
		a.Jmp(out)
		a.Align(detourAlign)
		a.Place(call)
		for _, f := range entry.Fixups {
			s.Fixups = append(s.Fixups, Fixup{Fault: a.Len() + f.Fault, Resume: a.Len() + f.Resume})
		}
		a.Append(entry.Code)
		s.Reads, s.NoStrings = entry.Reads, entry.NoStrings
		s.Stack += entry.Stack
	}
	s.Code = a.Code()
	return s
}

// returnCode makes what the trampolines lead to, for the address at. The
// return address's place on the stack is then directly above RSP's word, which
// is the number of the instance.
//
// The place keeps the trampoline's address until the activation is over: the host
// tells by it. All the guest's registers are as the function has left them in
// the end, and RSP is the caller's.
func (g *retStage) returnCode(at guest.GVA, x *Stage, exit []byte) []byte {
	const rax, rcx, rdx, rsi, rdi, rsp = insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RDI, insn.RSP
	word := func(base insn.Reg64, n int) insn.Mem { return insn.At(base, 8*n) }
	a := insn.NewAsm(uint64(at))
	stray, unknown, ended, call := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	c := newStageFrame([]*Stage{x}, g.user)
	c.more = 8 * max(0, bits.Len32(c.reads)-insn.PtRegsSize/8)
	c.size = frameSize + c.more // the caller's red zone is what the function had above its own
	for _, r := range []insn.Reg64{rcx, rdx} {
		c.reads |= 1 << (insn.PtReg(r) / 8)
	}
	leave := func() {
		for _, r := range []insn.Reg64{rcx, rdx} {
			a.Mov(8, r, insn.At(rsp, insn.PtReg(r)))
		}
		c.leave(a)
	}
	c.enter(a, 0)
	a.Mov(8, rax, insn.At(rsp, c.size)) // number
	a.ImulImm(8, rcx, rax, insn.Imm(g.stride))
	a.Mov(8, rax, insn.Imm(g.insts()))
	a.Add(8, rcx, rax)
	a.Lea(8, rdx, insn.At(rsp, c.size+8))
	a.Cmp(8, word(rcx, instState), rdx)
	a.Jcc(insn.CondNE, stray)
	a.Or(8, word(rcx, instState), insn.Imm(stateBusy))
	if c.asked(insn.PtSP) {
		a.Lea(8, rax, insn.At(rsp, c.size+16))
		a.Mov(8, insn.At(rsp, insn.PtSP), rax)
	}
	if c.asked(insn.PtIP) {
		a.Mov(8, rax, word(rcx, instRet))
		a.Mov(8, insn.At(rsp, insn.PtIP), rax)
	}
	for at := 0; at < c.more; at += 8 {
		field := insn.At(rsp, insn.PtRegsSize+at)
		switch {
		case !c.asked(insn.PtRegsSize + at):
		case at+8 <= g.stride-lineSize:
			a.Mov(8, rax, insn.At(rcx, lineSize+at))
			a.Mov(8, field, rax)
		default: // nothing was kept there
			a.Mov(8, field, insn.Imm(0))
		}
	}
	a.Mov(8, rax, rdx)
	a.And(8, rax, insn.Imm(int32(g.prof.Mask)))
	a.Mov(8, rsi, insn.Imm(g.prof.Magic))
	a.Cmp(8, rsi, insn.At(rax, int(g.prof.MagicOff)))
	a.Jcc(insn.CondNE, unknown)
	a.Mov(4, rax, insn.At(rax, int(g.prof.CPUOff)))
	a.Cmp(4, rax, insn.Imm(g.cpus))
	a.Jcc(insn.CondAE, unknown)
	a.ImulImm(8, rsi, rax, lineSize)
	a.Mov(8, rax, insn.Imm(g.cells()))
	a.Add(8, rsi, rax)
	a.Inc(8, word(rsi, cellReturns))
	a.Mov(8, rax, insn.Imm(g.base+8*wordRun))
	a.Cmp(8, insn.At(rax, 0), insn.Imm(0))
	a.Jcc(insn.CondE, ended)
	a.Mov(8, rsi, word(rsi, cellReturnBlock))
	a.Mov(8, rdi, rsp)
	a.Lea(8, rdx, insn.At(rcx, lineSize))
	a.Call(call)
	a.Place(ended)
	a.Mov(8, rax, word(rcx, instRet))
	a.Mov(8, insn.At(rsp, c.size+8), rax)
	a.Mov(8, word(rcx, instState), insn.Imm(0))
	a.Mov(8, rax, insn.Imm(g.base))
	a.Lock().Dec(8, word(rax, wordUsed))
	leave()
	if g.user {
		// A ret would take the processor's prediction of another one.
		a.Lea(8, rsp, insn.At(rsp, 16))
		a.JmpAt(insn.At(rsp, -8))
	} else {
		// An interrupt may come at any time, and uses what is below RSP.
		a.Lea(8, rsp, insn.At(rsp, 8))
		a.Ret()
	}
	a.Place(unknown)
	a.Mov(8, rsi, insn.Imm(g.cells()))
	a.Lock().Inc(8, word(rsi, cellReturns))
	a.Jmp(ended)
	a.Place(stray)
	leave()
	g.exit = guest.GVA(a.PC())
	a.Append(exit)
	a.Align(detourAlign)
	a.Place(call)
	g.placed = []placedStage{{x.Code, x.Fixups, guest.GVA(a.PC())}}
	a.Append(x.Code)
	return a.Code()
}
