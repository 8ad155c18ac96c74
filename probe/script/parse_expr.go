package script

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// levels are the binary operators, from the loosest on.
var levels = [][]string{
	{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", "<=", ">", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"},
}

// expr reads an expression.
func (p *parser) expr() (e *expr, err error) {
	err = p.nest(func() error {
		e, err = p.binary(0)
		if err != nil {
			return err
		}
		switch {
		case p.isOp("?:"):
			return p.cond(e, &e, true)
		case p.isOp("?"):
			return p.cond(e, &e, p.follows(":"))
		}
		return nil
	})
	return e, err
}

// cond reads the rest of a conditional expression; short is a ?: b.
func (p *parser) cond(c *expr, to **expr, short bool) error {
	then := c
	var err error
	split := p.isOp("?:")
	if err = p.advance(); err != nil {
		return err
	}
	if !short {
		if then, err = p.expr(); err != nil {
			return err
		}
	}
	if !split {
		if err := p.expect(":"); err != nil {
			return err
		}
	}
	other, err := p.expr()
	if err != nil {
		return err
	}
	*to = &expr{kind: exCond, Span: c.Span.join(other.Span), args: []*expr{c, then, other}, short: short}
	return nil
}

// endsPredicate reports whether the slash at hand is the end of a predicate.
func (p *parser) endsPredicate() bool {
	return p.pred && p.isOp("/") && p.follows("{")
}

// binary reads operands with operators of a level between them.
func (p *parser) binary(level int) (*expr, error) {
	if level == len(levels) {
		return p.unary()
	}
	left, err := p.binary(level + 1)
	for n := 0; err == nil && p.tok.kind == tokOp && slices.Contains(levels[level], p.tok.text) && !p.endsPredicate(); n++ {
		if n > 1000 {
			return nil, p.errorAt(p.tok.Span, "an expression of too many operands")
		}
		op := p.tok.text
		if err := p.advance(); err != nil {
			return nil, err
		}
		right, err := p.binary(level + 1)
		if err != nil {
			return nil, err
		}
		left = &expr{kind: exBinary, name: op, Span: left.Span.join(right.Span), args: []*expr{left, right}}
	}
	return left, err
}

// unary reads operators before an operand, and casts.
func (p *parser) unary() (e *expr, err error) {
	err = p.nest(func() error {
		e, err = p.unaryIn()
		return err
	})
	return e, err
}

