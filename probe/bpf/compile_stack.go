package bpf

import (
	"fmt"
	"math/bits"

	"github.com/guestprobe/guestprobe/probe/insn"
)

const (
	maxHops   = 1 << 8 // trampolines that stand for each other
	headWords = 4      // of Trampolines
)

// walkOff is where a run block has room for a stack that is walked.
func (p *Program) walkOff() int { return p.localOff(len(p.maps)) }

// stackHelper emits get_stack and get_stackid, of code that has frames.
func (c *compiler) stackHelper(pc int, h Helper) error {
	f := c.facts[pc].call
	flags, size := f.known[R4], f.known[R3]
	if h == HelperGetStackID {
		flags = f.known[R3]
	}
	l := c.layout.Frames
	switch {
	case l == nil || !c.layout.Fixups || !c.p.kind.hasRegs():
		return &HostOnlyError{pc, h, needsFrames}
	case flags.ok && flags.v&StackUnwind != 0:
		return &HostOnlyError{pc, h, "walks by unwind data, as is asked for"}
	case !flags.ok || flags.v&^(stackUser|StackFiles|StackNear) != 0:
		return &HostOnlyError{pc, h, "has flags that only the host's walk has"}
	case !l.User && flags.v&stackUser != 0:
		return &HostOnlyError{pc, h, "walks from the kernel to the code that called it"}
	case h == HelperGetStack && (!size.ok || size.v == 0 || size.v%8 != 0):
		return &HostOnlyError{pc, h, "has no certain size"}
	}
	none := l.User && flags.v&stackUser == 0 // user code has no stack of the kernel's
	if h == HelperGetStack {
		c.region(pc, R2, int(size.v), 0, true)
		c.walk(int(size.v)/8, none)
		end, clear, bad := c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.Mov(8, insn.RAX, insn.RCX)
		c.Place(clear)
		c.Cmp(4, insn.RAX, imm(int(size.v)/8))
		c.Jcc(insn.CondE, end)
		c.Mov(8, insn.AtIndex(tmp9, insn.RAX, 8, 0), imm(0))
		c.Add(8, insn.RAX, imm(1))
		c.Jmp(clear)
		c.Place(end)
		c.result(errFault)
		c.Test(8, insn.RCX, insn.RCX)
		c.Jcc(insn.CondE, bad)
		c.Mov(8, insn.RAX, insn.RCX)
		c.Shl(8, insn.RAX, imm(3))
		c.Place(bad)
		return nil
	}
	m, i, err := c.mapOf(pc, h)
	if err != nil {
		return err
	}
	c.Lea(8, tmp9, insn.At(c.blk, c.p.walkOff()))
	c.walk(int(m.spec.ValueSize)/8, none)
	done := c.NewLabel()
	c.result(errFault)
	c.Test(8, insn.RCX, insn.RCX)
	c.Jcc(insn.CondE, done)
	c.Call(c.keepStackRoutine(m, i, flags.v&StackNear != 0))
	c.Place(done)
	return nil
}

// walk emits RCX = how many addresses of the stack, at most limit, are at R9.
func (c *compiler) walk(limit int, none bool) {
	if none {
		c.set(insn.RCX, 0)
		return
	}
	c.set(insn.RSI, uint64(min(limit, maxPCs)))
	c.Call(c.walkRoutine())
}

