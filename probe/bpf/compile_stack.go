package bpf

import (
	"fmt"
	"math/bits"

	"github.com/guestprobe/guestprobe/guest/x86"
)

const (
	maxHops   = 1 << 8 // trampolines that replace each other's addresses
	headWords = 4      // of Trampolines
)

// walkOff is where a run block has room for a stack walk.
func (p *Program) walkOff() int { return p.localOff(len(p.maps)) }

// stackHelper emits get_stack and get_stackid, for code with frames.
func (c *compiler) stackHelper(pc int, h Helper) error {
	known := &c.facts[pc].call.known
	flags := known[R4]
	if h == HelperGetStackID {
		flags = known[R3]
	}
	l := c.layout.Frames
	switch {
	case c.layout.Walked:
		if err := needWalk(pc, h, flags); err != nil {
			return err
		}
	case l == nil || !c.layout.Fixups || !c.p.kind.hasRegs():
		return &HostOnlyError{pc, h, needsFrames}
	case flags.ok && flags.v&StackUnwind != 0:
		return &HostOnlyError{pc, h, "walks by unwind data, as is asked for"}
	case !flags.ok || flags.v&^(stackUser|StackFiles|StackNear) != 0:
		return &HostOnlyError{pc, h, hostFlags}
	case !l.User && flags.v&stackUser != 0:
		return &HostOnlyError{pc, h, walksToUser}
	}
	none := l != nil && l.User && flags.v&stackUser == 0 // user code has no kernel stack
	if h == HelperGetStack {
		return c.getStack(pc, flags.v, known[R3], none)
	}
	m, i, err := c.mapOf(pc, h)
	if err != nil {
		return err
	}
	if limit := int(m.spec.ValueSize) / 8; c.layout.Walked {
		c.stacks.findWalked(tmp9, limit, int(flags.v&stackSkip))
	} else {
		c.Lea(8, tmp9, x86.At(c.blk, c.p.walkOff()))
		c.stacks.walk(limit, none)
	}
	done := c.NewLabel()
	c.result(errFault)
	c.Test(8, x86.RCX, x86.RCX)
	c.Jcc(x86.CondE, done)
	c.Call(c.stacks.keepStackRoutine(m, i, flags.v&StackNear != 0))
	c.Place(done)
	return nil
}

// getStack emits get_stack; none says that there is no such stack.
func (c *compiler) getStack(pc int, flags uint64, size constArg, none bool) error {
	if !size.ok || size.v == 0 || size.v%8 != 0 {
		return &HostOnlyError{pc, HelperGetStack, "has no certain size"}
	}
	limit := int(size.v) / 8
	c.region(pc, R2, int(size.v), 0, true)
	if c.layout.Walked {
		c.stacks.copyWalked(limit, int(flags&stackSkip))
	} else {
		c.stacks.walk(limit, none)
	}
	end, clear, bad := c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.Mov(8, x86.RAX, x86.RCX)
	c.Place(clear)
	c.Cmp(4, x86.RAX, imm(limit))
	c.Jcc(x86.CondE, end)
	c.Mov(8, x86.AtIndex(tmp9, x86.RAX, 8, 0), imm(0))
	c.Add(8, x86.RAX, imm(1))
	c.Jmp(clear)
	c.Place(end)
	if !c.layout.Walked { // otherwise the stack is known, if not the part of it
		c.result(errFault)
		c.Test(8, x86.RCX, x86.RCX)
		c.Jcc(x86.CondE, bad)
	}
	c.Mov(8, x86.RAX, x86.RCX)
	c.Shl(8, x86.RAX, imm(3))
	c.Place(bad)
	return nil
}

// Reasons why only the host can walk.
const (
	hostFlags   = "has flags that only the host's walk has"
	walksToUser = "walks from the kernel to the code that called it"
)