func (p *parser) unaryIn() (*expr, error) {
	t := p.tok
	switch {
	case p.isOp("!"), p.isOp("~"), p.isOp("-"), p.isOp("*"), p.isOp("+"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		of, err := p.unary()
		if err != nil {
			return nil, err
		}
		return &expr{kind: exUnary, name: t.text, Span: t.Span.join(of.Span), args: []*expr{of}}, nil
	case p.isWord("comptime"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		of, err := p.expr()
		if err != nil {
			return nil, err
		}
		return &expr{kind: exUnary, name: t.text, Span: t.Span.join(of.Span), args: []*expr{of}}, nil
	case p.isOp("&"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		of, err := p.unary()
		if err != nil {
			return nil, err
		}
		if of.kind == exInt || of.kind == exString {
			return nil, p.errorAt(of.Span, "a constant has no address")
		}
		return &expr{kind: exUnary, name: "&", Span: t.Span.join(of.Span), args: []*expr{of}}, nil
	case p.isOp("++"), p.isOp("--"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		of, err := p.unary()
		if err != nil {
			return nil, err
		}
		return p.incDec(t, of, false)
	case p.isOp("("):
		if c, ok, err := p.castOf(); ok || err != nil {
			return c, err
		}
	}
	return p.postfix()
}

// incDec makes ++ or -- of an operand.
func (p *parser) incDec(t token, of *expr, post bool) (*expr, error) {
	if of.kind != exVar && of.kind != exMap {
		return nil, p.errorAt(of.Span, "%s is for variables and maps", t.text)
	}
	sp := t.Span.join(of.Span)
	if post {
		sp = of.Span.join(t.Span)
	}
	return &expr{kind: exIncDec, name: t.text, Span: sp, args: []*expr{of}, post: post}, nil
}

// postfix reads an operand and its postfix operators.
func (p *parser) postfix() (*expr, error) {
	e, err := p.primary()
	for n := 0; err == nil; n++ {
		t := p.tok
		switch {
		case n > 1000:
			return nil, p.errorAt(t.Span, "an expression of too many parts")
		case p.isOp("++"), p.isOp("--"):
			if err := p.advance(); err != nil {
				return nil, err
			}
			e, err = p.incDec(t, e, true)
		case p.isOp("."), p.isOp("->"):
			if err := p.advance(); err != nil {
				return nil, err
			}
			f := &expr{kind: exField, Span: e.Span.join(p.tok.Span), args: []*expr{e}, num: p.tok.num, arrow: t.text == "->"}
			switch {
			case p.tok.kind == tokIdent:
				f.name = p.tok.text
			case p.tok.kind != tokInt:
				return nil, p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a field", p.describe())
			}
			e, err = f, p.advance()
		case p.isOp("["):
			args, err := p.list("]")
			if err != nil {
				return nil, err
			}
			if len(args) != 1 {
				return nil, p.errorAt(p.tok.Span, "an element has one index")
			}
			e = &expr{kind: exIndex, Span: e.Span.join(p.tok.Span), args: []*expr{e, args[0]}}
			if err := p.advance(); err != nil {
				return nil, err
			}
		default:
			return e, nil
		}
	}
	return e, err
}

// list reads expressions up to a closing bracket.
func (p *parser) list(end string) (args []*expr, err error) {
	// A slash in brackets is a division.
	pred := p.pred
	p.pred = false
	defer func() { p.pred = pred }()
	if err := p.advance(); err != nil {
		return nil, err
	}
	for !p.isOp(end) {
		e, err := p.expr()
		if err != nil {
			return nil, err
		}
		if args = append(args, e); len(args) > 64 {
			return nil, p.errorAt(e.Span, "more than 64 of a list")
		}
		if p.isOp(end) {
			break
		}
		if end == ")" && p.isOp("=") {
			return nil, p.errorAt(p.tok.Span, "syntax error, unexpected \"=\", expecting \")\"").hint("== compares; (name=VALUE) is a record")
		}
		if err := p.expect(","); err != nil {
			return nil, err
		}
	}
	return args, nil
}

func (p *parser) primary() (*expr, error) {
	t := p.tok
	e := &expr{Span: t.Span, num: t.num, name: t.text, text: t.text}
	switch t.kind {
	case tokInt:
		e.kind = exInt
	case tokString:
		e.kind = exString
	case tokVar:
		e.kind = exVar
	case tokParam:
		e.kind = exParam
	case tokMap:
		e.kind = exMap
		if p.macro == nil {
			p.mapDef(t.text, t.Span)
		}
		if err := p.advance(); err != nil || !p.isOp("[") {
			return e, err
		}
		args, err := p.list("]")
		if err != nil {
			return nil, err
		}
		if len(args) == 0 {
			return nil, p.errorAt(p.tok.Span, "a key is missing")
		}
		if len(args) == 1 && args[0].isTuple() && len(args[0].args) > 0 {
			args = args[0].args // @x[(1, 2)] is @x[1, 2]
		}
		e.args, e.Span = args, t.Span.join(p.tok.Span)
	case tokIdent:
		return p.parseName(e)
	case tokOp:
		if p.isOp("(") {
			return p.parens()
		}
		if p.isOp("{") {
			return p.blockExpr(false)
		}
		fallthrough
	default:
		return nil, p.errorAt(t.Span, "syntax error, unexpected %s", p.describe())
	}
	return e, p.advance()
}

// parens reads the contents of parentheses: an expression, or a tuple.
func (p *parser) parens() (*expr, error) {
	open := p.tok
	if p.beginsRecord() {
		return p.record()
	}
	args, err := p.list(")")
	if err != nil {
		return nil, err
	}
	sp := open.Span.join(p.tok.Span)
	if err := p.advance(); err != nil {
		return nil, err
	}
	if len(args) == 1 {
		if args[0].bare == (Span{}) {
			args[0].bare = args[0].Span
		}
		args[0].Span = sp
		return args[0], nil
	}
	return &expr{kind: exTuple, Span: sp, args: args}, nil
}

// parseName reads a builtin, or a call.
func (p *parser) parseName(e *expr) (*expr, error) {
	if e.name == "true" || e.name == "false" {
		e.kind, e.cast = exCast, &typeName{c: cNumbers["bool"]}
		e.args = []*expr{{kind: exInt, Span: e.Span, num: map[string]uint64{"true": 1}[e.name]}}
		return e, p.advance()
	}
	if e.name == "if" {
		return readIfValue(p)
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	e.kind = exBuiltin
	if name, ok := strings.CutPrefix(e.name, "__builtin_"); ok && isKnownName(name) {
		e.name, e.text, e.own = name, name, true
	}
	if !p.isOp("(") {
		return e, nil
	}
	switch e.name {
	case "sizeof", "offsetof", "typeinfo":
		return p.parseTypeOperand(e)
	case "typeof": // an argument of a macro
		name := &typeName{Span: e.Span}
		err := readTypeOf(p, name)
		name.To = p.tok.From
		return &expr{kind: exType, Span: name.Span, cast: name}, err
	case "container_of":
		return p.containerOf(e)
	}
	args, err := p.list(")")
	if err != nil {
		return nil, err
	}
	e.kind, e.args, e.Span = exCall, args, e.Span.join(p.tok.Span)
	if e.name == "getopt" {
		if e, err = p.getopt(e); err != nil {
			return nil, err
		}
		return e, p.advance()
	}
	if _, ok := builtins[e.name]; ok && len(args) == 0 {
		e.kind = exBuiltin // with parentheses or without
	}
	return e, p.advance()
}

// readIfValue reads if E { ... VALUE } else { ... VALUE }, which is E ? VALUE : VALUE.
func readIfValue(p *parser) (e *expr, err error) {
	err = p.nest(func() error {
		s := &stmt{Span: p.tok.Span}
		if err := p.ifStmt(s); err != nil {
			return err
		}
		if e = s.asValue(); e == nil {
			return p.errorAt(s.Span, "an if that is a value has else, and each of its blocks ends with an expression and no semicolon")
		}
		return nil
	})
	return e, err
}

// asValue returns the value of a statement: an if whose blocks have values, or nil.
func (s *stmt) asValue() *expr {
	if s.kind != stIf {
		return nil
	}
	then, other := blockValue(s.body), blockValue(s.other)
	if then == nil || other == nil {
		return nil
	}
	return &expr{kind: exCond, Span: s.Span, args: []*expr{s.value, then, other}}
}

// blockValue returns the value of a block's last statement, including the statements
// before it, or nil.
func blockValue(body []*stmt) *expr {
	if len(body) == 0 {
		return nil
	}
	n := len(body) - 1
	last := body[n]
	value := last.asValue()
	if last.kind == stExpr && last.open && last.op != discarded {
		value = last.value
	}
	if value == nil {
		return nil
	}
	return &expr{kind: exBlock, Span: last.Span, body: body[:n], args: []*expr{value}}
}

// constant returns the constant value of an expression.
func (p *script) constant(e *expr) (int64, bool) {
	switch e.kind {
	case exInt:
		return int64(e.num), true
	case exParam:
		if e.num == 0 {
			return int64(len(p.params)), true
		}
		return p.paramNumber(e)
	case exUnary:
		n, ok := p.constant(e.args[0])
		return -n, ok && e.name == "-"
	case exBinary:
		a, ok := p.constant(e.args[0])
		b, ok2 := p.constant(e.args[1])
		if ok && ok2 && a >= 0 && b >= 0 {
			return fold(e.name, a, b)
		}
	}
	return 0, false
}

// fold calculates with numbers that are not negative, if the result does not depend
// on the sign.
func fold(op string, a, b int64) (n int64, ok bool) {
	switch op {
	case "+":
		return a + b, a <= math.MaxInt64-b
	case "-":
		return a - b, true
	case "*":
		hi, lo := bits.Mul64(uint64(a), uint64(b))
		return a * b, hi == 0 && lo <= math.MaxInt64
	case "/":
		if b > 0 {
			return a / b, true
		}
	case "%":
		if b > 0 {
			return a % b, true
		}
	case "<<":
		return a << b, b < 63 && a <= math.MaxInt64>>b
	}
	return 0, false
}

// paramNumber is the value of a positional parameter, 0 if it was not given.
func (p *script) paramNumber(e *expr) (int64, bool) {
	if int(e.num) > len(p.params) {
		return 0, true
	}
	text := p.params[e.num-1]
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return n, true
	}
	n, ok := parseNumber(text)
	return int64(n), ok && n <= math.MaxInt64
}
