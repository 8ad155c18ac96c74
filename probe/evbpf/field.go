package evbpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
	"github.com/guestprobe/guestprobe/probe/event"
)

// field emits field i of the record. Its status is 0 already.
func (c *compiler) field(i int) {
	x := &c.l.Fields[i]
	status := event.RecordStatus + i
	fault, done := c.NewLabel(), c.NewLabel()
	switch of, memory := x.Fetch.(event.Deref); {
	case x.Type.HasText():
		c.textField(x, status)
		return
	case memory && x.Type.Format != event.SymStr:
		c.value(of.Of, fault)
		c.Add(rVal, of.Offset)
		c.memory(x, status, fault)
	default:
		c.value(x.Fetch, fault)
		c.extract(x, rVal)
		c.Emit(bpfgen.Store(x.Size, rRec, x.Offset, rVal))
	}
	if c.Used(fault) {
		c.GoTo(done)
		c.Place(fault)
		c.Zero(rRec, x.Offset, x.Elements()*x.Size)
		c.Emit(bpfgen.StoreConst(1, rRec, status, int32(x.Elements())))
		c.Place(done)
	}
}

// value puts the 8-byte value of an expression into rVal.
func (c *compiler) value(f event.Fetch, fault bpfgen.Label) {
	switch f := f.(type) {
	case event.Register:
		c.Emit(bpfgen.Load(8, rVal, rCtx, ctxOff(f.Reg)))
	case event.StackPointer:
		c.Emit(bpfgen.Load(8, rVal, rCtx, ctxOff(event.RegSP)))
	case event.RetVal:
		c.Emit(bpfgen.Load(8, rVal, rCtx, ctxOff(event.RegAX)))
	case event.StackSlot:
		c.value(event.Deref{Offset: 8 * int64(f.N), Of: event.StackPointer{}}, fault)
	case event.FuncArg:
		c.argument(f.N, fault)
	case event.Immediate:
		c.Emit(bpfgen.Const(rVal, f.Value))
	case event.Sum:
		c.value(f.Of, fault)
		c.Add(rVal, f.Offset)
	case event.Access:
		c.Emit(asm.Mov.Imm(asm.R1, int32(f.Which)), bpfgen.Call(bpf.HelperWatched), asm.Mov.Reg(rVal, asm.R0))
	case event.Deref:
		c.value(f.Of, fault)
		c.Add(rVal, f.Offset)
		c.read(8, fault)
		c.Emit(bpfgen.Load(8, rVal, rFP, slotWord))
	default:
		panic("BUG: expression without a number")
	}
}

// argument puts argument n of the function into rVal: at its entry from its place in
// the ABI, at its return from the data kept at the entry.
func (c *compiler) argument(n int, fault bpfgen.Label) {
	atReturn, inReg := c.l.Moment == event.AtReturn, n <= len(event.ArgRegs)
	switch {
	case inReg && atReturn:
		c.Emit(bpfgen.Load(8, rVal, rCtx, entryArgs+8*(n-1)))
	case inReg:
		c.Emit(bpfgen.Load(8, rVal, rCtx, ctxOff(event.ArgRegs[n-1])))
	case atReturn:
		c.Emit(asm.Mov.Imm(asm.R1, int32(n)))
		c.Addr(asm.R2, rFP, slotWord)
		c.Emit(bpfgen.Call(bpf.HelperEntryArg))
		c.If(asm.JNE, asm.R0, 0, fault)
		c.Emit(bpfgen.Load(8, rVal, rFP, slotWord))
	default:
		c.value(event.StackSlot{N: n - len(event.ArgRegs)}, fault)
	}
}