// needWalk reports why a stack that was walked before (Layout.Walked) is not enough.
func needWalk(pc int, h Helper, flags constArg) error {
	switch {
	case !flags.ok || flags.v&^(stackSkip|stackUser|StackFiles|StackNear|StackUnwind) != 0, h == HelperGetStack && flags.v&StackNear != 0:
		return &HostOnlyError{pc, h, hostFlags}
	case flags.v&stackUser != 0:
		return &HostOnlyError{pc, h, walksToUser}
	}
	return nil
}

// findWalked emits: r = address of the addresses of the interrupted code's stack from
// the one after skip on, and RCX = their number, at most limit.
func (c stackCoder) findWalked(r reg64, limit, skip int) {
	limit = min(limit, maxPCs)
	c.info.Walk = max(c.info.Walk, skip+limit)
	some, few := c.NewLabel(), c.NewLabel()
	c.Mov(8, r, x86.At(c.blk, blkWalk))
	c.Mov(4, x86.RCX, x86.At(r, 0))
	if skip > 0 {
		c.Sub(4, x86.RCX, imm(skip))
		c.Jcc(x86.CondNS, some)
		c.set(x86.RCX, 0)
		c.Place(some)
	}
	c.Add(8, r, imm(8+8*skip))
	c.Cmp(4, x86.RCX, imm(limit))
	c.Jcc(x86.CondBE, few)
	c.set(x86.RCX, uint64(limit))
	c.Place(few)
}

// copyWalked emits: up to limit addresses of the interrupted code's stack, from the one
// after skip on, go to R9, and RCX = their number. RAX, RSI and R10 change.
func (c stackCoder) copyWalked(limit, skip int) {
	next, end := c.NewLabel(), c.NewLabel()
	c.findWalked(tmpA, limit, skip)
	c.set(x86.RSI, 0)
	c.Place(next)
	c.Cmp(8, x86.RSI, x86.RCX)
	c.Jcc(x86.CondE, end)
	c.Mov(8, x86.RAX, x86.AtIndex(tmpA, x86.RSI, 8, 0))
	c.Mov(8, x86.AtIndex(tmp9, x86.RSI, 8, 0), x86.RAX)
	c.Add(8, x86.RSI, imm(1))
	c.Jmp(next)
	c.Place(end)
}

// stackCoder emits walks of the interrupted stack, and the storing of stacks in maps.
type stackCoder struct {
	*coder
	atReturn bool // the program runs where a call returns
}

// walk emits: up to limit addresses of the stack go to R9, and RCX = their number.
func (c stackCoder) walk(limit int, none bool) {
	if none {
		c.set(x86.RCX, 0)
		return
	}
	c.set(x86.RSI, uint64(min(limit, maxPCs)))
	c.Call(c.walkRoutine())
}