// walkRoutine is a routine: the addresses of the interrupted stack, at most RSI, go to R9; RCX
// becomes how many they are, 0 where that cannot be said. It goes as the host does
// (probe.Context.Stack). RAX, RDX, RDI, R8, R10 and R11 change.
//
// RAX is where a frame's code stands, R8 its RSP and RDX its RBP.
func (c *compiler) walkRoutine() insn.Label {
	const pc, bp, sp, cfa = insn.RAX, insn.RDX, insn.R8, tmpA
	return c.routine("walk", func() {
		l, hops := c.layout.Frames, insn.At(c.blk, tmpSpin)
		step, kept, text, found, end, lost := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.set(insn.RCX, 0)
		c.info.ContextReads |= 1<<(insn.PtSP/8) | 1<<(insn.PtBP/8)
		ctx := c.context(tmpB)
		c.Mov(8, sp, insn.At(ctx, insn.PtSP))
		c.Mov(8, bp, insn.At(ctx, insn.PtBP))
		if c.p.kind.AtReturn() {
			c.info.ContextReads |= 1 << (insn.PtIP / 8)
			c.Mov(8, pc, insn.At(ctx, insn.PtIP))
			// Where the call returns to, which is no text only if no walk can go on from there.
			again, first := c.NewLabel(), c.NewLabel()
			c.Mov(4, hops, imm(maxHops))
			c.Place(again)
			c.standIn(pc, first, lost)
			c.Sub(4, hops, imm(1))
			c.Jcc(insn.CondNE, again)
			c.Place(first)
			c.Mov(8, insn.At(tmp9, 0), pc)
			c.set(insn.RCX, 1)
			c.Cmp(4, insn.RSI, imm(1))
			c.Jcc(insn.CondE, end)
			c.rules(l.Returns, step, end)
		} else {
			c.Mov(8, cfa, insn.At(c.blk, blkFrameBase))
			c.Cmp(4, cfa, imm(frameBad))
			c.Jcc(insn.CondE, lost)
			c.Mov(8, pc, insn.At(c.blk, blkFramePC))
			c.Mov(8, insn.At(tmp9, 0), pc)
			c.set(insn.RCX, 1)
			c.Cmp(4, insn.RSI, imm(1))
			c.Jcc(insn.CondE, end)
			c.Cmp(4, cfa, imm(frameOuter))
			c.Jcc(insn.CondE, end)
			byRSP := c.NewLabel()
			c.Cmp(4, cfa, imm(frameRSP))
			c.Mov(8, cfa, sp)
			c.Jcc(insn.CondE, byRSP)
			c.Mov(8, cfa, bp)
			c.Place(byRSP)
			c.Add(8, cfa, insn.At(c.blk, blkFrameCFA))
			c.Mov(8, insn.RDI, insn.At(c.blk, blkFrameRBP))
		}

		c.Place(step) // to the caller, whose RSP is in R10; RDI says where its RBP is
		c.Test(4, cfa, imm(7))
		c.Jcc(insn.CondNE, end)
		c.Mov(8, pc, cfa)
		c.Sub(8, pc, sp)
		c.Jcc(insn.CondBE, end) // stacks grow down
		c.Cmp(8, pc, imm(l.Longest))
		c.Jcc(insn.CondA, end)
		c.guestLoad(8, pc, insn.At(cfa, -8), end)
		c.Test(8, insn.RDI, insn.RDI)
		c.Jcc(insn.CondE, kept)
		c.guestLoad(8, bp, insn.AtIndex(cfa, insn.RDI, 1, 0), end)
		c.Place(kept)
		c.Mov(8, sp, cfa)
		c.Mov(4, hops, imm(maxHops))
		c.Place(text)
		for _, r := range l.Text {
			c.within(pc, r)
			c.Jcc(insn.CondB, found)
		}
		c.Sub(4, hops, imm(1))
		c.Jcc(insn.CondS, end)
		c.standIn(pc, end, lost)
		c.Jmp(text)
		c.Place(found)
		c.Mov(8, insn.AtIndex(tmp9, insn.RCX, 8, 0), pc)
		c.Add(4, insn.RCX, imm(1))
		c.Cmp(4, insn.RCX, insn.RSI)
		c.Jcc(insn.CondE, end)
		c.rules(l.Calls, step, end)
		c.Place(lost)
		c.set(insn.RCX, 0)
		c.Place(end)
		c.Ret()
	})
}

// within emits the comparison whether r is in the range: below. R10 and R11 change.
func (c *compiler) within(r reg64, x Range) {
	c.set(tmpB, x.Start)
	c.Mov(8, tmpA, r)
	c.Sub(8, tmpA, tmpB)
	c.set(tmpB, x.End-x.Start)
	c.Cmp(8, tmpA, tmpB)
}

