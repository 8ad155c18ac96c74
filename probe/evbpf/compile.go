package evbpf

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// Registers that calls keep, and what programs have in them.
const (
	rCtx = bpf.R6 // the context
	rRec = bpf.R7 // what goes into the ring, prefix included
	rEnd = bpf.R8 // bytes of the record so far, where it has texts
	rVal = bpf.R9 // the operand at hand
	rFP  = bpf.R10
)

// Places in the stack frame.
const (
	slotWord  = -8  // what was read
	slotKey   = -16 // key 0
	slotState = -24 // address of the state
	slotCount = -32 // elements read
	slotBase  = -40 // address of an array of pointers
	slotCut   = -48 // status of texts
	slotComm  = -72 // the task's name and a NUL
)

// entryArg returns where the context of a return program has what an argument's
// register was at the entry (bpf.PutEntry).
func entryArg(r event.Reg) (off int, ok bool) {
	i := slices.Index([]event.Reg{event.RegDI, event.RegSI, event.RegDX, event.RegCX, event.RegR8, event.RegR9}, r)
	return bpf.RegsSize + 8*(1+i), i >= 0
}

// Offsets in the context, struct pt_regs; event.Reg counts its fields.
func ctxOff(r event.Reg) int { return 8 * int(r) }

// compiler makes one program.
type compiler struct {
	builder
	u    *Unit
	addr guest.GVA
}

// build makes the instructions.
func (u *Unit) build(addr guest.GVA, tag uint32) (*compiler, error) {
	if u.plan.Kind == event.KindReturn {
		addr = u.entry
	}
	c := &compiler{u: u, addr: addr}
	pass, filtered, unwanted, lost, out := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
	c.mov(rCtx, bpf.R1)
	c.stK(4, rFP, slotKey, 0)
	c.mapRef(bpf.R1, mapState)
	c.mov(bpf.R2, rFP)
	c.add(bpf.R2, slotKey)
	c.call(bpf.HelperMapLookup)
	c.jif(bpf.OpJEQ, bpf.R0, 0, unwanted) // cannot be: an array has its first value
	c.st(8, rFP, slotState, bpf.R0)
	if u.filter != nil {
		c.node(u.filter, pass, filtered)
		c.place(pass)
	}
	c.mapValue(bpf.R1, mapGate)
	c.ld(8, bpf.R1, bpf.R1, 0)
	c.jif(bpf.OpJEQ, bpf.R1, 0, unwanted)
	if u.texts {
		c.ld(8, rRec, rFP, slotState)
		c.add(rRec, stateScratch)
		c.aluK(bpf.OpMov, rEnd, int32(u.plan.Dynamic))
	} else {
		c.mapRef(bpf.R1, mapRing)
		c.aluK(bpf.OpMov, bpf.R2, int32(PrefixSize+u.plan.Dynamic))
		c.aluK(bpf.OpMov, bpf.R3, 0)
		c.call(bpf.HelperRingReserve)
		c.jif(bpf.OpJEQ, bpf.R0, 0, lost)
		c.mov(rRec, bpf.R0)
	}
	c.head(tag)
	for i := range u.plan.Values {
		c.value(i, &u.plan.Values[i])
	}
	if u.texts {
		c.mapRef(bpf.R1, mapRing)
		c.mov(bpf.R2, rRec)
		c.mov(bpf.R3, rEnd)
		c.add(bpf.R3, PrefixSize)
		c.aluK(bpf.OpMov, bpf.R4, 0)
		c.call(bpf.HelperRingOutput)
		c.jif(bpf.OpJNE, bpf.R0, 0, lost)
	} else {
		c.mov(bpf.R1, rRec)
		c.aluK(bpf.OpMov, bpf.R2, 0)
		c.call(bpf.HelperRingSubmit)
	}
	c.count(stateStored)
	c.place(unwanted)
	c.exit(1)
	c.place(lost)
	c.count(stateLost)
	c.goTo(out)
	c.place(filtered)
	if u.filter != nil {
		c.count(stateFiltered)
		c.exit(0)
	}
	c.place(out)
	c.exit(1)
	if !c.link() {
		return nil, onHost("its program would be too long")
	}
	return c, nil
}