// checkCanonical jumps to fault if rVal could be an address of the program's own
// memory: bits 48 to 63 are neither clear nor as in a kernel's address, where 5-level
// paging requires only that bits 56 to 63 are set. Such an address is not a guest's,
// and the helpers would mistake it for the program's.
func (c *compiler) checkCanonical(fault bpfgen.Label) {
	ok := c.NewLabel()
	c.Emit(asm.Mov.Reg(asm.R1, rVal), asm.RSh.Imm(asm.R1, 48))
	c.If(asm.JEq, asm.R1, 0, ok)
	c.If(asm.JLT, asm.R1, 0xff00, fault)
	c.Place(ok)
}

// read reads n bytes at rVal into slotWord.
func (c *compiler) read(n int, fault bpfgen.Label) {
	c.checkCanonical(fault)
	c.Addr(asm.R1, rFP, slotWord)
	c.Emit(asm.Mov.Imm(asm.R2, int32(n)), asm.Mov.Reg(asm.R3, rVal), bpfgen.Call(bpf.HelperReadKernel))
	c.If(asm.JNE, asm.R0, 0, fault)
}

// extract applies the bit field of x to a register.
func (c *compiler) extract(x *event.Field, r asm.Register) {
	switch t := x.Type; {
	case t.Width == 0:
	case t.Format == event.Signed:
		c.Emit(asm.LSh.Imm(r, int32(64-t.Offset-t.Width)), asm.ArSh.Imm(r, int32(64-t.Width)))
	default:
		c.Emit(asm.RSh.Imm(r, int32(t.Offset)))
		c.And(r, 1<<t.Width-1)
	}
}

// memory stores the memory at rVal: all of it in one read if possible, otherwise the
// elements up to the first that faults. A read that fails leaves zeros.
func (c *compiler) memory(x *event.Field, status int, fault bpfgen.Label) {
	n := x.Elements()
	whole, loop, end := c.NewLabel(), c.NewLabel(), c.NewLabel()
	c.checkCanonical(fault)
	c.Addr(asm.R1, rRec, x.Offset)
	c.Emit(asm.Mov.Imm(asm.R2, int32(n*x.Size)), asm.Mov.Reg(asm.R3, rVal), bpfgen.Call(bpf.HelperReadKernel))
	c.If(asm.JEq, asm.R0, 0, whole)
	if n == 1 {
		c.Emit(bpfgen.StoreConst(1, rRec, status, 1))
	} else {
		c.Emit(bpfgen.StoreConst(8, rFP, slotCount, 0))
		start := len(c.Insns)
		c.Place(loop)
		c.Emit(bpfgen.Load(8, asm.R4, rFP, slotCount))
		c.If(asm.JGE, asm.R4, uint64(n-1), end) // the last one needs no second try
		c.Emit(asm.Mul.Imm(asm.R4, int32(x.Size)), asm.Mov.Reg(asm.R1, rRec), asm.Add.Reg(asm.R1, asm.R4))
		c.Add(asm.R1, int64(x.Offset))
		c.Emit(asm.Mov.Imm(asm.R2, int32(x.Size)), asm.Mov.Reg(asm.R3, rVal), asm.Add.Reg(asm.R3, asm.R4), bpfgen.Call(bpf.HelperReadKernel))
		c.If(asm.JNE, asm.R0, 0, end)
		c.Emit(bpfgen.Load(8, asm.R4, rFP, slotCount), asm.Add.Imm(asm.R4, 1), bpfgen.Store(8, rFP, slotCount, asm.R4))
		c.GoTo(loop)
		c.NoteRepeats(start, n)
		c.Place(end)
		c.Emit(asm.Mov.Imm(asm.R1, int32(n)), bpfgen.Load(8, asm.R4, rFP, slotCount), asm.Sub.Reg(asm.R1, asm.R4), bpfgen.Store(1, rRec, status, asm.R1))
	}
	c.Place(whole)
	if x.Type.Width > 0 {
		for i := range n {
			off := x.Offset + i*x.Size
			c.Emit(bpfgen.Load(x.Size, asm.R1, rRec, off))
			c.extract(x, asm.R1)
			c.Emit(bpfgen.Store(x.Size, rRec, off, asm.R1))
		}
	}
}
