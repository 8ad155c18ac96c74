package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Registers for single operations. R0 is in RAX; where all else is, plan says.
const (
	tmp9 = x86.R9
	tmpA = x86.R10
	tmpB = x86.R11
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
	// OwnStack says that the program's stack is on the interrupted code's, not in the
	// block.
	OwnStack bool
	// Small says that besides no run can fail.
	Small bool
	// Reentrant says that a call within a call is a run like any other, not a
	// missed one.
	Reentrant bool
	// Aligned says that no access to memory is misaligned, if the stack and the context
	// are aligned to 8.
	Aligned bool
	// BlockSize is how many bytes of a run block the code uses, a multiple of 64: where it has
	// its stack elsewhere and knows the place of all that it accesses, they are few.
	BlockSize int
	// Slots is the offset of the code of each instruction slot, for messages.
	Slots []int
}

// Fixup pairs an instruction with where it is resumed when it faults. Both are
// offsets in the code.
type Fixup struct{ Fault, Resume int }

// HostOnlyError says why a program cannot be compiled and runs on the host.
type HostOnlyError struct {
	Index  int    // slot of the instruction, -1 when it is about the whole program
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

// ErrMapNotShared is the cause when a map is in memory that the guest does not see.
var ErrMapNotShared = errors.New("map is not in memory that the guest sees")

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
// proven to be in bounds or is bounded as it is made; loops end when the budget is
// used up, unless they are proven to end before. After a fault the block says what
// and where.
//
// Errors are *HostOnlyError, and ErrMapNotShared.
func Compile(p *Program, l Layout) ([]byte, *Info, error) {
	if why := p.HostOnly(); why != "" {
		return nil, nil, &HostOnlyError{Index: -1, Why: why}
	}
	for _, m := range p.maps {
		if m.area.Addr == 0 {
			return nil, nil, fmt.Errorf("compile program: map %q: %w", m.spec.Name, ErrMapNotShared)
		}
	}
	c := &compiler{plan: newPlan(p, l), p: p, layout: l}
	// Which constants are worth a register is known when all is assembled, and which
	// registers must be kept when it is assembled with that, so it is done three times.
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

type compiler struct {
	x86.Asm
	*plan
	p      *Program
	layout Layout
	kept   []reg64 // registers that the code writes and must keep

	wanted map[uint64]int   // constants that loops use, by how often about
	consts map[uint64]reg64 // those that are kept in registers

	info     *Info
	pcs      []x86.Label // of each slot
	fail     x86.Label   // fault address in R11, code and slot noted
	leave    x86.Label   // end of the run, result in RAX
	failed   x86.Label   // the same, with the fault counted
	out      x86.Label   // nothing is left to be counted
	stubs    []stub
	routines map[string]x86.Label // shared code, by name
	pending  []func()             // that emit what stands out of line
	fixups   []struct {
		at     int
		resume x86.Label
	}
}

// stub is out-of-line code that reports a fault.
type stub struct {
	label x86.Label
	code  FaultCode
	pc    int
	base  reg64 // the address at fault is base + off + far; NoReg: none
	off   int64
	far   uint64
}

// assemble makes the code, with what was found out the last time.
func (c *compiler) assemble() error {
	c.Asm.Reset()
	c.info = &Info{OwnStack: c.ownStack, Small: c.ownStack && !c.fails, Reentrant: !c.claims, Aligned: c.aligned, Slots: make([]int, len(c.p.ops))}
	c.routines, c.stubs, c.fixups, c.wanted = map[string]x86.Label{}, nil, nil, map[uint64]int{}
	c.fail, c.leave, c.failed, c.out = c.NewLabel(), c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.pcs, c.backs = c.pcs[:0], map[int]x86.Label{}
	for _, from := range c.jumpsBack {
		for _, pc := range from {
			c.backs[pc] = c.NewLabel()
		}
	}
	last := 0 // the last operation that is reached
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
		// What stands out of line keeps all but the temporaries, where nothing calls it
		// for what it does to registers.
		if written := inLine.Has(r) || c.Written().Has(r) && (c.general || r >= tmp9 && r <= tmpB); written && r != x86.RSP {
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

// keepConsts gives the registers that are left to the constants that loops use most.
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

// start emits what stands before the program: the taking of the block, and what is
// in its registers first.
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
		// The run is counted before the block is looked at: whoever retires the
		// block either sees a run that has not ended, or this sees that it is retired.
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

// addShared adds to a count of the block.
func (c *compiler) addShared(off, v int) {
	if c.layout.Shared {
		c.Lock()
	}
	c.Add(8, x86.At(c.blk, off), imm(v))
}

// claim emits bts $0 of the busy word, which carries when it was set: one
// instruction, so that nothing comes between.
func (c *compiler) claim() {
	if c.layout.Shared {
		c.Lock()
	}
	c.Bts(4, x86.At(c.blk, blkBusy), 0)
}

// rawContext sets the limits of a context of RDX bytes.
func (c *compiler) rawContext() {
	c.Mov(8, x86.RAX, x86.RDX)
	fits := c.NewLabel()
	c.Cmp(8, x86.RAX, imm(offMask))
	c.Jcc(x86.CondBE, fits)
	c.set(x86.RAX, offMask)
	c.Place(fits)
	c.fillLimits(x86.At(c.blk, blkSegs+segContext*segSize), x86.RAX)
}

// fillLimits fills in the limits of a segment entry whose elements have r bytes.
// It changes r.
func (c *compiler) fillLimits(e x86.Mem, r reg64) {
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
func (c *compiler) seg(i, field int) x86.Mem { return x86.At(c.blk, blkSegs+i*segSize+field) }

// end emits what stands behind the program: the way out, what stands out of line,
// and the reporting of faults. It returns the registers that are written before what
// stands out of line.
func (c *compiler) end() x86.RegSet {
	c.Place(c.leave)
	c.countAnswer()
	c.Place(c.failed)
	if c.reserves {
		c.dropRecords()
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
	inLine := c.Written()
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

// countAnswer emits the counting of what a run returns. R11 changes.
func (c *compiler) countAnswer() {
	c.Mov(4, tmpB, x86.RAX)
	c.And(4, tmpB, imm(3))
	if c.layout.Shared {
		c.Lock()
	}
	c.Add(8, x86.AtIndex(c.blk, tmpB, 8, blkAnswers), imm(1))
}

// fault returns a label that ends the run at slot pc; the address at fault is
// base + off.
func (c *compiler) fault(code FaultCode, pc int, base reg64, off int64) x86.Label {
	return c.faultFar(code, pc, base, off, 0)
}

// faultFar is fault for an address that is far more.
func (c *compiler) faultFar(code FaultCode, pc int, base reg64, off int64, far uint64) x86.Label {
	s := stub{label: c.NewLabel(), code: code, pc: pc, base: base, off: off, far: far}
	c.stubs = append(c.stubs, s)
	return s.label
}

// routine returns the label of shared code, which body emits once.
func (c *compiler) routine(name string, body func()) x86.Label {
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
		case opCall:
			return c.helper(pc, Helper(o.imm))
		case opCallLocal:
			c.localCall(pc, o)
		case opExit:
			switch {
			case c.p.fns.of(pc) != 0:
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

// charge emits the taking of the cost of a jump back or a call from the budget.
func (c *compiler) charge(pc int, o *op) { c.take(pc, imm(o.cost)) }

// take emits the taking of so much from the budget, where that is counted.
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

// loopHead emits, before the head of a loop, what each jump back to it costs: the
// jump leads to where that is taken from the budget.
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