// count adds 1 to a count of the state, at once: the program can be entered
// again on the same vCPU before it has ended.
func (c *compiler) count(off int) {
	c.ld(8, bpf.R1, rFP, slotState)
	c.aluK(bpf.OpMov, bpf.R2, 1)
	c.emit(bpf.Insn{Op: bpf.ClassSTX | bpf.ModeATOMIC | bpf.SizeDW, Dst: bpf.R1, Src: bpf.R2, Off: int16(off), Imm: bpf.AtomicAdd})
}

// at is the offset from rRec of an offset in the record.
func at(off int) int { return PrefixSize + off }

// head writes what stands around the values.
func (c *compiler) head(tag uint32) {
	p := &c.u.plan
	c.call(bpf.HelperKtimeGetNS)
	c.st(8, rRec, 0, bpf.R0)
	if p.Kind == event.KindReturn {
		c.ld(8, bpf.R1, rCtx, bpf.RegsSize)
		c.alu(bpf.OpSub, bpf.R0, bpf.R1)
		c.st(8, rRec, at(p.Duration), bpf.R0)
	}
	c.call(bpf.HelperGetCPU)
	c.st(4, rRec, 8, bpf.R0)
	c.stK(4, rRec, 12, int32(tag))
	c.ld(8, bpf.R1, rCtx, ctxOff(event.RegCS))
	c.and(bpf.R1, 3)
	c.aluK(bpf.OpLsh, bpf.R1, 8)
	c.irqsOff(bpf.R3)
	c.aluK(bpf.OpLsh, bpf.R3, 16)
	c.alu(bpf.OpOr, bpf.R1, bpf.R3)
	if p.Kind == event.KindReturn {
		c.aluK(bpf.OpOr, bpf.R1, int32(event.StageReturn))
	}
	c.st(4, rRec, at(0), bpf.R1)
	c.stK(4, rRec, at(4), 0)
	c.load64(bpf.R1, uint64(c.addr))
	c.st(8, rRec, at(8), bpf.R1)
	if p.Kind == event.KindReturn {
		c.ld(8, bpf.R1, rCtx, ctxOff(event.RegIP))
		c.st(8, rRec, at(event.RecordFixed), bpf.R1)
	}
	if p.Comm != 0 {
		c.call(bpf.HelperGetPIDTGID)
		c.st(4, rRec, at(4), bpf.R0)
		c.mov(bpf.R1, rRec)
		c.add(bpf.R1, int64(at(p.Comm)))
		c.aluK(bpf.OpMov, bpf.R2, event.CommSize)
		c.call(bpf.HelperGetComm)
	}
	if p.Regs != 0 {
		for i, r := range event.PlanRegs {
			c.ld(8, bpf.R1, rCtx, ctxOff(r))
			c.st(8, rRec, at(p.Regs+8*i), bpf.R1)
		}
	}
}

// irqsOff sets r to common_flags: RFLAGS.IF is bit 9 (SDM Vol. 1, 3.4.3.3).
func (c *compiler) irqsOff(r bpf.Reg) {
	c.ld(8, r, rCtx, ctxOff(event.RegFlags))
	c.aluK(bpf.OpRsh, r, 9)
	c.and(r, 1)
	c.aluK(bpf.OpXor, r, event.IRQsOff)
}

// canonical jumps to fault when rVal is an address that the program's own
// memory has: bits 48 to 63 are neither all clear nor all set. Such an address is
// no guest's, and the helpers would take it for the program's.
func (c *compiler) canonical(fault label) {
	ok := c.newLabel()
	c.mov(bpf.R1, rVal)
	c.aluK(bpf.OpRsh, bpf.R1, 48)
	c.jif(bpf.OpJEQ, bpf.R1, 0, ok)
	c.jif(bpf.OpJNE, bpf.R1, 0xffff, fault)
	c.place(ok)
}

// read reads n bytes at rVal into slotWord.
func (c *compiler) read(n int, fault label) {
	c.canonical(fault)
	c.mov(bpf.R1, rFP)
	c.add(bpf.R1, slotWord)
	c.aluK(bpf.OpMov, bpf.R2, int32(n))
	c.mov(bpf.R3, rVal)
	// Host and guest read through the page tables of the interrupted code,
	// whatever the address was said to be.
	c.call(bpf.HelperReadKernel)
	c.jif(bpf.OpJNE, bpf.R0, 0, fault)
}

