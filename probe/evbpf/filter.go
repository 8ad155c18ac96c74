package evbpf

import (
	"strings"

	"github.com/guestprobe/guestprobe/probe/bpf"
	"github.com/guestprobe/guestprobe/probe/event"
)

// maxInner bounds the text that is looked for at every place of another one.
const maxInner = 16

// pattern is a comparison of texts that has a form as a program: the text
// begins with, ends with, is, or has in it, a constant.
type pattern struct {
	text       string
	head, tail bool // the constant stands at the beginning, at the end
}

// classify finds the form of a comparison, or says why it has none.
func classify(t *event.FilterTerm) (pattern, error) {
	p := pattern{text: t.Text, head: true, tail: true}
	if t.Is != event.Match {
		return p, nil
	}
	if strings.ContainsAny(t.Text, `?[\`) {
		return p, onHost("the filter's pattern %q has more than * in it", t.Text)
	}
	inner := strings.TrimLeft(t.Text, "*")
	p.head = len(inner) == len(t.Text)
	p.text = strings.TrimRight(inner, "*")
	p.tail = len(p.text) == len(inner) && !(p.text == "" && !p.head)
	switch {
	case strings.Contains(p.text, "*"):
		return p, onHost("the filter's pattern %q has a * between other characters", t.Text)
	case !p.head && !p.tail && len(p.text) > maxInner:
		return p, onHost("the filter's pattern %q looks for more than %d characters anywhere", t.Text, maxInner)
	}
	return p, nil
}

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
var jumpOf = map[event.Comparison][2]bpf.Opcode{
	event.Equal: {bpf.OpJEQ, bpf.OpJEQ}, event.NotEqual: {bpf.OpJNE, bpf.OpJNE},
	event.Less: {bpf.OpJLT, bpf.OpJSLT}, event.LessEqual: {bpf.OpJLE, bpf.OpJSLE},
	event.Greater: {bpf.OpJGT, bpf.OpJSGT}, event.GreaterEqual: {bpf.OpJGE, bpf.OpJSGE},
	event.AnyBit: {bpf.OpJSET, bpf.OpJSET},
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
		c.call(bpf.HelperGetCPU)
		c.mov(rVal, bpf.R0)
		return
	case event.FieldPID:
		c.call(bpf.HelperGetPIDTGID)
		c.mov(rVal, bpf.R0)
		bits = 32
	case event.FieldFlags:
		c.irqsOff(rVal)
		return
	case event.FieldAddr:
		c.load64(rVal, uint64(c.addr))
		return
	case event.FieldRet:
		c.ld(8, rVal, rCtx, ctxOff(event.RegIP))
		return
	case event.FieldValue:
		v := &c.u.plan.Values[t.Value]
		c.operand(v, fault)
		if v.Store == event.StoreMemory {
			c.add(rVal, v.Last)
			c.read(v.Size, fault)
			c.ld(v.Size, rVal, rFP, slotWord)
		}
		c.extract(v, rVal)
		bits = 8 * v.Size
	}
	if bits < 64 {
		c.aluK(bpf.OpLsh, rVal, int32(64-bits))
		if t.Signed {
			c.aluK(bpf.OpArsh, rVal, int32(64-bits))
		} else {
			c.aluK(bpf.OpRsh, rVal, int32(64-bits))
		}
	}
}

func (c *compiler) textTerm(t *event.FilterTerm, yes, no label) {
	p, _ := classify(t) // New has asked
	store, v := event.StoreComm, (*event.PlanValue)(nil)
	if t.Field == event.FieldValue {
		v = &c.u.plan.Values[t.Value]
		store = v.Store
	}
	size := textRead
	switch store {
	case event.StoreLiteral:
		if t.Holds(v.Literal) {
			c.goTo(yes)
		}
		return
	case event.StoreComm:
		// Like any text, from the program's own memory.
		c.stK(8, rFP, slotComm+event.CommSize, 0)
		c.mov(bpf.R1, rFP)
		c.add(bpf.R1, slotComm)
		c.aluK(bpf.OpMov, bpf.R2, event.CommSize)
		c.call(bpf.HelperGetComm)
		c.ld(1, bpf.R1, rFP, slotComm)
		c.jif(bpf.OpJEQ, bpf.R1, 0, no)
		c.mov(rVal, rFP)
		c.add(rVal, slotComm)
		size = event.CommSize + 1
	default:
		c.operand(v, no)
		c.add(rVal, v.Last)
		c.canonical(no)
	}
	c.ld(8, bpf.R1, rFP, slotState)
	c.add(bpf.R1, int64(c.u.compare))
	c.aluK(bpf.OpMov, bpf.R2, int32(size))
	c.mov(bpf.R3, rVal)
	c.call(bpf.HelperReadKernelStr)
	c.jif(bpf.OpJSLT, bpf.R0, 1, no)
	c.ld(8, rVal, rFP, slotState)
	c.add(rVal, int64(c.u.compare))
	if t.Is == event.NotEqual {
		yes, no = no, yes
	}
	c.compareText(p, yes, no)
}

// compareText compares the text at rVal, of R0 bytes with its NUL. It ends by
// jumping to yes or no, never behind itself.
func (c *compiler) compareText(p pattern, yes, no label) {
	n := uint64(len(p.text)) + 1
	if p.head && p.tail {
		c.jif(bpf.OpJNE, bpf.R0, n, no)
	} else {
		c.jif(bpf.OpJLT, bpf.R0, n, no)
	}
	switch {
	case p.head:
		c.compareAt(p.text, no)
		c.goTo(yes)
		return
	case p.tail:
		c.alu(bpf.OpAdd, rVal, bpf.R0)
		c.add(rVal, -int64(n))
		c.compareAt(p.text, no)
		c.goTo(yes)
		return
	}
	// R0 is the number of bytes from here on, with the NUL.
	loop, next := c.newLabel(), c.newLabel()
	start := len(c.insns)
	c.place(loop)
	c.compareAt(p.text, next)
	c.goTo(yes)
	c.place(next)
	c.add(rVal, 1)
	c.add(bpf.R0, -1)
	c.jif(bpf.OpJGE, bpf.R0, n, loop)
	c.cost += int64(event.TextSize * (len(c.insns) - start))
	c.goTo(no)
}

// compareAt jumps to differs unless text stands at rVal.
func (c *compiler) compareAt(text string, differs label) {
	for off := 0; off < len(text); {
		k := chunk(len(text) - off)
		c.ld(k, bpf.R1, rVal, off)
		c.jif(bpf.OpJNE, bpf.R1, bytesAt(text[off:], k), differs)
		off += k
	}
}
