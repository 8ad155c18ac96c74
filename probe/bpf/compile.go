package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Registers for single operations. R0 is in RAX; the plan has the places of the
// others.
const (
	tmp9 = x86.R9
	tmpA = x86.R10
	tmpB = x86.R11
)

// Info describes compiled code.
type Info struct {
	// Fixups are the instructions that read guest memory. If one of them faults (#PF,
	// #GP), the fault is not the guest's: the vCPU resumes at Resume with nothing
	// else changed.
	Fixups []Fixup
	// MachineStack is the most bytes of the interrupted code's stack that the code
	// uses, return address included.
	MachineStack int
	// ContextReads has bit n set if the 8 bytes at 8n of the context may be read: the
	// detour must save only these. All bits are set if an access could not be
	// determined in advance.
	ContextReads uint32
	// OwnStack says that the program's stack is part of the interrupted code's, not
	// of the block.
	OwnStack bool
	// Small says that additionally no run can fail.
	Small bool
	// Reentrant says that a nested call is an ordinary run, not a missed one.
	Reentrant bool
	// Aligned says that no access to memory is misaligned, if the stack and the context
	// are aligned to 8.
	Aligned bool
	// BlockSize is how many bytes of a run block the code uses, a multiple of 64:
	// few, if its stack is elsewhere and the place of each access is known.
	BlockSize int
	// Walk is how many addresses of the interrupted code's stack the code needs, with
	// Layout.Walked.
	Walk int
	// Slots has the code offset of each instruction slot, for messages.
	Slots []int
}

// Fixup pairs an instruction with the place where it is resumed if it faults. Both
// are offsets in the code.
type Fixup struct{ Fault, Resume int }

// HostOnlyError says why a program cannot be compiled and runs on the host.
type HostOnlyError struct {
	Index  int    // slot of the instruction, -1 if it is about the whole program
	Helper Helper // that it calls
	Why    string
}

// Error names the instruction, the helper and the reason.
func (e *HostOnlyError) Error() string {
	if e.Index < 0 {
		return "compile program: " + e.Why
	}
	return fmt.Sprintf("compile program: instruction %d calls %v, which runs on the host: %s", e.Index, e.Helper, e.Why)
}

// ErrMapNotShared is the cause if a map is in memory that the guest does not have.
var ErrMapNotShared = errors.New("map is not in memory that the guest sees")

// Compile translates a program to x86-64 machine code for any address. The code
// is a function:
//
//	RDI  address of the context, aligned to 8
//	RSI  address of the run block of this program and vCPU (InitBlock)
//	RDX  length of the context, for a raw program only
//	RAX  result: R0, or 0 when the run failed or the block was busy
//
// It preserves every register except RAX and the arithmetic flags, uses only general
// registers and instructions of the original x86-64, and runs at any privilege. It
// expects the direction flag clear, and does not preserve the red zone: its caller
// moves the stack pointer past it. Every load and store is either proven to be in
// bounds or bounded at run time; loops end when the budget is used up, unless they
// are proven to end before. After a fault the block has its code and place.
//
// Errors are *HostOnlyError, and ErrMapNotShared.
func Compile(p *Program, l Layout) ([]byte, *Info, error) {
	if why := p.hostOnly(); why != "" {
		return nil, nil, &HostOnlyError{Index: -1, Why: why}
	}
	for _, m := range p.maps {
		if m.area.Addr == 0 {
			return nil, nil, fmt.Errorf("compile program: map %q: %w", m.spec.Name, ErrMapNotShared)
		}
	}
	c := newCompiler(newPlan(p, l), l)
	// Which constants are worth a register is known after assembly, and the registers
	// to save are known after assembly with those, so it takes three passes.
	for pass := range 3 {
		if pass == 1 {
			if c.keepConsts(); len(c.consts) == 0 {
				continue
			}
		}
		if err := c.assemble(); err != nil {
			return nil, nil, err
		}
	}
	return c.Code(), c.info, nil
}

