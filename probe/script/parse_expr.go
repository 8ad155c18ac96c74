package script

import (
	"math"
	"math/bits"
	"slices"
	"strconv"
)

// levels are the operators between two operands, from the loosest on.
var levels = [][]string{
	{"||"}, {"&&"}, {"|"}, {"^"}, {"&"}, {"==", "!="}, {"<", "<=", ">", ">="}, {"<<", ">>"}, {"+", "-"}, {"*", "/", "%"},
}

// expr reads an expression.
func (p *parser) expr() (e *expr, err error) {
	err = p.nested(func() error {
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

// cond reads what stands behind a condition; short is a ?: b.
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
			return nil, p.at(p.tok.Span, "an expression of too many operands")
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
	err = p.nested(func() error {
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
	case p.isOp("&"):
		if err := p.advance(); err != nil {
			return nil, err
		}
		of, err := p.unary()
		if err != nil {
			return nil, err
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
		return nil, p.at(of.Span, "%s is for variables and maps", t.text)
	}
	sp := t.Span.join(of.Span)
	if post {
		sp = of.Span.join(t.Span)
	}
	return &expr{kind: exIncDec, name: t.text, Span: sp, args: []*expr{of}, post: post}, nil
}

// postfix reads an operand with what stands behind it.
func (p *parser) postfix() (*expr, error) {
	e, err := p.primary()
	for n := 0; err == nil; n++ {
		t := p.tok
		switch {
		case n > 1000:
			return nil, p.at(t.Span, "an expression of too many parts")
		case p.isOp("++"), p.isOp("--"):
			if err := p.advance(); err != nil {
				return nil, err
			}
			e, err = p.incDec(t, e, true)
		case p.isOp("."), p.isOp("->"):
			if err := p.advance(); err != nil {
				return nil, err
			}
			f := &expr{kind: exField, Span: e.Span.join(p.tok.Span), args: []*expr{e}, num: p.tok.num}
			switch {
			case p.tok.kind == tokIdent:
				f.name = p.tok.text
			case p.tok.kind != tokInt:
				return nil, p.at(p.tok.Span, "syntax error, unexpected %s, expecting a field", p.describe())
			}
			e, err = f, p.advance()
		case p.isOp("["):
			args, err := p.list("]")
			if err != nil {
				return nil, err
			}
			if len(args) != 1 {
				return nil, p.at(p.tok.Span, "an element has one index")
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
			return nil, p.at(e.Span, "more than 64 of a list")
		}
		if p.isOp(end) {
			break
		}
		if end == ")" && p.isOp("=") {
			return nil, p.at(p.tok.Span, "records are not supported").hint("write a tuple, whose elements are .0, .1 and so on")
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
		if !p.inMacro {
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
			return nil, p.at(p.tok.Span, "a key is missing")
		}
		if len(args) == 1 && args[0].isTuple() {
			args = args[0].args // @x[(1, 2)] is @x[1, 2]
		}
		e.args, e.Span = args, t.Span.join(p.tok.Span)
	case tokIdent:
		return p.named(e)
	case tokOp:
		if p.isOp("(") {
			return p.parens()
		}
		if p.isOp("{") {
			return p.blockExpr(false)
		}
		fallthrough
	default:
		return nil, p.at(t.Span, "syntax error, unexpected %s", p.describe())
	}
	return e, p.advance()
}

// parens reads what stands in parentheses: an expression, or a tuple.
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
	switch len(args) {
	case 0:
		return nil, p.at(sp, "empty parentheses")
	case 1:
		args[0].Span = sp
		return args[0], nil
	}
	return &expr{kind: exTuple, Span: sp, args: args}, nil
}

// named reads a builtin, or a call.
func (p *parser) named(e *expr) (*expr, error) {
	if e.name == "true" || e.name == "false" {
		e.kind, e.cast = exCast, &typeName{c: cNumbers["bool"]}
		e.args = []*expr{{kind: exInt, Span: e.Span, num: map[string]uint64{"true": 1}[e.name]}}
		return e, p.advance()
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	e.kind = exBuiltin
	if !p.isOp("(") {
		return e, nil
	}
	switch e.name {
	case "sizeof", "offsetof":
		return p.ofType(e)
	case "container_of":
		return p.containerOf(e)
	}
	args, err := p.list(")")
	if err != nil {
		return nil, err
	}
	e.kind, e.args, e.Span = exCall, args, e.Span.join(p.tok.Span)
	if _, ok := builtins[e.name]; ok && len(args) == 0 {
		e.kind = exBuiltin // with parentheses or without
	}
	return e, p.advance()
}

// constant returns the number that an expression certainly is.
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

// fold calculates with numbers that are not negative, where the result is no other one
// without a sign.
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

// paramNumber is the value of a positional parameter, which is 0 where none was given.
func (p *script) paramNumber(e *expr) (int64, bool) {
	if int(e.num) > len(p.params) {
		return 0, true
	}
	text := p.params[e.num-1]
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return n, true
	}
	n, ok := parseNumber(text)
	return int64(n), ok
}