// operand computes what v starts from into rVal.
func (c *compiler) operand(v *event.PlanValue, fault label) {
	switch v.From {
	case event.FromReg:
		c.ld(8, rVal, rCtx, ctxOff(v.Reg))
	case event.FromEntry:
		off, _ := entryArg(c.u.plan.Entry[v.Value].Reg)
		c.ld(8, rVal, rCtx, off)
	default:
		c.load64(rVal, v.Value)
	}
	for _, off := range v.Loads {
		c.add(rVal, off)
		c.read(8, fault)
		c.ld(8, rVal, rFP, slotWord)
	}
}

// extract applies the bit field of v to a register.
func (c *compiler) extract(v *event.PlanValue, r bpf.Reg) {
	if v.Bits {
		c.aluK(bpf.OpRsh, r, int32(v.Shift))
		c.and(r, v.Mask)
	}
}

// value makes value i of the record and its status.
func (c *compiler) value(i int, v *event.PlanValue) {
	status := at(c.u.plan.Status + i)
	fault, done := c.newLabel(), c.newLabel()
	n := max(1, v.Count)
	c.stK(1, rRec, status, 0)
	switch v.Store {
	case event.StoreLiteral:
		c.literal(v)
		return
	case event.StoreComm:
		c.comm(v)
		return
	}
	c.operand(v, fault)
	switch v.Store {
	case event.StoreValue:
		c.extract(v, rVal)
		c.st(v.Size, rRec, at(v.Offset), rVal)
	case event.StoreMemory:
		c.memory(v, status, fault)
	case event.StoreText:
		c.add(rVal, v.Last)
		c.text(at(v.Offset), func() { c.stK(1, rRec, status, event.TextCut) })
	case event.StoreTexts:
		c.textArray(v, status)
	}
	c.goTo(done)
	c.place(fault)
	c.zero(rRec, at(v.Offset), n*v.Size)
	if v.Store == event.StoreValue || v.Store == event.StoreMemory {
		c.stK(1, rRec, status, int32(n))
	}
	c.place(done)
}

// memory stores what stands in memory: all of it in one read where possible,
// else the elements up to the first that faults. A read that fails leaves
// zeros.
func (c *compiler) memory(v *event.PlanValue, status int, fault label) {
	n := max(1, v.Count)
	whole, loop, end := c.newLabel(), c.newLabel(), c.newLabel()
	c.add(rVal, v.Last)
	c.canonical(fault)
	c.mov(bpf.R1, rRec)
	c.add(bpf.R1, int64(at(v.Offset)))
	c.aluK(bpf.OpMov, bpf.R2, int32(n*v.Size))
	c.mov(bpf.R3, rVal)
	c.call(bpf.HelperReadKernel)
	c.jif(bpf.OpJEQ, bpf.R0, 0, whole)
	if n == 1 {
		c.stK(1, rRec, status, 1)
	} else {
		c.stK(8, rFP, slotCount, 0)
		start := len(c.insns)
		c.place(loop)
		c.ld(8, bpf.R4, rFP, slotCount)
		c.jif(bpf.OpJGE, bpf.R4, uint64(n-1), end) // the last one needs no second try
		c.aluK(bpf.OpMul, bpf.R4, int32(v.Size))
		c.mov(bpf.R1, rRec)
		c.alu(bpf.OpAdd, bpf.R1, bpf.R4)
		c.add(bpf.R1, int64(at(v.Offset)))
		c.aluK(bpf.OpMov, bpf.R2, int32(v.Size))
		c.mov(bpf.R3, rVal)
		c.alu(bpf.OpAdd, bpf.R3, bpf.R4)
		c.call(bpf.HelperReadKernel)
		c.jif(bpf.OpJNE, bpf.R0, 0, end)
		c.ld(8, bpf.R4, rFP, slotCount)
		c.add(bpf.R4, 1)
		c.st(8, rFP, slotCount, bpf.R4)
		c.goTo(loop)
		c.cost += int64(n * (len(c.insns) - start))
		c.place(end)
		c.aluK(bpf.OpMov, bpf.R1, int32(n))
		c.ld(8, bpf.R4, rFP, slotCount)
		c.alu(bpf.OpSub, bpf.R1, bpf.R4)
		c.st(1, rRec, status, bpf.R1)
	}
	c.place(whole)
	if v.Bits {
		for i := range n {
			off := at(v.Offset + i*v.Size)
			c.ld(v.Size, bpf.R1, rRec, off)
			c.extract(v, bpf.R1)
			c.st(v.Size, rRec, off, bpf.R1)
		}
	}
}