// compiler emits a program by its plan: the operations in this file, and the routines
// they call in its parts.
type compiler struct {
	*coder
	*plan
	hashes hashCoder
	rings  ringCoder
	reads  readCoder
	stacks stackCoder
	tasks  taskCoder

	kept   []reg64          // registers that the code writes and must preserve
	wanted map[uint64]int   // constants that loops use, with estimates of how often
	consts map[uint64]reg64 // the constants that are kept in registers

	pcs    []x86.Label // of each slot
	fail   x86.Label   // the fault, with its address in R11, its code and slot stored
	leave  x86.Label   // end of the run, result in RAX
	failed x86.Label   // the same, with the fault counted
	out    x86.Label   // nothing is left to count
}

// newCompiler returns a compiler for a plan.
func newCompiler(pl *plan, l Layout) *compiler {
	c := &coder{blk: pl.blockReg, ctx: pl.ctxReg, layout: l}
	return &compiler{
		coder: c, plan: pl,
		hashes: hashCoder{c}, rings: ringCoder{c}, reads: readCoder{coder: c, maps: len(pl.p.maps)},
		stacks: stackCoder{coder: c, atReturn: pl.p.kind.AtReturn()}, tasks: taskCoder{c},
	}
}

// assemble emits the code, using the results of the last pass.
func (c *compiler) assemble() error {
	c.reset()
	c.info = &Info{OwnStack: c.ownStack, Small: c.ownStack && !c.fails, Reentrant: !c.claims, Aligned: c.aligned, Slots: make([]int, len(c.p.ops))}
	c.wanted = map[uint64]int{}
	c.fail, c.leave, c.failed, c.out = c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.pcs, c.backs = c.pcs[:0], map[int]x86.Label{}
	for _, from := range c.jumpsBack {
		for _, pc := range from {
			c.backs[pc] = c.NewLabel()
		}
	}
	last := 0 // the last reachable operation
	for pc := range c.p.ops {
		if c.pcs = append(c.pcs, c.NewLabel()); c.facts[pc].reached {
			last = pc
		}
	}
	c.start()
	for pc := range c.p.ops {
		c.loopHead(pc)
		c.Place(c.pcs[pc])
		c.info.Slots[pc] = c.Len()
		if !c.facts[pc].reached {
			continue
		}
		if err := c.op(pc, &c.p.ops[pc], pc == last); err != nil {
			return err
		}
	}
	inLine := c.end()
	c.kept = nil
	for r := x86.RCX; r <= x86.R15; r++ {
		// Out-of-line code preserves all registers except the temporaries, unless it
		// is called for its effect on registers.
		if written := inLine.Has(r) || c.WrittenRegs().Has(r) && (c.general || r >= tmp9 && r <= tmpB); written && r != x86.RSP {
			c.kept = append(c.kept, r)
		}
	}
	c.info.BlockSize = c.p.BlockSize()
	if c.ownStack && !c.segments && !slices.ContainsFunc(c.p.maps, (*Map).PerCPU) {
		c.info.BlockSize = blkStack
	}
	c.info.MachineStack = 8*(len(c.kept)+1) + c.frame + 10*8
	if c.locals {
		c.info.MachineStack += (MaxFrames - 1) * 5 * 8
	}
	for _, f := range c.fixups {
		c.info.Fixups = append(c.info.Fixups, Fixup{Fault: f.at, Resume: c.Offset(f.resume)})
	}
	return nil
}

// keepConsts gives the remaining registers to the constants that loops use most.
func (c *compiler) keepConsts() {
	c.consts = map[uint64]reg64{}
	wanted := slices.Collect(maps.Keys(c.wanted))
	slices.SortFunc(wanted, func(a, b uint64) int { return cmp.Or(c.wanted[b]-c.wanted[a], cmp.Compare(a, b)) })
	for i, v := range wanted[:min(len(wanted), len(c.spare))] {
		c.consts[v] = c.spare[i]
	}
}

// constant returns a register with a 64-bit constant, t if it must be loaded.
func (c *compiler) constant(pc int, v uint64, t reg64) reg64 {
	if r, ok := c.consts[v]; ok {
		return r
	}
	if d := c.depth[pc]; d > 0 {
		c.wanted[v] += 1 << (3 * min(d, 8))
	}
	c.set(t, v)
	return t
}

