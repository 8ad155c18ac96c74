package event

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of a filter.
const (
	maxFilter      = 4095 // bytes of an expression
	maxFilterTerms = 128
	maxFilterDepth = 64  // nesting depth of parentheses and negations
	maxFilterValue = 255 // bytes of a text (the kernel's MAX_FILTER_STR_VAL with its NUL)
)

// FilterNode is one node of a filter's expression. A term has a Term, a negation its
// operand in X, a conjunction and a disjunction their operands in X and Y.
type FilterNode struct {
	Op   FilterOp
	X, Y *FilterNode
	Term *FilterTerm
}

// FilterOp is the kind of a FilterNode.
type FilterOp uint8

// The kinds of node.
const (
	FilterTest FilterOp = iota // a term
	FilterNot
	FilterAnd
	FilterOr
)

// FilterTerm compares one field with a constant. If the field cannot be read at a
// hit, the term is false, whatever its comparison.
type FilterTerm struct {
	Field  FilterField
	Value  int        // FieldValue: index in Layout.Fields
	Signed bool       // numbers are compared as signed
	Is     Comparison // the operator
	Num    uint64     // the operand: a number
	Text   string     // or text, or a pattern
	IsText bool
}

// FilterField is the field of a term.
type FilterField uint8

// The fields.
const (
	FieldValue   FilterField = iota // a value of the definition
	FieldCPU                        // cpu, common_cpu: number of the vCPU
	FieldPID                        // common_pid: the task
	FieldComm                       // comm: its name
	FieldFlags                      // common_flags: bit 0 is set if interrupts are off
	FieldAddr                       // __probe_ip, __probe_func: the probed address
	FieldRet                        // __probe_ret_ip: the address returned to
	FieldPreempt                    // common_preempt_count: 0, as in a kernel that does not count
)

// Comparison is an operator of the filter language.
type Comparison uint8

// The operators.
const (
	Equal Comparison = iota
	NotEqual
	Less
	LessEqual
	Greater
	GreaterEqual
	AnyBit // &: some bit of the number is set
	Match  // ~: the text matches a pattern
)

var comparisonText = [...]string{"==", "!=", "<", "<=", ">", ">=", "&", "~"}

// String returns the operator as written.
func (c Comparison) String() string {
	if int(c) < len(comparisonText) {
		return comparisonText[c]
	}
	return fmt.Sprintf("Comparison(%d)", uint8(c))
}

// Filter decides which hits of a definition count. It does not change.
type Filter struct {
	text string
	root *FilterNode
}

// Filter parses an expression over the fields of f and the common fields of every
// record:
//
//	count > 100 && (fd == 3 || name ~ "/etc/*") && !(common_pid == 0)
//
// The syntax is that of the kernel's event filters (Documentation/trace/events.rst).
// The error is a *SyntaxError about the expression.
func (f *Layout) Filter(text string) (*Filter, error) {
	p := &filterParser{text: text, layout: f}
	root, err := p.parse()
	if err != nil {
		return nil, err
	}
	return &Filter{text: text, root: root}, nil
}

// String returns the expression as written.
func (m *Filter) String() string { return m.text }

// Root returns the expression. It must not be changed.
func (m *Filter) Root() *FilterNode { return m.root }

// field is the meaning of a name.
type field struct {
	id     FilterField
	value  int
	text   bool
	signed bool
	bits   int // of a number
	name   string
}

// lookup finds a field: the definition's own values come first.
func (p *filterParser) lookup(name string) (field, Code, string) {
	f := p.layout
	if i := slices.IndexFunc(f.Fields, func(x Field) bool { return x.Name == name }); i >= 0 {
		x := &f.Fields[i]
		n := field{id: FieldValue, value: i, text: x.Type.HasText(), signed: x.Type.Format == Signed, bits: 8 * x.Size, name: name}
		if x.Type.Width > 0 {
			n.bits = x.Type.Width
		}
		if x.Type.Count > 0 {
			return n, CodeIllegalFieldOp, "an array has no one value to compare"
		}
		return n, "", ""
	}
	task := func(n field) (field, Code, string) {
		if f.Comm == 0 {
			return n, CodeNoProfile, name + " needs to know how the guest keeps its tasks"
		}
		return n, "", ""
	}
	switch name {
	case "cpu", "CPU", "common_cpu":
		return field{id: FieldCPU, bits: 32, name: name}, "", ""
	case "common_pid":
		return task(field{id: FieldPID, bits: 32, signed: true, name: name})
	case "comm", "COMM", "common_comm":
		return task(field{id: FieldComm, text: true, name: name})
	case "common_flags":
		return field{id: FieldFlags, bits: 8, name: name}, "", ""
	case "common_preempt_count":
		return field{id: FieldPreempt, bits: 8, name: name}, "", ""
	case "__probe_ip":
		if f.Moment != AtReturn {
			return field{id: FieldAddr, bits: 64, name: name}, "", ""
		}
	case "__probe_func":
		if f.Moment == AtReturn {
			return field{id: FieldAddr, bits: 64, name: name}, "", ""
		}
	case "__probe_ret_ip":
		if f.Moment == AtReturn {
			return field{id: FieldRet, bits: 64, name: name}, "", ""
		}
	}
	return field{}, CodeFieldNotFound, p.knownFields()
}

// knownFields lists the valid names.
func (p *filterParser) knownFields() string {
	var names []string
	for _, x := range p.layout.Fields {
		if x.Type.Count == 0 {
			names = append(names, x.Name)
		}
	}
	names = append(names, "cpu", "common_flags", "common_preempt_count")
	if p.layout.Comm != 0 {
		names = append(names, "common_pid", "comm")
	}
	return "there are " + strings.Join(names, ", ")
}

// number parses a value for n and checks that n can have it: the kernel truncates it
// to the field's size, and then compares with another number than the one written.
func (n field) number(s string) (uint64, bool) {
	if n.signed {
		v, ok := parseInt(s)
		if !ok {
			return 0, false
		}
		low := int64(math.MinInt64) >> (64 - n.bits)
		return uint64(v), low <= v && v <= ^low
	}
	v, ok := parseUint(s)
	return v, ok && v <= math.MaxUint64>>(64-n.bits)
}

// limits describes the range of n.
func (n field) limits() string {
	if n.signed {
		low := int64(math.MinInt64) >> (64 - n.bits)
		return fmt.Sprintf("%s can be %d to %d", n.name, low, ^low)
	}
	return fmt.Sprintf("%s can be 0 to %d", n.name, uint64(math.MaxUint64)>>(64-n.bits))
}