// walkRoutine is a routine: up to RSI addresses of the interrupted stack go to R9;
// RCX becomes their number, 0 if it cannot be determined. It walks as the host does
// (probe.Context.Stack). RAX, RDX, RDI, R8, R10 and R11 change.
//
// RAX is the code address of a frame, R8 its RSP and RDX its RBP.
func (c stackCoder) walkRoutine() x86.Label {
	const pc, bp, sp, cfa = x86.RAX, x86.RDX, x86.R8, tmpA
	return c.routine("walk", func() {
		l, hops := c.layout.Frames, x86.At(c.blk, tmpSpin)
		step, kept, text, found, end, lost := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		c.set(x86.RCX, 0)
		c.info.ContextReads |= 1<<(x86.PtSP/8) | 1<<(x86.PtBP/8)
		ctx := c.context(tmpB)
		c.Mov(8, sp, x86.At(ctx, x86.PtSP))
		c.Mov(8, bp, x86.At(ctx, x86.PtBP))
		if c.atReturn {
			c.info.ContextReads |= 1 << (x86.PtIP / 8)
			c.Mov(8, pc, x86.At(ctx, x86.PtIP))
			// The address that the call returns to is outside of text only if no walk
			// can continue from there.
			again, first := c.NewLabel(), c.NewLabel()
			c.Mov(4, hops, imm(maxHops))
			c.Place(again)
			c.resolveTrampoline(pc, first, lost)
			c.Sub(4, hops, imm(1))
			c.Jcc(x86.CondNE, again)
			c.Place(first)
			c.Mov(8, x86.At(tmp9, 0), pc)
			c.set(x86.RCX, 1)
			c.Cmp(4, x86.RSI, imm(1))
			c.Jcc(x86.CondE, end)
			c.rules(l.Returns, step, end)
		} else {
			c.Mov(8, cfa, x86.At(c.blk, blkFrameBase))
			c.Cmp(4, cfa, imm(frameBad))
			c.Jcc(x86.CondE, lost)
			c.Mov(8, pc, x86.At(c.blk, blkFramePC))
			c.Mov(8, x86.At(tmp9, 0), pc)
			c.set(x86.RCX, 1)
			c.Cmp(4, x86.RSI, imm(1))
			c.Jcc(x86.CondE, end)
			c.Cmp(4, cfa, imm(frameOuter))
			c.Jcc(x86.CondE, end)
			byRSP := c.NewLabel()
			c.Cmp(4, cfa, imm(frameRSP))
			c.Mov(8, cfa, sp)
			c.Jcc(x86.CondE, byRSP)
			c.Mov(8, cfa, bp)
			c.Place(byRSP)
			c.Add(8, cfa, x86.At(c.blk, blkFrameCFA))
			c.Mov(8, x86.RDI, x86.At(c.blk, blkFrameRBP))
		}

		c.Place(step) // to the caller, whose RSP is in R10; RDI is the offset of its RBP
		c.Test(4, cfa, imm(7))
		c.Jcc(x86.CondNE, end)
		c.Mov(8, pc, cfa)
		c.Sub(8, pc, sp)
		c.Jcc(x86.CondBE, end) // stacks grow down
		c.Cmp(8, pc, imm(l.Longest))
		c.Jcc(x86.CondA, end)
		c.guestLoad(8, pc, x86.At(cfa, -8), end)
		c.Test(8, x86.RDI, x86.RDI)
		c.Jcc(x86.CondE, kept)
		c.guestLoad(8, bp, x86.AtIndex(cfa, x86.RDI, 1, 0), end)
		c.Place(kept)
		c.Mov(8, sp, cfa)
		c.Mov(4, hops, imm(maxHops))
		c.Place(text)
		for _, r := range l.Text {
			c.compareRange(pc, r)
			c.Jcc(x86.CondB, found)
		}
		c.Sub(4, hops, imm(1))
		c.Jcc(x86.CondS, end)
		c.resolveTrampoline(pc, end, lost)
		c.Jmp(text)
		c.Place(found)
		c.Mov(8, x86.AtIndex(tmp9, x86.RCX, 8, 0), pc)
		c.Add(4, x86.RCX, imm(1))
		c.Cmp(4, x86.RCX, x86.RSI)
		c.Jcc(x86.CondE, end)
		c.rules(l.Calls, step, end)
		c.Place(lost)
		c.set(x86.RCX, 0)
		c.Place(end)
		c.Ret()
	})
}

// compareRange emits the comparison whether r is in the range: below. R10 and R11 change.
func (c stackCoder) compareRange(r reg64, x Range) {
	c.set(tmpB, x.Start)
	c.Mov(8, tmpA, r)
	c.Sub(8, tmpA, tmpB)
	c.set(tmpB, x.End-x.Start)
	c.Cmp(8, tmpA, tmpB)
}

