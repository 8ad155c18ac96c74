package evbpf

import (
	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// textRead is how much of a text is read in one call: all but the byte behind
// it, which need not be readable.
const textRead = event.TextSize - 1

// text stores the text at rVal and its data_loc, or a fault. cut notes that it
// was longer than it may be.
func (c *compiler) text(loc int, cut func()) {
	fault, have, whole, done := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
	c.canonical(fault)
	c.mov(bpf.R1, rRec)
	c.alu(bpf.OpAdd, bpf.R1, rEnd)
	c.add(bpf.R1, PrefixSize)
	c.aluK(bpf.OpMov, bpf.R2, textRead)
	c.mov(bpf.R3, rVal)
	c.call(bpf.HelperReadKernelStr)
	c.jif(bpf.OpJSLT, bpf.R0, 1, fault)
	c.mov(bpf.R5, bpf.R0)
	c.jif(bpf.OpJNE, bpf.R0, textRead, have)
	// The helper has put a NUL in place of the last byte, which may have been one.
	c.add(rVal, textRead-1)
	c.read(1, fault)
	c.ld(1, bpf.R1, rFP, slotWord)
	c.aluK(bpf.OpMov, bpf.R5, textRead)
	c.jif(bpf.OpJEQ, bpf.R1, 0, whole)
	c.mov(bpf.R3, rRec)
	c.alu(bpf.OpAdd, bpf.R3, rEnd)
	c.st(1, bpf.R3, PrefixSize+textRead-1, bpf.R1)
	c.stK(1, bpf.R3, PrefixSize+textRead, 0)
	c.aluK(bpf.OpMov, bpf.R5, textRead+1)
	cut()
	c.place(whole)
	c.place(have)
	c.keep(loc)
	c.goTo(done)
	c.place(fault)
	c.stK(4, rRec, loc, 0)
	c.place(done)
}

// keep makes the R5 bytes behind the record's end part of it: the data_loc is
// length << 16 | offset.
func (c *compiler) keep(loc int) {
	c.mov(bpf.R1, bpf.R5)
	c.aluK(bpf.OpLsh, bpf.R1, 16)
	c.alu(bpf.OpOr, bpf.R1, rEnd)
	c.st(4, rRec, loc, bpf.R1)
	c.alu(bpf.OpAdd, rEnd, bpf.R5)
}

// textArray stores the text at each of the pointers at rVal.
func (c *compiler) textArray(v *event.PlanValue, status int) {
	c.add(rVal, v.Last)
	c.st(8, rFP, slotBase, rVal)
	c.stK(8, rFP, slotCut, 0)
	for i := range v.Count {
		loc := at(v.Offset + 4*i)
		fault, done := c.newLabel(), c.newLabel()
		c.ld(8, rVal, rFP, slotBase)
		c.add(rVal, int64(8*i))
		c.read(8, fault)
		c.ld(8, rVal, rFP, slotWord)
		c.text(loc, func() { c.stK(8, rFP, slotCut, event.TextCut) })
		c.goTo(done)
		c.place(fault)
		c.stK(4, rRec, loc, 0)
		c.place(done)
	}
	c.ld(8, bpf.R1, rFP, slotCut)
	c.st(1, rRec, status, bpf.R1)
}

// literal stores constant text.
func (c *compiler) literal(v *event.PlanValue) {
	s := v.Literal + "\x00"
	c.mov(bpf.R3, rRec)
	c.alu(bpf.OpAdd, bpf.R3, rEnd)
	c.aluK(bpf.OpMov, bpf.R5, int32(len(s)))
	for off := PrefixSize; len(s) > 0; {
		k := chunk(len(s))
		c.load64(bpf.R1, bytesAt(s, k))
		c.st(k, bpf.R3, off, bpf.R1)
		s, off = s[k:], off+k
	}
	c.keep(at(v.Offset))
}

// comm stores the task's name, which the record has in full already.
func (c *compiler) comm(v *event.PlanValue) {
	loop, end, fault, done := c.newLabel(), c.newLabel(), c.newLabel(), c.newLabel()
	name := at(c.u.plan.Comm)
	c.aluK(bpf.OpMov, bpf.R5, 0)
	start := len(c.insns)
	c.place(loop)
	c.mov(bpf.R3, rRec)
	c.alu(bpf.OpAdd, bpf.R3, bpf.R5)
	c.ld(1, bpf.R1, bpf.R3, name)
	c.jif(bpf.OpJEQ, bpf.R1, 0, end)
	c.add(bpf.R5, 1)
	c.jif(bpf.OpJLT, bpf.R5, event.CommSize, loop)
	c.cost += int64(event.CommSize * (len(c.insns) - start))
	c.place(end)
	c.jif(bpf.OpJEQ, bpf.R5, 0, fault)
	c.mov(bpf.R3, rRec)
	c.alu(bpf.OpAdd, bpf.R3, rEnd)
	for i := 0; i < event.CommSize; i += 8 {
		c.ld(8, bpf.R1, rRec, name+i)
		c.st(8, bpf.R3, PrefixSize+i, bpf.R1)
	}
	c.alu(bpf.OpAdd, bpf.R3, bpf.R5)
	c.stK(1, bpf.R3, PrefixSize, 0)
	c.add(bpf.R5, 1)
	c.keep(at(v.Offset))
	c.goTo(done)
	c.place(fault)
	c.stK(4, rRec, at(v.Offset), 0)
	c.place(done)
}
