package probe

import (
	"math"
	"math/bits"
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// walkCode emits a routine of a detour that walks the interrupted stack, at a probe
// reported at ip whose code has the rule first: up to c.walk addresses go to the walk
// of the vCPU with the number in RAX. RAX becomes 0 if they are those that the host
// would find, and the vCPU's walk is then used until endWalk; else it becomes 1, and
// nothing has changed. RSI and RDI change.
//
// It reads the running task's stack alone, which is mapped, and where nothing else
// writes what the walk depends on; so it needs no fixups. NMIs and other exceptions of
// the interrupt stack table are on other stacks, where no walk begins: so none begins
// in the middle of another. A hit in a handler for a fault of an outer hit's stages, which
// use the vCPU's walk, does not walk.
func (c *stageFrame) walkCode(a *x86.Asm, w *walks, p *guest.Profile, ip guest.GVA, first uint32) {
	const pc, rule, count, sp, bp, walk, low = x86.RAX, x86.RDX, x86.RCX, x86.R8, x86.R9, x86.R10, x86.R11
	const cfa, tmp = x86.RDI, x86.RSI
	size := -p.StackMask // of stacks
	step, byRSP, kept, find, next, found, special := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	done, undo, no, out := a.NewLabel(), a.NewLabel(), a.NewLabel(), a.NewLabel()
	regs := []x86.Reg64{x86.RCX, x86.RDX, x86.R8, x86.R9, x86.R10, x86.R11}
	// inStack jumps to undo unless r is at most that far above the stack's lowest byte.
	inStack := func(r x86.Reg64, most uint64) {
		a.Mov(8, tmp, r)
		a.Sub(8, tmp, low)
		a.Cmp(8, tmp, x86.Imm(most))
		a.Jcc(x86.CondA, undo)
	}
	frame := func() {
		a.Movsx(8, 2, tmp, rule)
		a.Mov(8, cfa, sp)
		a.Test(4, rule, x86.Imm(walkByRBP))
		a.Jcc(x86.CondE, byRSP)
		a.Mov(8, cfa, bp)
		a.Place(byRSP)
		a.Add(8, cfa, tmp)
		a.Test(4, cfa, x86.Imm(7))
		a.Jcc(x86.CondNE, done)
	}
	for _, r := range regs {
		a.Push(r)
	}
	a.ImulImm(8, walk, pc, x86.Imm(walkStride))
	a.Mov(8, tmp, x86.Imm(uint64(w.at)))
	a.Add(8, walk, tmp)
	a.Lea(8, sp, x86.At(x86.RSP, 8*(len(regs)+1)+c.size))
	a.Mov(8, low, x86.AtGS(int(p.TaskOff)))
	a.Mov(8, low, x86.At(low, int(p.Faults.StackOff)))
	a.Mov(8, tmp, sp)
	a.Sub(8, tmp, low)
	a.Cmp(8, tmp, x86.Imm(size))
	a.Jcc(x86.CondAE, no)
	a.Cmp(8, x86.At(walk, walkUsed), x86.Imm(0))
	a.Jcc(x86.CondNE, no)
	a.Mov(8, x86.At(walk, walkUsed), x86.Imm(1))
	a.Mov(8, bp, x86.RBP)
	a.Mov(8, pc, x86.Imm(uint64(ip)))
	a.Mov(8, x86.At(walk, walkPCs), pc)
	a.Mov(4, count, x86.Imm(1))
	if c.walk == 1 {
		a.Jmp(done)
	}
	a.Mov(4, rule, x86.Imm(first))

	a.Place(step) // as guest.Frame.Caller does
	a.Test(4, rule, x86.Imm(walkOuter|walkTrap))
	a.Jcc(x86.CondNE, special)
	frame()
	a.Cmp(8, cfa, sp)
	a.Jcc(x86.CondBE, done)
	inStack(cfa, size)
	a.Mov(8, pc, x86.At(cfa, -8))
	a.Shr(4, rule, x86.Imm(walkRBPShift))
	a.Movsx(8, 1, rule, rule)
	a.Test(8, rule, rule)
	a.Jcc(x86.CondE, kept)
	a.Lea(8, rule, x86.AtIndex(cfa, rule, 8, 0))
	inStack(rule, size-8)
	a.Mov(8, bp, x86.At(rule, 0))
	a.Place(kept)
	a.Mov(8, sp, cfa)
	a.Lea(8, cfa, x86.At(pc, -1)) // guest.Frame.RuleAddr

	a.Place(find) // the rule for the address in cfa
	a.Cmp(8, cfa, x86.Imm(int32(math.MinInt32)))
	a.Jcc(x86.CondB, undo)
	a.ImulImm(4, tmp, cfa, x86.Imm(uint32(walkSpread)))
	a.Shr(4, tmp, x86.Imm(20))
	a.Shl(4, tmp, x86.Imm(bits.TrailingZeros(8*walkBucket)))
	a.Mov(8, rule, x86.Imm(uint64(w.tableAt)))
	a.Add(8, tmp, rule)
	a.Place(next)
	a.Mov(8, rule, x86.At(tmp, 0))
	a.Cmp(4, rule, cfa)
	a.Jcc(x86.CondE, found)
	a.Add(8, tmp, x86.Imm(8))
	a.Test(4, tmp, x86.Imm(8*walkBucket-1))
	a.Jcc(x86.CondNE, next)
	a.Place(undo)
	a.Mov(8, x86.At(walk, walkUsed), x86.Imm(0))
	a.Place(no)
	a.Mov(4, pc, x86.Imm(1))
	a.Jmp(out)

	a.Place(found)
	a.Shr(8, rule, x86.Imm(32))
	a.Mov(8, x86.AtIndex(walk, count, 8, walkPCs), pc)
	a.Inc(4, count)
	a.Cmp(4, count, x86.Imm(c.walk))
	a.Jcc(x86.CondNE, step)
	a.Place(done)
	a.Mov(8, x86.At(walk, walkCount), count)
	a.Mov(4, pc, x86.Imm(0))
	a.Place(out)
	for i := len(regs) - 1; i >= 0; i-- {
		a.Pop(regs[i])
	}
	a.Ret()

	a.Place(special)
	a.Test(4, rule, x86.Imm(walkOuter))
	a.Jcc(x86.CondNE, done)
	byRSP = a.NewLabel()
	frame()
	inStack(cfa, size-x86.PtRegsSize)
	a.Mov(4, tmp, x86.At(cfa, x86.PtCS))
	a.And(4, tmp, x86.Imm(3))
	a.Cmp(4, tmp, x86.Imm(3))
	a.Jcc(x86.CondE, done) // the user's stack follows
	a.Mov(8, pc, x86.At(cfa, x86.PtIP))
	a.Mov(8, sp, x86.At(cfa, x86.PtSP))
	a.Mov(8, bp, x86.At(cfa, x86.PtBP))
	inStack(sp, size)
	a.Mov(8, cfa, pc)
	a.Jmp(find)
}

// endWalk emits: the stages of the hit have used the walk of the vCPU with the number
// in the context. RAX and RSI change.
func (c *stageFrame) endWalk(a *x86.Asm, w *walks) {
	const rax, rsi = x86.RAX, x86.RSI
	a.Mov(8, rax, x86.At(x86.RSP, scratchCPU))
	a.ImulImm(8, rsi, rax, x86.Imm(walkStride))
	a.Mov(8, rax, x86.Imm(uint64(w.at)))
	a.Add(8, rsi, rax)
	a.Mov(8, x86.At(rsi, walkUsed), x86.Imm(0))
}

// walkable reports whether the detour of st can walk the stack, if one of stages needs
// that.
func (o *optimizer) walkable(st *site, stages []*Stage) bool {
	if !slices.ContainsFunc(stages, func(x *Stage) bool { return x.Walk > 0 }) {
		return true
	}
	ip, _ := st.reportedAddr()
	_, err := o.firstRule(ip)
	return err == nil && !st.user && o.walks.Load() != nil
}