// standIn emits: pc becomes what the trampoline there stands for. It jumps to none
// where none is, and to lost where that is not known. RDI, R10 and R11 change.
func (c *compiler) standIn(pc reg64, none, lost insn.Label) {
	t := c.layout.Frames.Trampolines
	head := func(n int) insn.Mem { return insn.At(tmpA, 8*(n-headWords)) }
	c.Test(4, pc, imm(t.Size-1))
	c.Jcc(insn.CondNE, none)
	c.within(pc, t.Near)
	c.Jcc(insn.CondAE, none)
	c.mayFault(none)
	c.Cmp(1, insn.At(pc, t.Jump), imm(insn.JmpOp-256))
	c.Jcc(insn.CondNE, none)
	c.mayFault(none)
	c.Movsx(8, 4, tmpA, insn.At(pc, t.Jump+1))
	c.Lea(8, tmpA, insn.AtIndex(tmpA, pc, 1, t.Jump+insn.JmpLen))
	c.set(tmpB, t.Magic)
	c.mayFault(none)
	c.Cmp(8, head(0), tmpB)
	c.Jcc(insn.CondNE, none)
	c.Mov(8, tmpB, pc)
	c.mayFault(none)
	c.Sub(8, tmpB, head(3))
	c.Test(4, tmpB, imm(t.Size-1))
	c.Jcc(insn.CondNE, none)
	c.Shr(8, tmpB, imm(bits.TrailingZeros(uint(t.Size))))
	c.guestLoad(4, insn.RDI, head(2).Plus(4), none)
	c.Cmp(8, tmpB, insn.RDI)
	c.Jcc(insn.CondAE, none)
	c.guestLoad(4, insn.RDI, head(2), none)
	c.Imul(8, tmpB, insn.RDI)
	c.guestLoad(8, insn.RDI, head(1), none)
	c.Test(8, insn.RDI, insn.RDI)
	c.Jcc(insn.CondE, lost)
	c.guestLoad(8, insn.RDI, insn.AtIndex(insn.RDI, tmpB, 1, 0), lost)
	c.Test(8, insn.RDI, insn.RDI)
	c.Jcc(insn.CondE, none)
	c.Mov(8, pc, insn.RDI)
}

// rules emits, by binary search among those of all where not every address has the rule of
// frame pointers, the rule of the code at RAX: R10 = the caller's RSP and RDI = where its RBP is
// from there, and a jump to step, or one to outer.
func (c *compiler) rules(all []FrameAt, step, outer insn.Label) {
	apply := func(r FrameRule) {
		if r.Outer {
			c.Jmp(outer)
			return
		}
		base := insn.R8
		if r.FromRBP {
			base = insn.RDX
		}
		c.Lea(8, tmpA, insn.At(base, int(r.CFA)))
		c.Mov(8, insn.RDI, imm(r.RBP))
		c.Jmp(step)
	}
	var search func(all []FrameAt)
	search = func(all []FrameAt) {
		if len(all) == 0 {
			apply(byPointer)
			return
		}
		n := len(all) / 2
		above, same := c.NewLabel(), c.NewLabel()
		c.set(tmpA, all[n].PC)
		c.Cmp(8, insn.RAX, tmpA)
		c.Jcc(insn.CondE, same)
		c.Jcc(insn.CondA, above)
		search(all[:n])
		c.Place(same)
		apply(all[n].FrameRule)
		c.Place(above)
		search(all[n+1:])
	}
	search(all)
}

