package bpf

import (
	"errors"
	"fmt"

	"github.com/guestprobe/guestprobe/probe/insn"
)

// Registers of compiled code. The five argument registers and R0 are where the
// System V ABI and the CPU's multiplication have theirs; R12 points to the run
// block; R9, R10 and R11 are for single operations.
var fullRegs = [numRegs]reg64{
	R0: insn.RAX, R1: insn.RDI, R2: insn.RSI, R3: insn.RDX, R4: insn.RCX, R5: insn.R8,
	R6: insn.RBX, R7: insn.R13, R8: insn.R14, R9: insn.R15, R10: insn.RBP,
}

const (
	fullBlk = insn.R12

	tmp9 = insn.R9
	tmpA = insn.R10
	tmpB = insn.R11
)

// Info describes compiled code.
type Info struct {
	// Fixups are the instructions that read guest memory. When one of them
	// faults (#PF, #GP), the fault is not the guest's: the vCPU goes on at
	// Resume with nothing else changed.
	Fixups []Fixup
	// MachineStack is how many bytes of the interrupted code's stack the code
	// uses at most, return address included.
	MachineStack int
	// ContextReads has bit n set when the 8 bytes at 8n of the context may be
	// read: the detour must save only these. All bits are set when an access
	// could not be told in advance.
	ContextReads uint32
	// Small says that no run can fail, and that the program's stack is on the
	// interrupted code's, not in the block.
	Small bool
	// Reentrant says that a call within a call is a run like any other, not a
	// missed one.
	Reentrant bool
	// Slots is the offset of the code of each instruction slot, for messages.
	Slots []int
}

// Fixup pairs an instruction with where it is resumed when it faults. Both are
// offsets in the code.
type Fixup struct{ Fault, Resume int }

// HostOnlyError says why a program cannot be compiled and runs on the host.
type HostOnlyError struct {
	Index  int    // slot of the instruction
	Helper Helper // that it calls
	Why    string
}

// Error names the instruction, the helper and the reason.
func (e *HostOnlyError) Error() string {
	return fmt.Sprintf("compile program: instruction %d calls %v, which runs on the host: %s", e.Index, e.Helper, e.Why)
}

// ErrMapNotShared is the cause when a map is in memory that the guest does not see.
var ErrMapNotShared = errors.New("map is not in memory that the guest sees")

// Where says where a program can run under a layout, and if that is OnHost why.
func Where(p *Program, l Layout) (Place, error) {
	if _, _, err := Compile(p, l); err != nil {
		return OnHost, err
	}
	return InGuest, nil
}

// Compile translates a program to x86-64 machine code for any address. The code
// is a function:
//
//	RDI  address of the context, aligned to 8
//	RSI  address of the run block of this program and vCPU (InitBlock)
//	RDX  length of the context, for a raw program only
//	RAX  result: R0, or 0 when the run failed or the block was busy
//
// It keeps every register but RAX and the arithmetic flags, uses only general
// registers and instructions of the original x86-64, and runs at any
// privilege. It expects the direction flag clear, and does not keep the red
// zone: its caller moves the stack pointer past it. Every load and store is
// bounded by the block's segment table or known to be in bounds; loops end when
// the budget is used up. After a fault the block says what and where.
//
// Errors are *HostOnlyError, and ErrMapNotShared.
func Compile(p *Program, l Layout) ([]byte, *Info, error) {
	for _, m := range p.maps {
		if m.area.Addr == 0 {
			return nil, nil, fmt.Errorf("compile program: map %q: %w", m.spec.Name, ErrMapNotShared)
		}
	}
	c := &compiler{p: p, layout: l, info: new(Info), routines: map[string]insn.Label{}, regs: fullRegs, blk: fullBlk}
	if s := newSmall(p, l); s != nil && c.assign(s) {
		c.compileSmall()
		return c.Code(), c.info, nil
	}
	c.known, c.escapes = infer(p)
	for _, o := range p.ops {
		if o.code == opCall && Helper(o.imm) == HelperRingReserve {
			c.reserves = true
		}
		c.budget = c.budget || o.cost != 0
	}
	return c.compile()
}

type compiler struct {
	insn.Asm
	regs     [numRegs]reg64 // where the program's registers are
	blk      reg64          // address of the run block
	small    *small         // of a small program
	used     insn.RegSet    // registers that the code writes
	frame    int            // of a small program: bytes of its stack
	record   reg64          // of a small program: where the address of its record is
	own      bool           // an atomic operation needs no lock
	p        *Program
	layout   Layout
	known    []values
	info     *Info
	pcs      []insn.Label // of each slot
	fail     insn.Label   // fault address in R11, code and slot noted
	leave    insn.Label   // end of the run, result in RAX
	stubs    []stub
	routines map[string]insn.Label // shared code, by name
	pending  []func()              // that emit routines
	reserves bool                  // the program reserves ring records
	budget   bool                  // it can loop
	escapes  bool                  // the context's address may be anywhere
	fixups   []struct {
		at     int
		resume insn.Label
	}
}