// resolveTrampoline emits: pc becomes the address that the trampoline there replaces.
// It jumps to none if there is no trampoline, and to lost if that address is not
// known. RDI, R10 and R11 change.
func (c stackCoder) resolveTrampoline(pc reg64, none, lost x86.Label) {
	t := c.layout.Frames.Trampolines
	head := func(n int) x86.Mem { return x86.At(tmpA, 8*(n-headWords)) }
	c.Test(4, pc, imm(t.Size-1))
	c.Jcc(x86.CondNE, none)
	c.compareRange(pc, t.Near)
	c.Jcc(x86.CondAE, none)
	c.addFixup(none)
	c.Cmp(1, x86.At(pc, t.Jump), imm(x86.JmpOp-256))
	c.Jcc(x86.CondNE, none)
	c.addFixup(none)
	c.Movsx(8, 4, tmpA, x86.At(pc, t.Jump+1))
	c.Lea(8, tmpA, x86.AtIndex(tmpA, pc, 1, t.Jump+x86.JmpLen))
	c.set(tmpB, t.Magic)
	c.addFixup(none)
	c.Cmp(8, head(0), tmpB)
	c.Jcc(x86.CondNE, none)
	c.Mov(8, tmpB, pc)
	c.addFixup(none)
	c.Sub(8, tmpB, head(3))
	c.Test(4, tmpB, imm(t.Size-1))
	c.Jcc(x86.CondNE, none)
	c.Shr(8, tmpB, imm(bits.TrailingZeros(uint(t.Size))))
	c.guestLoad(4, x86.RDI, head(2).Plus(4), none)
	c.Cmp(8, tmpB, x86.RDI)
	c.Jcc(x86.CondAE, none)
	c.guestLoad(4, x86.RDI, head(2), none)
	c.Imul(8, tmpB, x86.RDI)
	c.guestLoad(8, x86.RDI, head(1), none)
	c.Test(8, x86.RDI, x86.RDI)
	c.Jcc(x86.CondE, lost)
	c.guestLoad(8, x86.RDI, x86.AtIndex(x86.RDI, tmpB, 1, 0), lost)
	c.Test(8, x86.RDI, x86.RDI)
	c.Jcc(x86.CondE, none)
	c.Mov(8, pc, x86.RDI)
}

// rules emits a binary search for the rule of the code at RAX, if not every address
// has the rule of frame pointers: R10 = the caller's RSP, RDI = the offset of its RBP
// from there, and a jump to step, or one to outer.
func (c stackCoder) rules(all []FrameAt, step, outer x86.Label) {
	apply := func(r FrameRule) {
		if r.Outer {
			c.Jmp(outer)
			return
		}
		base := x86.R8
		if r.FromRBP {
			base = x86.RDX
		}
		c.Lea(8, tmpA, x86.At(base, int(r.CFA)))
		c.Mov(8, x86.RDI, imm(r.RBP))
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
		c.Cmp(8, x86.RAX, tmpA)
		c.Jcc(x86.CondE, same)
		c.Jcc(x86.CondA, above)
		search(all[:n])
		c.Place(same)
		apply(all[n].FrameRule)
		c.Place(above)
		search(all[n+1:])
	}
	search(all)
}

