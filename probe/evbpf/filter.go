package evbpf

import (
	"github.com/cilium/ebpf/asm"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/bpfgen"
	"github.com/guestprobe/guestprobe/probe/event"
)

// node jumps to yes or no. yes need not come next in the program.
func (c *compiler) node(n *event.FilterNode, yes, no bpfgen.Label) {
	switch n.Op {
	case event.FilterNot:
		c.node(n.X, no, yes)
	case event.FilterAnd:
		mid := c.NewLabel()
		c.node(n.X, mid, no)
		c.Place(mid)
		c.node(n.Y, yes, no)
	case event.FilterOr:
		mid := c.NewLabel()
		c.node(n.X, yes, mid)
		c.Place(mid)
		c.node(n.Y, yes, no)
	default:
		// Terms have labels of their own, because conditional jumps do not reach far.
		holds, fails := c.NewLabel(), c.NewLabel()
		if n.Term.IsText {
			c.textTerm(n.Term, holds, fails)
		} else {
			c.numberTerm(n.Term, holds, fails)
		}
		c.Place(fails)
		c.GoTo(no)
		c.Place(holds)
		c.GoTo(yes)
	}
}

// jumpOf has the comparison of numbers as a jump, unsigned and signed.
var jumpOf = map[event.Comparison][2]asm.JumpOp{
	event.Equal: {asm.JEq, asm.JEq}, event.NotEqual: {asm.JNE, asm.JNE},
	event.Less: {asm.JLT, asm.JSLT}, event.LessEqual: {asm.JLE, asm.JSLE},
	event.Greater: {asm.JGT, asm.JSGT}, event.GreaterEqual: {asm.JGE, asm.JSGE},
	event.AnyBit: {asm.JSet, asm.JSet},
}

func (c *compiler) numberTerm(t *event.FilterTerm, yes, no bpfgen.Label) {
	c.number(t, no)
	sign := 0
	if t.Signed {
		sign = 1
	}
	c.If(jumpOf[t.Is][sign], rVal, t.Num, yes)
}

// number puts the field of a term, extended to 64 bits, into rVal.
func (c *compiler) number(t *event.FilterTerm, fault bpfgen.Label) {
	bits := 64
	switch t.Field {
	case event.FieldCPU:
		c.Emit(bpfgen.Call(bpf.HelperGetCPU), asm.Mov.Reg(rVal, asm.R0))
	case event.FieldPID:
		c.Emit(bpfgen.Call(bpf.HelperGetPIDTGID), asm.Mov.Reg(rVal, asm.R0))
		bits = 32
	case event.FieldFlags:
		// Bit 0 is set if RFLAGS.IF, bit 9, is clear (SDM Vol. 1, 3.4.3.3).
		c.Emit(bpfgen.Load(8, rVal, rCtx, ctxOff(event.RegFlags)), asm.RSh.Imm(rVal, 9))
		c.And(rVal, 1)
		c.Emit(asm.Xor.Imm(rVal, 1))
	case event.FieldPreempt:
		c.Emit(asm.Mov.Imm(rVal, 0))
	case event.FieldAddr:
		c.Emit(bpfgen.Call(bpf.HelperGetFuncIP), asm.Mov.Reg(rVal, asm.R0))
	case event.FieldRet:
		c.Emit(bpfgen.Load(8, rVal, rCtx, ctxOff(event.RegIP)))
	case event.FieldValue:
		x := &c.l.Fields[t.Value]
		if d, memory := x.Fetch.(event.Deref); memory && x.Type.Format != event.SymStr {
			c.value(d.Of, fault)
			c.Add(rVal, d.Offset)
			c.read(x.Size, fault)
			c.Emit(bpfgen.Load(x.Size, rVal, rFP, slotWord))
		} else {
			c.value(x.Fetch, fault)
		}
		c.extract(x, rVal)
		bits = 8 * x.Size
	}
	if bits < 64 {
		c.Emit(asm.LSh.Imm(rVal, int32(64-bits)))
		if t.Signed {
			c.Emit(asm.ArSh.Imm(rVal, int32(64-bits)))
		} else {
			c.Emit(asm.RSh.Imm(rVal, int32(64-bits)))
		}
	}
}

// longTexts reports whether a filter tests text in the guest's memory, which can be
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

// textTerm compares text, after reading it into the program's own memory.
func (c *compiler) textTerm(t *event.FilterTerm, yes, no bpfgen.Label) {
	var fetch event.Fetch = event.Comm{}
	if t.Field == event.FieldValue {
		fetch = c.l.Fields[t.Value].Fetch
	}
	switch f := fetch.(type) {
	case event.Literal:
		c.literal(f.Text)
		c.Emit(asm.Mov.Imm(asm.R0, int32(len(f.Text)+1)))
	case event.Comm:
		c.Addr(asm.R1, rFP, slotShort)
		c.Emit(asm.Mov.Imm(asm.R2, event.CommSize), bpfgen.Call(bpf.HelperGetComm), bpfgen.Load(1, asm.R1, rFP, slotShort))
		c.If(asm.JEq, asm.R1, 0, no) // there is no task
		c.Addr(rVal, rFP, slotShort)
		// The copy returns its length.
		c.Addr(asm.R1, rVal, event.CommSize)
		c.Emit(asm.Mov.Imm(asm.R2, event.CommSize), asm.Mov.Reg(asm.R3, rVal), bpfgen.Call(bpf.HelperReadKernelStr))
	case event.Deref:
		c.value(f.Of, no)
		c.Add(rVal, f.Offset)
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

// longText reads the text at rVal into the state and sets rVal to its address there;
// R0 is its length with the NUL.
func (c *compiler) longText(fault bpfgen.Label) {
	c.checkCanonical(fault)
	c.Emit(bpfgen.Load(8, asm.R1, rFP, slotState), asm.Mov.Imm(asm.R2, event.MaxText), asm.Mov.Reg(asm.R3, rVal), bpfgen.Call(bpf.HelperReadKernelStr))
	c.If(asm.JSLT, asm.R0, 1, fault)
	c.Emit(bpfgen.Load(8, rVal, rFP, slotState))
}