// start emits the code before the program: it claims the block, and sets the initial
// registers.
func (c *compiler) start() {
	for _, r := range c.kept {
		c.Push(r)
	}
	if c.frame != 0 {
		c.Lea(8, x86.RSP, x86.At(x86.RSP, -c.frame))
	}
	if c.blk != x86.RSI {
		c.Mov(8, c.blk, x86.RSI)
	}
	retired := c.NewLabel()
	if c.claims {
		c.claim()
		c.Jcc(x86.CondB, retired)
		c.addShared(blkRuns, 1)
	} else {
		// Count the run before looking at the block: then code that retires the block
		// either sees a run that has not ended, or this code sees that the block is
		// retired.
		c.addShared(blkRuns, 1)
		c.Cmp(4, x86.At(c.blk, blkBusy), imm(0))
		c.Jcc(x86.CondNE, retired)
	}
	c.pending = append(c.pending, func() {
		c.Place(retired)
		if !c.claims {
			c.addShared(blkRuns, -1)
		}
		c.addShared(blkMissed, 1)
		c.set(x86.RAX, 0)
		c.Jmp(c.out)
	})
	if c.locals {
		c.Mov(8, x86.At(c.blk, blkRSP), x86.RSP)
	}
	switch {
	case !c.charges:
	case c.budget != x86.NoReg:
		c.set(c.budget, uint64(c.p.budget))
	default:
		c.set(x86.RAX, uint64(c.p.budget))
		c.Mov(8, x86.At(c.blk, blkBudget), x86.RAX)
	}
	if slices.ContainsFunc(c.p.helpers, isRead) {
		c.Mov(8, x86.At(c.blk, tmpPage), imm(-1)) // noPage
	}
	if c.segments {
		c.Mov(8, c.seg(segContext, segBase), x86.RDI)
	}
	if c.ctx != x86.NoReg && c.ctx != x86.RDI {
		c.Mov(8, c.ctx, x86.RDI)
	}
	if !c.p.kind.hasRegs() {
		c.rawContext()
	}
	for _, v := range slices.Sorted(maps.Keys(c.consts)) {
		c.set(c.consts[v], v)
	}
	init := [numRegs]uint64{R1: segPointer(segContext, 0, 0), R10: segPointer(segStack, 0, StackSize)}
	for r, v := range init {
		switch x := c.regs[r]; {
		case !c.entry.has(uint8(r)):
		case !c.p.kind.hasRegs() && Reg(r) == R2:
			c.Mov(8, x, x86.RDX)
		default:
			c.set(x, v)
		}
	}
}

// end emits the code after the program: the way out, the out-of-line code, and the
// reporting of faults. It returns the registers written before the out-of-line code.
func (c *compiler) end() x86.RegSet {
	c.Place(c.leave)
	c.countAnswer()
	c.Place(c.failed)
	if c.reserves {
		c.rings.dropRecords()
	}
	if c.claims {
		c.Mov(4, x86.At(c.blk, blkBusy), imm(0))
	}
	c.Place(c.out)
	if c.frame != 0 {
		c.Lea(8, x86.RSP, x86.At(x86.RSP, c.frame))
	}
	for i := len(c.kept) - 1; i >= 0; i-- {
		c.Pop(c.kept[i])
	}
	c.Ret()
	inLine := c.WrittenRegs()
	for len(c.pending) > 0 {
		f := c.pending[0]
		c.pending = c.pending[1:]
		f()
	}
	for _, s := range c.stubs {
		c.Place(s.label)
		switch {
		case s.base == x86.NoReg:
			c.set(tmpB, s.far+uint64(s.off))
		case s.far != 0:
			c.set(tmpB, s.far+uint64(s.off))
			c.Add(8, tmpB, s.base)
		default:
			c.Lea(8, tmpB, x86.At(s.base, int(s.off)))
		}
		c.Mov(4, x86.At(c.blk, blkFault), imm(s.code))
		c.Mov(4, x86.At(c.blk, blkPC), imm(s.pc))
		c.Jmp(c.fail)
	}
	c.Place(c.fail)
	if len(c.stubs) == 0 {
		return inLine
	}
	c.Mov(8, x86.At(c.blk, blkAddr), tmpB)
	c.addShared(blkFailed, 1)
	if c.locals {
		c.Mov(8, x86.RSP, x86.At(c.blk, blkRSP))
	}
	c.set(x86.RAX, 0)
	c.Jmp(c.failed)
	return inLine
}

