package script

import (
	"slices"

	"github.com/guestprobe/guestprobe/guest/types"
)

// block reads the statements between braces. After the last brace of a probe it reads
// no token: an attach point may follow.
func (p *parser) block(last bool) (body []*stmt, err error) {
	err = p.nest(func() error {
		if err := p.expect("{"); err != nil {
			return err
		}
		open := false
		for !p.isOp("}") {
			if p.isOp(";") {
				if err := p.advance(); err != nil {
					return err
				}
				continue
			}
			s, err := p.stmt()
			if err != nil {
				return err
			}
			body = append(body, s)
			s.open = p.isOp("}")
			if open = s.open && s.kind == stExpr && s.op != discarded; p.isOp("}") || s.kind == stIf || s.kind == stUnroll || s.kind == stWhile || s.kind == stForRange || s.kind == stForMap || s.kind == stBlock {
				continue
			}
			if err := p.expect(";"); err != nil {
				return err
			}
		}
		p.endsOpen = open
		if last {
			return nil
		}
		return p.advance()
	})
	return body, err
}

// assignments are the operators of assignments.
var assignments = []string{"=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="}

func (p *parser) stmt() (s *stmt, err error) {
	s = &stmt{Span: p.tok.Span}
	switch {
	case p.isWord("import"):
		return s, p.errorAt(s.Span, "import in a block is not supported").hint("write it at the beginning of the script")
	case p.isWord("if"):
		return s, p.ifStmt(s)
	case p.isWord("unroll"):
		return s, p.unroll(s)
	case p.isWord("while"):
		s.kind = stWhile
		if err := p.advance(); err != nil {
			return s, err
		}
		if s.value, err = readCondition(p); err != nil {
			return s, err
		}
		return s, p.loop(s)
	case p.isWord("for"):
		return s, p.forStmt(s)
	case p.isWord("break"), p.isWord("continue"):
		s.kind = stBreak
		if p.isWord("continue") {
			s.kind = stContinue
		}
		if p.loops == 0 {
			return s, p.errorAt(s.Span, "%s statement outside of a loop", p.tok.text)
		}
		return s, p.advance()
	case p.isWord("return"):
		s.kind = stReturn
		if err := p.advance(); err != nil || p.isOp(";") || p.isOp("}") {
			return s, err
		}
		s.value, err = p.expr()
		return s, err
	case p.isWord("let"):
		return s, p.let(s)
	case p.isOp("{"):
		s.kind = stBlock
		s.body, err = p.block(false)
		return s, err
	}
	if p.isWord("_") && p.follows("=") {
		return s, s.readDiscarded(p)
	}
	if s.value, err = p.expr(); err != nil {
		return s, err
	}
	s.Span = s.value.Span
	if e := s.value; e.kind == exCall && e.name == "assert" && len(e.args) == 2 {
		s.become(e.args[0], e.args[1])
		return s, nil
	}
	if p.tok.kind == tokOp && slices.Contains(assignments, p.tok.text) {
		if k := s.value.kind; k != exVar && k != exMap {
			return s, p.errorAt(s.value.Span, "only a variable or a map can be assigned to")
		}
		s.kind, s.op, s.to = stAssign, p.tok.text, s.value
		if err := p.advance(); err != nil {
			return s, err
		}
		if s.value, err = p.expr(); err != nil {
			return s, err
		}
		s.Span = s.to.Span.join(s.value.Span)
	}
	return s, nil
}

// readDiscarded reads _ = E, which discards the value.
func (s *stmt) readDiscarded(p *parser) (err error) {
	s.op = discarded
	for range 2 {
		if err := p.advance(); err != nil {
			return err
		}
	}
	if s.value, err = p.expr(); err == nil {
		s.Span = s.Span.join(s.value.Span)
	}
	return err
}

// become turns an assertion into its equivalent in bpftrace: a condition followed by
// an error.
func (s *stmt) become(cond, text *expr) {
	call := func(name string, args ...*expr) *stmt {
		return &stmt{kind: stExpr, Span: s.Span, value: &expr{kind: exCall, name: name, Span: s.Span, args: args}}
	}
	s.kind, s.value = stIf, &expr{kind: exUnary, name: "!", Span: cond.Span, args: []*expr{cond}}
	s.body = []*stmt{
		call("errorf", &expr{kind: exString, Span: s.Span, text: "assert failed: %s"}, text),
		call("exit", &expr{kind: exInt, Span: s.Span, num: 1}),
	}
}

