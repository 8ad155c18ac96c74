package evbpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// node jumps to yes or no. Where yes comes next in the program is of no
// concern.
func (c *compiler) node(n *event.FilterNode, yes, no label) {
	switch n.Op {
	case event.FilterNot:
		c.node(n.X, no, yes)
	case event.FilterAnd:
		mid := c.newLabel()
		c.node(n.X, mid, no)
		c.place(mid)
		c.node(n.Y, yes, no)
	case event.FilterOr:
		mid := c.newLabel()
		c.node(n.X, yes, mid)
		c.place(mid)
		c.node(n.Y, yes, no)
	default:
		// Terms have labels of their own: conditional jumps do not reach far.
		holds, fails := c.newLabel(), c.newLabel()
		if n.Term.IsText {
			c.textTerm(n.Term, holds, fails)
		} else {
			c.numberTerm(n.Term, holds, fails)
		}
		c.place(fails)
		c.goTo(no)
		c.place(holds)
		c.goTo(yes)
	}
}

// jumpOf has the comparison of numbers as a jump, without and with sign.
var jumpOf = map[event.Comparison][2]asm.JumpOp{
	event.Equal: {asm.JEq, asm.JEq}, event.NotEqual: {asm.JNE, asm.JNE},
	event.Less: {asm.JLT, asm.JSLT}, event.LessEqual: {asm.JLE, asm.JSLE},
	event.Greater: {asm.JGT, asm.JSGT}, event.GreaterEqual: {asm.JGE, asm.JSGE},
	event.AnyBit: {asm.JSet, asm.JSet},
}

func (c *compiler) numberTerm(t *event.FilterTerm, yes, no label) {
	c.number(t, no)
	sign := 0
	if t.Signed {
		sign = 1
	}
	c.jif(jumpOf[t.Is][sign], rVal, t.Num, yes)
}

// number puts the field of a term, extended to 64 bits, into rVal.
func (c *compiler) number(t *event.FilterTerm, fault label) {
	bits := 64
	switch t.Field {
	case event.FieldCPU:
		c.emit(call(bpf.HelperGetCPU), asm.Mov.Reg(rVal, asm.R0))
	case event.FieldPID:
		c.emit(call(bpf.HelperGetPIDTGID), asm.Mov.Reg(rVal, asm.R0))
		bits = 32
	case event.FieldFlags:
		// Bit 0 is set when RFLAGS.IF, bit 9, is clear (SDM Vol. 1, 3.4.3.3).
		c.emit(ld(8, rVal, rCtx, ctxOff(event.RegFlags)), asm.RSh.Imm(rVal, 9))
		c.and(rVal, 1)
		c.emit(asm.Xor.Imm(rVal, 1))
	case event.FieldPreempt:
		c.emit(asm.Mov.Imm(rVal, 0))
	case event.FieldAddr:
		if c.l.Def().Kind == event.KindWatch {
			c.emit(call(bpf.HelperGetFuncIP), asm.Mov.Reg(rVal, asm.R0))
		} else {
			c.emit(load64(rVal, uint64(c.l.Addr())))
		}
	case event.FieldRet:
		c.emit(ld(8, rVal, rCtx, ctxOff(event.RegIP)))
	case event.FieldValue:
		x := &c.l.Fields[t.Value]
		if d, memory := x.Fetch.(event.Deref); memory && x.Type.Format != event.SymStr {
			c.value(d.Of, fault)
			c.add(rVal, d.Offset)
			c.read(x.Size, fault)
			c.emit(ld(x.Size, rVal, rFP, slotWord))
		} else {
			c.value(x.Fetch, fault)
		}
		c.extract(x, rVal)
		bits = 8 * x.Size
	}
	if bits < 64 {
		c.emit(asm.LSh.Imm(rVal, int32(64-bits)))
		if t.Signed {
			c.emit(asm.ArSh.Imm(rVal, int32(64-bits)))
		} else {
			c.emit(asm.RSh.Imm(rVal, int32(64-bits)))
		}
	}
}

// longTexts reports whether a filter looks at text in the guest's memory, which can be
// longer than a frame.
func longTexts(l *event.Layout, n *event.FilterNode) bool {
	switch {
	case n == nil:
		return false
	case n.Term == nil:
		return longTexts(l, n.X) || longTexts(l, n.Y)
	case !n.Term.IsText || n.Term.Field == event.FieldComm:
		return false
	}
	switch l.Fields[n.Term.Value].Fetch.(type) {
	case event.Literal, event.Comm:
		return false
	}
	return true
}

// textTerm compares text, which is brought into the program's own memory first.
func (c *compiler) textTerm(t *event.FilterTerm, yes, no label) {
	var fetch event.Fetch = event.Comm{}
	if t.Field == event.FieldValue {
		fetch = c.l.Fields[t.Value].Fetch
	}
	switch f := fetch.(type) {
	case event.Literal:
		c.literal(f.Text)
		c.emit(asm.Mov.Imm(asm.R0, int32(len(f.Text)+1)))
	case event.Comm:
		c.addr(asm.R1, rFP, slotShort)
		c.emit(asm.Mov.Imm(asm.R2, event.CommSize), call(bpf.HelperGetComm), ld(1, asm.R1, rFP, slotShort))
		c.jif(asm.JEq, asm.R1, 0, no) // there is no task
		c.addr(rVal, rFP, slotShort)
		// A copy tells its length.
		c.addr(asm.R1, rVal, event.CommSize)
		c.emit(asm.Mov.Imm(asm.R2, event.CommSize), asm.Mov.Reg(asm.R3, rVal), call(bpf.HelperReadKernelStr))
	case event.Deref:
		c.value(f.Of, no)
		c.add(rVal, f.Offset)
		c.longText(no)
	default:
		c.value(f, no)
		c.longText(no)
	}
	if t.Is == event.NotEqual {
		yes, no = no, yes
	}
	p := pattern{parts: []run{literalRun(t.Text)}, head: true, tail: true}
	if t.Is == event.Match {
		p = parsePattern(t.Text)
	}
	c.match(p, yes, no)
}

// longText reads the text at rVal into the state, where rVal is then; R0 is its length
// with the NUL.
func (c *compiler) longText(fault label) {
	c.canonical(fault)
	c.emit(ld(8, asm.R1, rFP, slotState), asm.Mov.Imm(asm.R2, event.MaxText), asm.Mov.Reg(asm.R3, rVal), call(bpf.HelperReadKernelStr))
	c.jif(asm.JSLT, asm.R0, 1, fault)
	c.emit(ld(8, rVal, rFP, slotState))
}
