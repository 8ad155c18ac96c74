package probe

import (
	"math/bits"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// Conditions of jcc (SDM Vol. 2, appendix B.1.4.7).
const (
	condB  = 0x2
	condAE = 0x3
	condE  = 0x4
	condNE = 0x5
	condGE = 0xd
	condLE = 0xe
	condG  = 0xf
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
func stackSlot(user bool) int32 {
	if user {
		return frameSize + redZone
	}
	return frameSize
}

// jcc emits a conditional jump forward; see jmp.
func (a *asm) jcc(cond byte) int {
	a.emit(0x0f, 0x80|cond)
	a.imm32(0)
	return len(a.b) - 4
}

// movImm loads a constant.
func (a *asm) movImm(r insn.Reg64, v uint64) { a.b = insn.AppendMovImm(a.b, r, v) }

// jmpTo emits a jump to an address that is known.
func (a *asm) jmpTo(to guest.GVA) {
	a.emit(insn.JmpOp)
	a.imm32(int32(to - a.pos() - 4))
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
	var a asm
	a.emit(0x51, 0x52, 0x56, 0x57)           // push %rcx; push %rdx; push %rsi; push %rdi
	a.mem(0x8d, rdx, rdi, stackSlot(g.user)) // lea: the return address's place
	a.emit(0xf6, 0xc2, 0x07)                 // test $7, %dl
	crooked := a.jcc(condNE)                 // no ABI has such a stack
	a.emit(0x48, 0xff, 0xc2)                 // inc %rdx: busy
	a.movImm(rcx, uint64(g.base))            //
	a.emit(0xb8, 1, 0, 0, 0)                 // mov $1, %eax
	a.emit(0xf0, 0x48, 0x0f, 0xc1, 0x01)     // lock xadd %rax, (%rcx)
	a.mem(0x2b, rax, rcx, 8*wordLimit)       // sub
	full := a.jcc(condGE)                    //
	a.emit(0x48, 0xff, 0xc0)                 // inc %rax
	a.mem(0x3b, rax, rcx, 8*wordHigh)        // cmp
	raise := a.jcc(condG)                    //
	raised := a.pos()                        //
	a.mem(0x8b, rax, rdx, -1)                // mov: where to
	a.emit(0x48, 0x69, 0xc0)                 // imul $spreadRet, %rax, %rax
	a.imm32(spreadRet)
	a.emit(0x48, 0x69, 0xca)                         // imul $spread, %rdx, %rcx
	a.imm32(spread)                                  //
	a.emit(0x48, 0x01, 0xc1)                         // add %rax, %rcx
	a.emit(0x48, 0xc1, 0xe9, 24)                     // shr $24, %rcx
	a.emit(0x81, 0xe1)                               // and $(n-1), %ecx
	a.imm32(int32(g.n - 1))                          //
	a.emit(0x48, 0x69, 0xc9)                         // imul $stride, %rcx, %rcx
	a.imm32(int32(g.stride))                         //
	a.movImm(rax, insts)                             //
	a.emit(0x48, 0x01, 0xc1)                         // add %rax, %rcx
	a.emit(0xbf)                                     // mov $tries, %edi: others may take what was passed by
	a.imm32(int32(2 * g.n))                          //
	try := a.pos()                                   //
	a.mem(0x8b, rax, rcx, 8*instState)               // mov
	a.emit(0x48, 0x85, 0xc0)                         // test %rax, %rax
	taken := a.jcc(condNE)                           //
	a.emit(0xf0, 0x48, 0x0f, 0xb1, 0x11)             // lock cmpxchg %rdx, (%rcx)
	got := a.jcc(condE)                              //
	a.here(taken)                                    //
	a.emit(0x48, 0x81, 0xc1)                         // add $stride, %rcx
	a.imm32(int32(g.stride))                         //
	a.movImm(rax, insts+uint64(g.n*g.stride))        //
	a.emit(0x48, 0x39, 0xc1)                         // cmp %rax, %rcx
	wrap := a.jcc(condB)                             //
	a.movImm(rcx, insts)                             //
	a.here(wrap)                                     //
	a.emit(0xff, 0xcf)                               // dec %edi
	a.jccTo(condNE, try)                             //
	a.here(full)                                     //
	a.movImm(rcx, uint64(g.base))                    //
	a.emit(0xf0, 0x48, 0xff, 0x09)                   // lock decq (%rcx)
	a.here(crooked)                                  //
	a.emit(0x48, 0xff, 0x46, 8*cellMissed)           // incq missed
	out := a.pos()                                   //
	a.emit(0x5f, 0x5e, 0x5a, 0x59, 0xc3)             // pop %rdi; pop %rsi; pop %rdx; pop %rcx; ret
	a.here(raise)                                    //
	a.emit(0x48, 0x89, 0xc7)                         // mov %rax, %rdi
	again := a.pos()                                 //
	a.mem(0x8b, rax, rcx, 8*wordHigh)                // mov
	a.emit(0x48, 0x39, 0xc7)                         // cmp %rax, %rdi
	a.jccTo(condLE, raised)                          //
	a.emit(0xf0, 0x48, 0x0f, 0xb1, 0x79, 8*wordHigh) // lock cmpxchg %rdi, high
	a.jccTo(condNE, again)                           //
	a.jmpTo(raised)                                  //

	a.here(got)
	a.mem(0x8b, rax, rdx, -1)
	a.mem(0x89, rax, rcx, 8*instRet)
	if t := g.tasks; t != nil {
		a.emit(0x48, 0x89, 0xd0) // mov %rdx, %rax
		a.emit(0x48, 0x25)       // and $mask, %rax
		a.imm32(int32(t.StackMask))
		a.emit(0x8b, 0x80) // mov off(%rax), %eax
		a.imm32(t.PIDOff)
		a.mem(0x89, rax, rcx, 8*instTask)
	}
	call, skip := 0, 0
	if entry != nil {
		a.emit(0x52)                            // push %rdx
		a.mem(0x8b, rdi, rsp, 8)                // mov: the context
		a.mem(0x8b, rsi, rsi, 8*cellEntryBlock) // mov
		a.mem(0x8d, rdx, rcx, lineSize)         // lea: the data
		a.emit(0xe8)                            // call
		a.imm32(0)                              //
		call = len(a.b) - 4                     //
		a.emit(0x5a)                            // pop %rdx
		a.mem(0x8b, rsi, rsp, 8)                // mov: the vCPU's line
		a.emit(0x48, 0x85, 0xc0)                // test %rax, %rax
		skip = a.jcc(condNE)
	}
	a.mem(0x8b, rax, rcx, 8*instTramp)
	a.mem(0x89, rax, rdx, -1)
	a.emit(0x48, 0xff, 0x06) // incq handled
	a.emit(0x48, 0xff, 0xca) // dec %rdx
	a.mem(0x89, rdx, rcx, 8*instState)
	a.emit(0x5f, 0x5e, 0x5a, 0x59, 0xc3) // as above
	s := &Stage{Stack: 48, NoStrings: true, Block: g.cells(), Stride: lineSize, Lost: g.base + 8*wordLost, Counts: g.counts}
	if entry != nil {
		a.here(skip)
		a.emit(0x48, 0xc7, 0x01, 0, 0, 0, 0)     // movq $0, (%rcx)
		a.emit(0x48, 0xff, 0x46, 8*cellFiltered) // incq filtered
		a.movImm(rcx, uint64(g.base))
		a.emit(0xf0, 0x48, 0xff, 0x09) // lock decq (%rcx)
		a.jmpTo(out)
		a.align()
		a.here(call)
		for _, f := range entry.Fixups {
			s.Fixups = append(s.Fixups, Fixup{Fault: len(a.b) + f.Fault, Resume: len(a.b) + f.Resume})
		}
		a.emit(entry.Code...)
		s.Reads, s.NoStrings = entry.Reads, entry.NoStrings
		s.Stack += entry.Stack
	}
	s.Code = a.b
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
	const rax, rcx, rdx, rsi, rsp = insn.RAX, insn.RCX, insn.RDX, insn.RSI, insn.RSP
	a := asm{at: at}
	c := newStageFrame([]*Stage{x}, g.user)
	c.more = 8 * int32(max(0, bits.Len32(c.reads)-ctxSize/8))
	c.size = frameSize + c.more // the caller's red zone is what the function had above its own
	for i, r := range ctxRegs {
		if r == rcx || r == rdx {
			c.reads |= 1 << i
		}
	}
	c.enter(&a, 0)
	a.load(rax, c.size)      // number
	a.emit(0x48, 0x69, 0xc8) // imul $stride, %rax, %rcx
	a.imm32(int32(g.stride))
	a.movImm(rax, uint64(g.insts()))
	a.emit(0x48, 0x01, 0xc1)        // add %rax, %rcx
	a.mem(0x8d, rdx, rsp, c.size+8) // lea
	a.emit(0x48, 0x39, 0x11)        // cmp %rdx, (%rcx)
	stray := a.jcc(condNE)
	a.emit(0x48, 0x83, 0x09, stateBusy) // orq $1, (%rcx)
	if c.asked(ctxSP) {
		a.mem(0x8d, rax, rsp, c.size+16)
		a.store(rax, ctxSP)
	}
	if c.asked(ctxIP) {
		a.mem(0x8b, rax, rcx, 8*instRet)
		a.store(rax, ctxIP)
	}
	for off := int32(ctxSize); off < ctxSize+c.more; off += 8 {
		switch at := off - ctxSize; {
		case !c.asked(off):
		case at+8 <= int32(g.stride-lineSize):
			a.mem(0x8b, rax, rcx, lineSize+at)
			a.store(rax, off)
		default: // nothing was kept there
			a.emit(0x48, 0xc7, 0x84, 0x24) // movq $0, off(%rsp)
			a.imm32(off)
			a.imm32(0)
		}
	}
	a.emit(0x48, 0x89, 0xd0) // mov %rdx, %rax
	a.emit(0x48, 0x25)       // and $mask, %rax
	a.imm32(int32(g.prof.Mask))
	a.movImm(rsi, g.prof.Magic)
	a.mem(0x3b, rsi, rax, g.prof.MagicOff) // cmp
	unknown := a.jcc(condNE)
	a.emit(0x8b, 0x80) // mov off(%rax), %eax
	a.imm32(g.prof.CPUOff)
	a.emit(0x3d) // cmp $n, %eax
	a.imm32(int32(g.cpus))
	beyond := a.jcc(condAE)
	a.emit(0x48, 0x69, 0xf0) // imul $line, %rax, %rsi
	a.imm32(lineSize)
	a.movImm(rax, uint64(g.cells()))
	a.emit(0x48, 0x01, 0xc6)                // add %rax, %rsi
	a.emit(0x48, 0xff, 0x46, 8*cellReturns) // incq returns
	a.movImm(rax, uint64(g.base)+8*wordRun)
	a.emit(0x48, 0x83, 0x38, 0x00) // cmpq $0, (%rax)
	ended := a.jcc(condE)
	a.mem(0x8b, rsi, rsi, 8*cellReturnBlock)
	a.emit(0x48, 0x89, 0xe7)        // mov %rsp, %rdi
	a.mem(0x8d, rdx, rcx, lineSize) // lea
	a.emit(0xe8)                    // call
	a.imm32(0)
	call := len(a.b) - 4
	a.here(ended)
	done := a.pos()
	a.mem(0x8b, rax, rcx, 8*instRet)
	a.store(rax, c.size+8)
	a.emit(0x48, 0xc7, 0x01, 0, 0, 0, 0) // movq $0, (%rcx)
	a.movImm(rax, uint64(g.base))
	a.emit(0xf0, 0x48, 0xff, 0x08) // lock decq (%rax)
	a.load(rcx, ctxOffset(rcx))
	a.load(rdx, ctxOffset(rdx))
	c.leave(&a)
	if g.user {
		// A ret would take the processor's prediction of another one.
		a.emit(0x48, 0x8d, 0x64, 0x24, 0x10) // lea 16(%rsp), %rsp
		a.emit(0xff, 0x64, 0x24, 0xf8)       // jmp *-8(%rsp)
	} else {
		// An interrupt may come at any time, and uses what is below RSP.
		a.emit(0x48, 0x8d, 0x64, 0x24, 0x08) // lea 8(%rsp), %rsp
		a.emit(0xc3)                         // ret
	}
	a.here(unknown)
	a.here(beyond)
	a.movImm(rsi, uint64(g.cells()))
	a.emit(0xf0, 0x48, 0xff, 0x46, 8*cellReturns) // lock incq returns
	a.jmpTo(done)
	a.here(stray)
	a.load(rcx, ctxOffset(rcx))
	a.load(rdx, ctxOffset(rdx))
	c.leave(&a)
	g.exit = a.pos()
	a.emit(exit...)
	a.align()
	a.here(call)
	g.placed = []placedStage{{x.Code, x.Fixups, a.pos()}}
	a.emit(x.Code...)
	return a.b
}
