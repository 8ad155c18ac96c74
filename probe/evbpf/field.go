package evbpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// field makes field i of the record. Its status is 0 already.
func (c *compiler) field(i int) {
	x := &c.l.Fields[i]
	status := event.RecordStatus + i
	fault, done := c.newLabel(), c.newLabel()
	switch of, memory := x.Fetch.(event.Deref); {
	case x.Type.HasText():
		c.textField(x, status)
		return
	case memory && x.Type.Format != event.SymStr:
		c.value(of.Of, fault)
		c.add(rVal, of.Offset)
		c.memory(x, status, fault)
	default:
		c.value(x.Fetch, fault)
		c.extract(x, rVal)
		c.emit(st(x.Size, rRec, x.Offset, rVal))
	}
	if c.used(fault) {
		c.goTo(done)
		c.place(fault)
		c.zero(rRec, x.Offset, x.Elements()*x.Size)
		c.emit(stK(1, rRec, status, int32(x.Elements())))
		c.place(done)
	}
}

// value puts what an expression gives, 8 bytes, into rVal.
func (c *compiler) value(f event.Fetch, fault label) {
	switch f := f.(type) {
	case event.Register:
		c.emit(ld(8, rVal, rCtx, ctxOff(f.Reg)))
	case event.StackPointer:
		c.emit(ld(8, rVal, rCtx, ctxOff(event.RegSP)))
	case event.RetVal:
		c.emit(ld(8, rVal, rCtx, ctxOff(event.RegAX)))
	case event.StackSlot:
		c.value(event.Deref{Offset: 8 * int64(f.N), Of: event.StackPointer{}}, fault)
	case event.FuncArg:
		c.argument(f.N, fault)
	case event.Immediate:
		c.emit(load64(rVal, f.Value))
	case event.Sum:
		c.value(f.Of, fault)
		c.add(rVal, f.Offset)
	case event.Access:
		c.emit(asm.Mov.Imm(asm.R1, int32(f.Which)), call(bpf.HelperWatched), asm.Mov.Reg(rVal, asm.R0))
	case event.Deref:
		c.value(f.Of, fault)
		c.add(rVal, f.Offset)
		c.read(8, fault)
		c.emit(ld(8, rVal, rFP, slotWord))
	default:
		panic("BUG: expression without a number")
	}
}

// argument puts argument n of the function into rVal: at its entry from where the ABI
// has it, at its return from what was kept of the entry.
func (c *compiler) argument(n int, fault label) {
	atReturn, inReg := c.l.Moment == event.AtReturn, n <= len(event.ArgRegs)
	switch {
	case inReg && atReturn:
		c.emit(ld(8, rVal, rCtx, entryArgs+8*(n-1)))
	case inReg:
		c.emit(ld(8, rVal, rCtx, ctxOff(event.ArgRegs[n-1])))
	case atReturn:
		c.emit(asm.Mov.Imm(asm.R1, int32(n)))
		c.addr(asm.R2, rFP, slotWord)
		c.emit(call(bpf.HelperEntryArg))
		c.jif(asm.JNE, asm.R0, 0, fault)
		c.emit(ld(8, rVal, rFP, slotWord))
	default:
		c.value(event.StackSlot{N: n - len(event.ArgRegs)}, fault)
	}
}

// canonical jumps to fault when rVal is an address that the program's own
// memory has: bits 48 to 63 are neither clear nor those of a kernel's address, of which
// 5-level paging leaves bits 56 to 63 set. Such an address is no guest's, and the
// helpers would take it for the program's.
func (c *compiler) canonical(fault label) {
	ok := c.newLabel()
	c.emit(asm.Mov.Reg(asm.R1, rVal), asm.RSh.Imm(asm.R1, 48))
	c.jif(asm.JEq, asm.R1, 0, ok)
	c.jif(asm.JLT, asm.R1, 0xff00, fault)
	c.place(ok)
}

// read reads n bytes at rVal into slotWord.
func (c *compiler) read(n int, fault label) {
	c.canonical(fault)
	c.addr(asm.R1, rFP, slotWord)
	c.emit(asm.Mov.Imm(asm.R2, int32(n)), asm.Mov.Reg(asm.R3, rVal), call(bpf.HelperReadKernel))
	c.jif(asm.JNE, asm.R0, 0, fault)
}

// extract applies the bit field of x to a register.
func (c *compiler) extract(x *event.Field, r asm.Register) {
	switch t := x.Type; {
	case t.Width == 0:
	case t.Format == event.Signed:
		c.emit(asm.LSh.Imm(r, int32(64-t.Offset-t.Width)), asm.ArSh.Imm(r, int32(64-t.Width)))
	default:
		c.emit(asm.RSh.Imm(r, int32(t.Offset)))
		c.and(r, 1<<t.Width-1)
	}
}

// memory stores what stands at rVal: all of it in one read where possible, else
// the elements up to the first that faults. A read that fails leaves zeros.
func (c *compiler) memory(x *event.Field, status int, fault label) {
	n := x.Elements()
	whole, loop, end := c.newLabel(), c.newLabel(), c.newLabel()
	c.canonical(fault)
	c.addr(asm.R1, rRec, x.Offset)
	c.emit(asm.Mov.Imm(asm.R2, int32(n*x.Size)), asm.Mov.Reg(asm.R3, rVal), call(bpf.HelperReadKernel))
	c.jif(asm.JEq, asm.R0, 0, whole)
	if n == 1 {
		c.emit(stK(1, rRec, status, 1))
	} else {
		c.emit(stK(8, rFP, slotCount, 0))
		start := len(c.insns)
		c.place(loop)
		c.emit(ld(8, asm.R4, rFP, slotCount))
		c.jif(asm.JGE, asm.R4, uint64(n-1), end) // the last one needs no second try
		c.emit(asm.Mul.Imm(asm.R4, int32(x.Size)), asm.Mov.Reg(asm.R1, rRec), asm.Add.Reg(asm.R1, asm.R4))
		c.add(asm.R1, int64(x.Offset))
		c.emit(asm.Mov.Imm(asm.R2, int32(x.Size)), asm.Mov.Reg(asm.R3, rVal), asm.Add.Reg(asm.R3, asm.R4), call(bpf.HelperReadKernel))
		c.jif(asm.JNE, asm.R0, 0, end)
		c.emit(ld(8, asm.R4, rFP, slotCount), asm.Add.Imm(asm.R4, 1), st(8, rFP, slotCount, asm.R4))
		c.goTo(loop)
		c.repeats(start, n)
		c.place(end)
		c.emit(asm.Mov.Imm(asm.R1, int32(n)), ld(8, asm.R4, rFP, slotCount), asm.Sub.Reg(asm.R1, asm.R4), st(1, rRec, status, asm.R1))
	}
	c.place(whole)
	if x.Type.Width > 0 {
		for i := range n {
			off := x.Offset + i*x.Size
			c.emit(ld(x.Size, asm.R1, rRec, off))
			c.extract(x, asm.R1)
			c.emit(st(x.Size, rRec, off, asm.R1))
		}
	}
}
