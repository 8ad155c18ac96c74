package evbpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// textField makes a field of text, or of an array of texts. A text goes behind the
// record's end, and the field has its data_loc: length with NUL << 16 | offset, or 0
// for one that could not be read.
func (c *compiler) textField(x *event.Field, status int) {
	fault, done := c.newLabel(), c.newLabel()
	switch f := x.Fetch.(type) {
	case event.Literal:
		c.literal(f.Text)
	case event.Comm:
		c.addr(rVal, rRec, c.l.Comm)
		c.emit(ld(1, asm.R1, rVal, 0))
		c.jif(asm.JEq, asm.R1, 0, fault) // there is no task
	case event.Deref:
		c.value(f.Of, fault)
		c.add(rVal, f.Offset)
	default:
		c.value(f, fault)
	}
	_, literal := x.Fetch.(event.Literal)
	_, comm := x.Fetch.(event.Comm)
	switch {
	case literal || comm:
		c.text(x.Offset, status, fault)
	case x.Type.Count == 0:
		c.canonical(fault)
		c.text(x.Offset, status, fault)
	default:
		c.emit(st(8, rFP, slotBase, rVal))
		for i := range x.Type.Count {
			c.element(x.Offset+x.Size*i, 8*i, status)
		}
	}
	c.goTo(done)
	c.place(fault)
	c.zero(rRec, x.Offset, x.Elements()*x.Size)
	c.place(done)
}

// element stores the text whose address stands off bytes behind that in slotBase.
func (c *compiler) element(loc, off, status int) {
	fault, done := c.newLabel(), c.newLabel()
	c.emit(ld(8, rVal, rFP, slotBase))
	c.add(rVal, int64(off))
	c.read(8, fault)
	c.emit(ld(8, rVal, rFP, slotWord))
	c.canonical(fault)
	c.text(loc, status, fault)
	c.goTo(done)
	c.place(fault)
	c.emit(stK(4, rRec, loc, 0))
	c.place(done)
}

// text stores the text at rVal, which is an address of the program's own or
// canonical, and its data_loc.
func (c *compiler) text(loc, status int, fault label) {
	have, whole := c.newLabel(), c.newLabel()
	c.left--
	cut := c.l.Dynamic+c.l.Texts()*event.MaxText > c.l.MaxBytes
	if cut {
		// As much as a text may have, and at most what leaves one byte for each
		// text still to come.
		c.emit(load64(asm.R2, uint64(c.l.MaxBytes-c.left)), asm.Sub.Reg(asm.R2, rEnd))
		enough := c.newLabel()
		c.jif(asm.JLE, asm.R2, event.MaxText, enough)
		c.emit(asm.Mov.Imm(asm.R2, event.MaxText))
		c.place(enough)
		c.emit(st(8, rFP, slotRoom, asm.R2))
	} else {
		c.emit(asm.Mov.Imm(asm.R2, event.MaxText))
	}
	c.emit(asm.Mov.Reg(asm.R1, rRec), asm.Add.Reg(asm.R1, rEnd), asm.Mov.Reg(asm.R3, rVal), call(bpf.HelperReadKernelStr))
	c.jif(asm.JSLT, asm.R0, 1, fault)
	// All of the room: the helper has put a NUL in place of the last byte, which may
	// have been one.
	if cut {
		c.emit(ld(8, asm.R1, rFP, slotRoom))
		c.jumpTo(asm.JNE.Reg(asm.R0, asm.R1, ""), have)
	} else {
		c.jif(asm.JNE, asm.R0, event.MaxText, have)
	}
	c.emit(st(8, rFP, slotRoom, asm.R0), asm.Add.Reg(rVal, asm.R0))
	c.emit(asm.Add.Imm(rVal, -1))
	c.readByte()
	c.emit(ld(8, asm.R0, rFP, slotRoom), ld(1, asm.R1, rFP, slotWord))
	c.jif(asm.JEq, asm.R1, 0, whole)
	c.emit(stK(1, rRec, status, event.StatusCut))
	c.place(whole)
	c.place(have)
	c.emit(asm.Mov.Reg(asm.R1, asm.R0), asm.LSh.Imm(asm.R1, 16), asm.Or.Reg(asm.R1, rEnd), st(4, rRec, loc, asm.R1), asm.Add.Reg(rEnd, asm.R0))
}

// readByte reads the byte at rVal, which was read before, into slotWord.
func (c *compiler) readByte() {
	c.addr(asm.R1, rFP, slotWord)
	c.emit(asm.Mov.Imm(asm.R2, 1), asm.Mov.Reg(asm.R3, rVal), call(bpf.HelperReadKernel))
}

// literal puts the address of constant text, which is in the frame, into rVal.
func (c *compiler) literal(text string) {
	s := text + "\x00"
	for off := slotShort; len(s) > 0; {
		k := chunk(len(s))
		c.emit(load64(asm.R1, bytesAt(s, k)), st(k, rFP, off, asm.R1))
		s, off = s[k:], off+k
	}
	c.addr(rVal, rFP, slotShort)
}