// keepStackRoutine is a routine for one map: it stores the stack of RCX addresses, at
// least one, at R9 in it. RAX becomes its number, or an errno. It is Map.keepStack,
// step by step, without stackFast. RDX, RSI, RDI, R8, R10 and R11 change.
func (c stackCoder) keepStackRoutine(m *Map, i int, near bool) x86.Label {
	return c.routine(fmt.Sprintf("keep stack %d %t", i, near), func() {
		try, again, other, claim := c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
		returns := c.errnoReturns()
		each := func(body func()) {
			loop := c.NewLabel()
			c.set(x86.RSI, 0)
			c.Place(loop)
			body()
			c.Add(8, x86.RSI, imm(1))
			c.Cmp(8, x86.RSI, x86.RCX)
			c.Jcc(x86.CondNE, loop)
		}
		mine := x86.AtIndex(tmp9, x86.RSI, 8, 0)
		value := func() {
			c.ImulImm(8, x86.RDI, tmpA, imm(m.stride))
			c.set(x86.RAX, m.area.Addr+uint64(m.values))
			c.Add(8, x86.RDI, x86.RAX)
		}
		word := func() x86.Mem {
			c.words(m, x86.RDI)
			return x86.AtIndex(x86.RDI, tmpA, 8, 0)
		}
		// R8: the hash, R10: the number, R11: the state word.
		c.set(x86.RDX, hashMul)
		c.Mov(8, x86.R8, x86.RCX)
		c.Shl(8, x86.R8, imm(3))
		c.Imul(8, x86.R8, x86.RDX)
		each(func() {
			c.Xor(8, x86.R8, mine)
			c.Imul(8, x86.R8, x86.RDX)
			c.Mov(8, x86.RAX, x86.R8)
			c.Shr(8, x86.RAX, imm(32))
			c.Xor(8, x86.R8, x86.RAX)
		})
		c.Imul(8, x86.R8, x86.RDX)
		c.Shr(8, x86.R8, imm(32))
		c.Mov(8, tmpA, x86.R8)
		c.And(4, tmpA, imm(m.entries-1))
		c.Mov(8, tmpB, x86.R8)
		c.Shl(8, tmpB, imm(24))
		c.Or(8, tmpB, x86.RCX)
		c.Shl(8, tmpB, imm(8))
		c.Or(8, tmpB, imm(stackThere))
		c.Mov(4, x86.At(c.blk, tmpTries), imm(guestTries))
		c.Mov(4, x86.At(c.blk, tmpPos), imm(stackWindow))
		c.Place(try)
		c.Sub(4, x86.At(c.blk, tmpTries), imm(1))
		c.Jcc(x86.CondS, returns(errBusy))
		c.Mov(8, x86.RAX, word())
		c.Cmp(8, x86.RAX, imm(stackWriting))
		c.Jcc(x86.CondB, claim)
		c.Jcc(x86.CondE, again)
		c.Cmp(8, x86.RAX, tmpB)
		c.Jcc(x86.CondNE, other)
		value()
		each(func() {
			c.Mov(8, x86.RAX, x86.AtIndex(x86.RDI, x86.RSI, 8, 0))
			c.Cmp(8, x86.RAX, mine)
			c.Jcc(x86.CondNE, other)
		})
		c.Mov(8, x86.RAX, tmpA)
		c.Ret()

		c.Place(other)
		if !near {
			c.Jmp(returns(errExist))
		} else {
			c.Sub(4, x86.At(c.blk, tmpPos), imm(1))
			c.Jcc(x86.CondE, returns(errExist))
			c.Add(4, tmpA, imm(1))
			c.And(4, tmpA, imm(m.entries-1))
			c.Jmp(try)
		}

		c.Place(claim)
		c.set(x86.RDX, stackWriting)
		at := word()
		c.set(x86.RAX, stackNone)
		c.Lock().Cmpxchg(8, at, x86.RDX)
		c.Jcc(x86.CondNE, again)
		value()
		each(func() {
			c.Mov(8, x86.RAX, mine)
			c.Mov(8, x86.AtIndex(x86.RDI, x86.RSI, 8, 0), x86.RAX)
		})
		zero, full := c.NewLabel(), c.NewLabel()
		c.Place(zero)
		c.Cmp(8, x86.RSI, imm(m.stride/8))
		c.Jcc(x86.CondE, full)
		c.Mov(8, x86.AtIndex(x86.RDI, x86.RSI, 8, 0), imm(0))
		c.Add(8, x86.RSI, imm(1))
		c.Jmp(zero)
		c.Place(full)
		c.Mov(8, word(), tmpB)
		c.Mov(8, x86.RAX, tmpA)
		c.Ret()
		c.Place(again)
		c.Pause()
		c.Jmp(try)
	})
}