// keepStackRoutine is a routine for one map: the stack of RCX addresses, at least one, at R9 is put
// into it. RAX becomes its number, or an errno. It is Map.keepStack, step by step, for
// stacks that are not taken for the same. RDX, RSI, RDI, R8, R10 and R11 change.
func (c *compiler) keepStackRoutine(m *Map, i int, near bool) insn.Label {
	return c.routine(fmt.Sprintf("keep stack %d %t", i, near), func() {
		try, again, other, claim := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		returns := c.errnoReturns()
		each := func(body func()) {
			loop := c.NewLabel()
			c.set(insn.RSI, 0)
			c.Place(loop)
			body()
			c.Add(8, insn.RSI, imm(1))
			c.Cmp(8, insn.RSI, insn.RCX)
			c.Jcc(insn.CondNE, loop)
		}
		mine := insn.AtIndex(tmp9, insn.RSI, 8, 0)
		value := func() {
			c.ImulImm(8, insn.RDI, tmpA, imm(m.stride))
			c.set(insn.RAX, m.area.Addr+uint64(m.values))
			c.Add(8, insn.RDI, insn.RAX)
		}
		word := func() insn.Mem {
			c.words(m, insn.RDI)
			return insn.AtIndex(insn.RDI, tmpA, 8, 0)
		}
		// R8: the hash, R10: the number, R11: the state word.
		c.set(insn.RDX, hashMul)
		c.Mov(8, insn.R8, insn.RCX)
		c.Shl(8, insn.R8, imm(3))
		c.Imul(8, insn.R8, insn.RDX)
		each(func() {
			c.Xor(8, insn.R8, mine)
			c.Imul(8, insn.R8, insn.RDX)
			c.Mov(8, insn.RAX, insn.R8)
			c.Shr(8, insn.RAX, imm(32))
			c.Xor(8, insn.R8, insn.RAX)
		})
		c.Imul(8, insn.R8, insn.RDX)
		c.Shr(8, insn.R8, imm(32))
		c.Mov(8, tmpA, insn.R8)
		c.And(4, tmpA, imm(m.entries-1))
		c.Mov(8, tmpB, insn.R8)
		c.Shl(8, tmpB, imm(24))
		c.Or(8, tmpB, insn.RCX)
		c.Shl(8, tmpB, imm(8))
		c.Or(8, tmpB, imm(stackThere))
		c.Mov(4, insn.At(c.blk, tmpTries), imm(guestTries))
		c.Mov(4, insn.At(c.blk, tmpPos), imm(stackWindow))
		c.Place(try)
		c.Sub(4, insn.At(c.blk, tmpTries), imm(1))
		c.Jcc(insn.CondS, returns(errBusy))
		c.Mov(8, insn.RAX, word())
		c.Cmp(8, insn.RAX, imm(stackWriting))
		c.Jcc(insn.CondB, claim)
		c.Jcc(insn.CondE, again)
		c.Cmp(8, insn.RAX, tmpB)
		c.Jcc(insn.CondNE, other)
		value()
		each(func() {
			c.Mov(8, insn.RAX, insn.AtIndex(insn.RDI, insn.RSI, 8, 0))
			c.Cmp(8, insn.RAX, mine)
			c.Jcc(insn.CondNE, other)
		})
		c.Mov(8, insn.RAX, tmpA)
		c.Ret()

		c.Place(other)
		if !near {
			c.Jmp(returns(errExist))
		} else {
			c.Sub(4, insn.At(c.blk, tmpPos), imm(1))
			c.Jcc(insn.CondE, returns(errExist))
			c.Add(4, tmpA, imm(1))
			c.And(4, tmpA, imm(m.entries-1))
			c.Jmp(try)
		}

		c.Place(claim)
		c.set(insn.RDX, stackWriting)
		at := word()
		c.set(insn.RAX, stackNone)
		c.Lock().Cmpxchg(8, at, insn.RDX)
		c.Jcc(insn.CondNE, again)
		value()
		each(func() {
			c.Mov(8, insn.RAX, mine)
			c.Mov(8, insn.AtIndex(insn.RDI, insn.RSI, 8, 0), insn.RAX)
		})
		zero, full := c.NewLabel(), c.NewLabel()
		c.Place(zero)
		c.Cmp(8, insn.RSI, imm(m.stride/8))
		c.Jcc(insn.CondE, full)
		c.Mov(8, insn.AtIndex(insn.RDI, insn.RSI, 8, 0), imm(0))
		c.Add(8, insn.RSI, imm(1))
		c.Jmp(zero)
		c.Place(full)
		c.Mov(8, word(), tmpB)
		c.Mov(8, insn.RAX, tmpA)
		c.Ret()
		c.Place(again)
		c.Pause()
		c.Jmp(try)
	})
}