// op emits one operation.
func (c *compiler) op(pc int, o *op, last bool) error {
	switch {
	case c.dead[pc]:
		if o.code == opCall {
			c.zeroArgs(pc)
		}
	case o.code < opJeq:
		c.alu(o)
	case o.code < opSingles:
		c.jump(pc, o)
	case o.code >= opLoad8 && o.code <= opLoads32:
		c.loadOp(pc, o)
	default:
		switch o.code {
		case opJa:
			c.Jmp(c.jumpTo(pc))
		case opMayGoto:
			c.mayGoto(pc)
		case opCall:
			return c.helper(pc, Helper(o.imm))
		case opCallLocal:
			c.localCall(pc, o)
		case opExit:
			switch {
			case c.p.fns.indexOf(pc) != 0:
				c.Ret()
			case !last:
				c.Jmp(c.leave)
			}
		case opLoadImm:
			c.set(c.regs[o.dst], uint64(o.imm))
		case opStoreK, opStoreX:
			c.storeOp(pc, o)
		case opAtomic:
			c.atomicOp(pc, o)
		default:
			c.emitSingle(o)
		}
	}
	return nil
}

// charge emits code that takes the cost of a jump back or a call from the budget.
func (c *compiler) charge(pc int, o *op) { c.take(pc, imm(o.cost)) }

// take emits code that takes n from the budget, if the budget is counted.
func (c *compiler) take(pc int, n x86.Arg) {
	if !c.charges {
		return
	}
	var left x86.Arg = x86.At(c.blk, blkBudget)
	if c.budget != x86.NoReg {
		left = c.budget
	}
	c.Sub(8, left, n)
	c.Jcc(x86.CondB, c.fault(FaultBudget, pc, x86.NoReg, 0))
}

// loopHead emits, before the head of a loop, code that charges each jump back: the
// jumps lead there.
func (c *compiler) loopHead(pc int) {
	var from []int
	for _, at := range c.jumpsBack[pc] {
		if c.charges && c.facts[at].jump != neverTaken {
			from = append(from, at)
		}
	}
	if len(from) == 0 {
		return
	}
	head := c.pcs[pc]
	c.Jmp(head)
	for i, at := range from {
		c.Place(c.backs[at])
		c.charge(at, &c.p.ops[at])
		if i < len(from)-1 {
			c.Jmp(head)
		}
	}
}

// jumpTo returns the label that the jump at slot pc goes to.
func (c *compiler) jumpTo(pc int) x86.Label {
	o := &c.p.ops[pc]
	if c.charges && o.cost != 0 {
		return c.backs[pc]
	}
	return c.pcs[o.off]
}

// mayGoto emits a jump that is taken when the budget is nearly used up.
func (c *compiler) mayGoto(pc int) {
	if !c.charges {
		return
	}
	c.set(tmpB, uint64(c.p.budget/mayGotoLeft))
	if c.budget != x86.NoReg {
		c.Cmp(8, c.budget, tmpB)
	} else {
		c.Cmp(8, x86.At(c.blk, blkBudget), tmpB)
	}
	c.Jcc(x86.CondL, c.jumpTo(pc))
}

func (c *compiler) localCall(pc int, o *op) {
	c.Cmp(4, c.regs[R10], imm(FrameSize)) // the low half is the offset in the stack
	c.Jcc(x86.CondE, c.fault(FaultDepth, pc, x86.NoReg, 0))
	c.charge(pc, o)
	kept := c.regs[R6 : R9+1]
	for _, r := range kept {
		c.Push(r)
	}
	c.Sub(8, c.regs[R10], imm(FrameSize))
	c.Call(c.pcs[o.off])
	c.Add(8, c.regs[R10], imm(FrameSize))
	for i := range kept {
		c.MarkWritten(kept[3-i])
		c.Pop(kept[3-i])
	}
}