// stub is out-of-line code that reports a fault.
type stub struct {
	label insn.Label
	code  FaultCode
	pc    int
	base  reg64 // the address at fault is base + off; insn.NoReg: none
	off   int
}

func (c *compiler) compile() ([]byte, *Info, error) {
	c.fail, c.leave = c.NewLabel(), c.NewLabel()
	for range c.p.ops {
		c.pcs = append(c.pcs, c.NewLabel())
	}
	c.MarkWritten(c.blk)
	c.info.Slots = make([]int, len(c.p.ops))
	for pc := 0; pc < len(c.p.ops); pc++ {
		c.Place(c.pcs[pc])
		c.info.Slots[pc] = c.Len()
		if c.known[pc][R10].kind == unvisited {
			continue // no path comes here
		}
		c.uses(&c.p.ops[pc])
		if err := c.op(pc, &c.p.ops[pc]); err != nil {
			return nil, nil, err
		}
	}
	c.tail()
	body := c.Asm
	c.Asm = insn.Asm{}
	c.head()
	c.finish(&body)
	c.info.MachineStack = 8*(len(c.saved())+1) + (MaxFrames-1)*5*8 + 6*8
	return c.Code(), c.info, nil
}

// finish puts the body behind the head, which has been made last.
func (c *compiler) finish(body *insn.Asm) {
	head := c.Len()
	c.Append(body.Code())
	for i := range c.info.Slots {
		c.info.Slots[i] += head
	}
	for _, f := range c.fixups {
		c.info.Fixups = append(c.info.Fixups, Fixup{Fault: head + f.at, Resume: head + body.Offset(f.resume)})
	}
}

// saved returns the registers that the code must keep and does use.
func (c *compiler) saved() []reg64 {
	var out []reg64
	for r := insn.RCX; r <= insn.R15; r++ {
		if c.used.Has(r) && r != insn.RSP {
			out = append(out, r)
		}
	}
	return out
}

// head is what stands before the program. The epilogue, in tail, is its
// mirror image; both know all registers in use because the head is made last.
func (c *compiler) head() {
	for _, r := range c.saved() {
		c.Push(r)
	}
	c.Mov(8, c.blk, insn.RSI)
	free := c.NewLabel()
	c.claim()
	c.Jcc(insn.CondAE, free)
	c.Lock().Add(8, insn.At(c.blk, blkMissed), imm(1))
	c.set(insn.RAX, 0)
	for s := c.saved(); len(s) > 0; s = s[:len(s)-1] {
		c.Pop(s[len(s)-1])
	}
	c.Ret()
	c.Place(free)
	c.Add(8, insn.At(c.blk, blkRuns), imm(1))
	c.Mov(8, insn.At(c.blk, blkRSP), insn.RSP)
	c.Mov(4, insn.At(c.blk, blkFault), imm(0))
	if c.budget {
		c.set(insn.RAX, uint64(c.p.budget))
		c.Mov(8, insn.At(c.blk, blkBudget), insn.RAX)
	}
	c.Mov(8, c.seg(segContext, segBase), insn.RDI)
	if !c.p.kind.hasRegs() {
		c.rawContext()
	}
	init := [numRegs]uint64{R1: segPointer(segContext, 0, 0), R10: segPointer(segStack, 0, StackSize)}
	for r, v := range init {
		raw := !c.p.kind.hasRegs()
		switch x := c.regs[r]; {
		case Reg(r) != R0 && !c.used.Has(x):
		case raw && Reg(r) == R2:
			c.Mov(8, insn.RSI, insn.RDX)
		default:
			c.set(x, v)
		}
	}
}

// claim emits bts $0 of the busy word, which carries when it was set: one
// instruction, so that nothing comes between.
func (c *compiler) claim() {
	if c.layout.Shared {
		c.Lock()
	}
	c.Bts(4, insn.At(c.blk, blkBusy), 0)
}

// rawContext sets the limits of a context of RDX bytes.
func (c *compiler) rawContext() {
	c.Mov(8, insn.RAX, insn.RDX)
	fits := c.NewLabel()
	c.Cmp(8, insn.RAX, imm(offMask))
	c.Jcc(insn.CondBE, fits)
	c.set(insn.RAX, offMask)
	c.Place(fits)
	c.limits(insn.At(c.blk, blkSegs+segContext*segSize), insn.RAX)
}

// limits fills in the limits of a segment entry whose elements have r bytes.
// It changes r.
func (c *compiler) limits(e insn.Mem, r reg64) {
	c.Mov(4, e.Plus(segLoadLen), r)
	c.Mov(4, e.Plus(segStorLen), r)
	less := 0
	for k := range 4 {
		c.Sub(4, r, imm(1<<k-less))
		less = 1 << k
		c.Mov(4, e.Plus(segLoad+4*k), r)
		c.Mov(4, e.Plus(segStore+4*k), r)
	}
}

// seg is a field of a segment entry of the block.
func (c *compiler) seg(i, field int) insn.Mem { return insn.At(c.blk, blkSegs+i*segSize+field) }

