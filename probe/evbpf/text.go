package evbpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
	"github.com/guestprobe/guestprobe/probe/event"
)

// textField emits a field of text, or of an array of texts. A text is appended to the
// record, and the field gets its data_loc: length with NUL << 16 | offset, or 0 if it
// could not be read.
func (c *compiler) textField(x *event.Field, status int) {
	fault, done := c.NewLabel(), c.NewLabel()
	switch f := x.Fetch.(type) {
	case event.Literal:
		c.literal(f.Text)
	case event.Comm:
		c.Addr(rVal, rRec, c.l.Comm)
		c.Emit(bpfgen.Load(1, asm.R1, rVal, 0))
		c.If(asm.JEq, asm.R1, 0, fault) // there is no task
	case event.Deref:
		c.value(f.Of, fault)
		c.Add(rVal, f.Offset)
	default:
		c.value(f, fault)
	}
	_, literal := x.Fetch.(event.Literal)
	_, comm := x.Fetch.(event.Comm)
	switch {
	case literal || comm:
		c.text(x.Offset, status, fault)
	case x.Type.Count == 0:
		c.checkCanonical(fault)
		c.text(x.Offset, status, fault)
	default:
		c.Emit(bpfgen.Store(8, rFP, slotBase, rVal))
		for i := range x.Type.Count {
			c.element(x.Offset+x.Size*i, 8*i, status)
		}
	}
	c.GoTo(done)
	c.Place(fault)
	c.Zero(rRec, x.Offset, x.Elements()*x.Size)
	c.Place(done)
}

// element stores the text whose address is at offset off from the address in
// slotBase.
func (c *compiler) element(loc, off, status int) {
	fault, done := c.NewLabel(), c.NewLabel()
	c.Emit(bpfgen.Load(8, rVal, rFP, slotBase))
	c.Add(rVal, int64(off))
	c.read(8, fault)
	c.Emit(bpfgen.Load(8, rVal, rFP, slotWord))
	c.checkCanonical(fault)
	c.text(loc, status, fault)
	c.GoTo(done)
	c.Place(fault)
	c.Emit(bpfgen.StoreConst(4, rRec, loc, 0))
	c.Place(done)
}

// text stores the text at rVal, which is an address of the program's own memory or
// canonical, and its data_loc.
func (c *compiler) text(loc, status int, fault bpfgen.Label) {
	have, whole := c.NewLabel(), c.NewLabel()
	c.left--
	cut := c.l.Dynamic+c.l.Texts()*event.MaxText > c.l.MaxBytes
	if cut {
		// The maximum length of a text, leaving at least one byte for each text still
		// to come.
		c.Emit(bpfgen.Const(asm.R2, uint64(c.l.MaxBytes-c.left)), asm.Sub.Reg(asm.R2, rEnd))
		enough := c.NewLabel()
		c.If(asm.JLE, asm.R2, event.MaxText, enough)
		c.Emit(asm.Mov.Imm(asm.R2, event.MaxText))
		c.Place(enough)
		c.Emit(bpfgen.Store(8, rFP, slotRoom, asm.R2))
	} else {
		c.Emit(asm.Mov.Imm(asm.R2, event.MaxText))
	}
	c.Emit(asm.Mov.Reg(asm.R1, rRec), asm.Add.Reg(asm.R1, rEnd), asm.Mov.Reg(asm.R3, rVal), bpfgen.Call(bpf.HelperReadKernelStr))
	c.If(asm.JSLT, asm.R0, 1, fault)
	// All of the room is used: the helper has replaced the last byte by a NUL, which
	// it may have been before.
	if cut {
		c.Emit(bpfgen.Load(8, asm.R1, rFP, slotRoom))
		c.JumpTo(asm.JNE.Reg(asm.R0, asm.R1, ""), have)
	} else {
		c.If(asm.JNE, asm.R0, event.MaxText, have)
	}
	c.Emit(bpfgen.Store(8, rFP, slotRoom, asm.R0), asm.Add.Reg(rVal, asm.R0))
	c.Emit(asm.Add.Imm(rVal, -1))
	c.readByte()
	c.Emit(bpfgen.Load(8, asm.R0, rFP, slotRoom), bpfgen.Load(1, asm.R1, rFP, slotWord))
	c.If(asm.JEq, asm.R1, 0, whole)
	c.Emit(bpfgen.StoreConst(1, rRec, status, event.StatusCut))
	c.Place(whole)
	c.Place(have)
	c.Emit(asm.Mov.Reg(asm.R1, asm.R0), asm.LSh.Imm(asm.R1, 16), asm.Or.Reg(asm.R1, rEnd), bpfgen.Store(4, rRec, loc, asm.R1), asm.Add.Reg(rEnd, asm.R0))
}

// readByte reads again the byte at rVal into slotWord.
func (c *compiler) readByte() {
	c.Addr(asm.R1, rFP, slotWord)
	c.Emit(asm.Mov.Imm(asm.R2, 1), asm.Mov.Reg(asm.R3, rVal), bpfgen.Call(bpf.HelperReadKernel))
}

// literal puts the address of constant text, which is in the frame, into rVal.
func (c *compiler) literal(text string) {
	s := text + "\x00"
	for off := slotShort; len(s) > 0; {
		k := bpfgen.Chunk(len(s))
		c.Emit(bpfgen.Const(asm.R1, bpfgen.BytesAt(s, k)), bpfgen.Store(k, rFP, off, asm.R1))
		s, off = s[k:], off+k
	}
	c.Addr(rVal, rFP, slotShort)
}