func (p *parser) let(s *stmt) (err error) {
	s.kind = stLet
	if err := p.advance(); err != nil {
		return err
	}
	if p.tok.kind != tokVar {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a variable", p.describe())
	}
	s.to = &expr{kind: exVar, name: p.tok.text, Span: p.tok.Span}
	if err := p.advance(); err != nil {
		return err
	}
	if p.isOp(":") {
		if err := p.advance(); err != nil {
			return err
		}
		if p.isWord("string") && p.typeNamed(types.TagNone, "string") == nil {
			s.to.cast, err = p.stringType()
		} else {
			s.to.cast, err = p.typeName()
		}
		if err != nil {
			return err
		}
	}
	if !p.isOp("=") {
		return nil
	}
	if err := p.advance(); err != nil {
		return err
	}
	s.value, err = p.expr()
	return err
}

// stringType reads string or string[N], where N is a minimum length.
func (p *parser) stringType() (n *typeName, err error) {
	n = &typeName{Span: p.tok.Span, text: 1}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.isOp("[") {
		if err := p.advance(); err != nil {
			return nil, err
		}
		if p.tok.kind != tokInt || p.tok.num < 1 || p.tok.num > maxText {
			return nil, p.errorAt(p.tok.Span, "a string has 1 to %d bytes", maxText)
		}
		n.text, n.sized = int(p.tok.num), true
		if err := p.advance(); err != nil {
			return nil, err
		}
		if err := p.expect("]"); err != nil {
			return nil, err
		}
	}
	n.To = p.tok.From
	return n, nil
}

// readCondition reads the condition of an if or a while. It is never a tuple or a record.
func readCondition(p *parser) (*expr, error) {
	e, err := p.expr()
	if err == nil && e.kind == exTuple {
		err := p.errorAt(e.Span, "a condition is a number, not a %s", map[bool]string{true: "tuple", false: "record"}[e.isTuple()])
		if !e.isTuple() {
			return nil, err.hint("== compares")
		}
		return nil, err
	}
	return e, err
}

func (p *parser) ifStmt(s *stmt) (err error) {
	s.kind = stIf
	if err := p.advance(); err != nil {
		return err
	}
	if s.value, err = readCondition(p); err != nil {
		return err
	}
	if s.body, err = p.block(false); err != nil || !p.isWord("else") {
		return err
	}
	if err := p.advance(); err != nil {
		return err
	}
	if p.isWord("if") {
		return p.nest(func() error {
			other := &stmt{Span: p.tok.Span}
			s.other = []*stmt{other}
			return p.ifStmt(other)
		})
	}
	s.other, err = p.block(false)
	return err
}

func (p *parser) unroll(s *stmt) (err error) {
	s.kind = stUnroll
	if err := p.advance(); err != nil {
		return err
	}
	if s.value, err = p.expr(); err != nil {
		return err
	}
	n, ok := p.constant(s.value)
	switch {
	case !ok:
		return p.errorAt(s.value.Span, "unroll wants a number that is known before")
	case n < 1:
		return p.errorAt(s.value.Span, "unroll minimum value is 1")
	case n > maxUnroll:
		return p.errorAt(s.Span, "unroll maximum value is %d", maxUnroll)
	}
	return p.loop(s)
}

// loop reads the block of a loop.
func (p *parser) loop(s *stmt) (err error) {
	p.loops++
	defer func() { p.loops-- }()
	s.body, err = p.block(false)
	return err
}

func (p *parser) forStmt(s *stmt) (err error) {
	s.kind = stForRange
	if err := p.advance(); err != nil {
		return err
	}
	parens := p.isOp("(")
	if parens {
		if err := p.advance(); err != nil {
			return err
		}
	}
	if p.tok.kind != tokVar {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a variable", p.describe())
	}
	s.to = &expr{kind: exVar, name: p.tok.text, Span: p.tok.Span}
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.expect(":"); err != nil {
		return err
	}
	if s.value, err = p.expr(); err != nil {
		return err
	}
	if s.value.kind == exMap && !p.isOp("..") {
		s.kind = stForMap
	} else {
		if err := p.expect(".."); err != nil {
			return err
		}
		if s.bound, err = p.expr(); err != nil {
			return err
		}
	}
	if parens {
		if err := p.expect(")"); err != nil {
			return err
		}
	}
	return p.loop(s)
}