// tail is what stands behind the program: fault stubs, the ways out, and the
// routines that were asked for.
func (c *compiler) tail() {
	if c.reserves {
		c.publishRoutine(recDiscarded)
	}
	for len(c.pending) > 0 {
		f := c.pending[0]
		c.pending = c.pending[1:]
		f()
	}
	for _, s := range c.stubs {
		c.Place(s.label)
		if s.base == insn.NoReg {
			c.set(tmpB, 0)
		} else {
			c.Lea(8, tmpB, insn.At(s.base, s.off))
		}
		c.Mov(4, insn.At(c.blk, blkFault), imm(s.code))
		c.Mov(4, insn.At(c.blk, blkPC), imm(s.pc))
		c.Jmp(c.fail)
	}
	c.Place(c.fail)
	c.Mov(8, insn.At(c.blk, blkAddr), tmpB)
	c.Add(8, insn.At(c.blk, blkFailed), imm(1))
	c.Mov(8, insn.RSP, insn.At(c.blk, blkRSP))
	c.set(insn.RAX, 0)
	out := c.NewLabel()
	c.Jmp(out)
	c.Place(c.leave)
	c.countAnswer()
	c.Place(out)
	if c.reserves {
		c.dropRecords()
	}
	c.Mov(4, insn.At(c.blk, blkBusy), imm(0))
	c.used = c.Written()
	saved := c.saved()
	for i := len(saved) - 1; i >= 0; i-- {
		c.Pop(saved[i])
	}
	c.Ret()
}

// countAnswer emits the counting of what a run returns. R11 changes.
func (c *compiler) countAnswer() {
	c.Mov(4, tmpB, insn.RAX)
	c.And(4, tmpB, imm(3))
	if c.layout.Shared {
		c.Lock()
	}
	c.Add(8, insn.AtIndex(c.blk, tmpB, 8, blkAnswers), imm(1))
}

// fault returns a label that ends the run at slot pc; the address at fault is
// base + off.
func (c *compiler) fault(code FaultCode, pc int, base reg64, off int) insn.Label {
	s := stub{label: c.NewLabel(), code: code, pc: pc, base: base, off: off}
	c.stubs = append(c.stubs, s)
	return s.label
}

// routine returns the label of shared code, which body emits once.
func (c *compiler) routine(name string, body func()) insn.Label {
	l, ok := c.routines[name]
	if !ok {
		l = c.NewLabel()
		c.routines[name] = l
		c.pending = append(c.pending, func() {
			c.Place(l)
			body()
		})
	}
	return l
}

// uses notes the registers that an operation reads or writes, apart from the
// base of a memory insn.Mem, which is often not needed.
func (c *compiler) uses(o *op) {
	switch {
	case o.code >= opLoad8 && o.code <= opLoads32:
		c.MarkWritten(c.regs[o.dst])
	case o.code == opStoreX || o.code == opAtomic:
		c.MarkWritten(c.regs[o.src])
	case o.code == opCall:
		for r := R0; r <= R5; r++ {
			c.MarkWritten(c.regs[r])
		}
	case o.code != opStoreK:
		c.MarkWritten(c.regs[o.dst])
		c.MarkWritten(c.regs[o.src])
	}
}

// op emits one operation.
func (c *compiler) op(pc int, o *op) error {
	switch {
	case o.code >= opAdd && o.code < opJeq:
		c.alu(o)
	case o.code >= opJeq && o.code < opSingles:
		c.jump(pc, o)
	case o.code >= opLoad8 && o.code <= opLoads32:
		c.loadOp(pc, o)
	default:
		switch o.code {
		case opJa:
			c.charge(pc, o)
			c.Jmp(c.pcs[o.off])
		case opCall:
			return c.helper(pc, Helper(o.imm))
		case opCallLocal:
			c.localCall(pc, o)
		case opExit:
			if c.p.fns.of(pc) == 0 {
				c.Jmp(c.leave)
			} else {
				c.Ret()
			}
		case opLoadImm:
			c.set(c.regs[o.dst], uint64(o.imm))
		case opStoreK, opStoreX:
			c.storeOp(pc, o)
		case opAtomic:
			c.atomicOp(pc, o)
		default:
			c.single(o)
		}
	}
	return nil
}

// charge takes the cost of a jump back or a call from the budget.
func (c *compiler) charge(pc int, o *op) {
	if o.cost != 0 {
		c.Sub(8, insn.At(c.blk, blkBudget), imm(o.cost))
		c.Jcc(insn.CondS, c.fault(FaultBudget, pc, insn.NoReg, 0))
	}
}

func (c *compiler) localCall(pc int, o *op) {
	c.Cmp(4, c.regs[R10], imm(FrameSize)) // the low half is the offset in the stack
	c.Jcc(insn.CondE, c.fault(FaultDepth, pc, insn.NoReg, 0))
	c.charge(pc, o)
	kept := []reg64{c.regs[R6], c.regs[R7], c.regs[R8], c.regs[R9]}
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
