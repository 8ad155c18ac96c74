package script

import (
	"fmt"
	"slices"
	"strings"
)

// macro is the definition of a macro.
type macro struct {
	Span
	name   string
	params []token
	block  *expr // of exBlock

	builtin bool // it is not in the script: errors in it are reported at its call
	define  bool // #define NAME E: as in C, NAME in E stays, which has to be a constant then
}

// macroDef reads macro NAME(PARAMETERS) { STATEMENTS [VALUE] }. It reads no token
// after its brace: an attach point may follow.
func (p *parser) macroDef() error {
	if err := p.advance(); err != nil {
		return err
	}
	m := &macro{Span: p.tok.Span, name: p.tok.text}
	if p.tok.kind != tokIdent {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a name", p.describe())
	}
	if err := p.advance(); err != nil {
		return err
	}
	if err := p.expect("("); err != nil {
		return err
	}
	for !p.isOp(")") {
		switch p.tok.kind {
		case tokIdent, tokVar, tokMap:
		default:
			return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a parameter", p.describe())
		}
		if _, known := builtins[p.tok.text]; known && p.tok.kind == tokIdent {
			return p.errorAt(p.tok.Span, "builtin '%s' can't be used as a macro argument", p.tok.text)
		}
		for _, x := range m.params {
			if x.text == p.tok.text {
				return p.errorAt(p.tok.Span, "Variable for macro argument has already been used: %s", x.text)
			}
		}
		m.params = append(m.params, p.tok)
		if err := p.advance(); err != nil {
			return err
		}
		if p.isOp(")") {
			break
		}
		if err := p.expect(","); err != nil {
			return err
		}
	}
	if err := p.advance(); err != nil {
		return err
	}
	if slices.ContainsFunc(p.macros[m.name], m.takesSame) {
		return p.errorAt(m.Span, "Redefinition of macro: %s", m.name)
	}
	p.macros[m.name] = append(p.macros[m.name], m)
	p.macro = m
	defer func() { p.macro = nil }()
	var err error
	m.block, err = p.blockExpr(true)
	return err
}

// takesSame reports whether parameters of both have the same number and kinds.
func (m *macro) takesSame(n *macro) bool {
	return slices.EqualFunc(m.params, n.params, func(a, b token) bool { return a.kind == b.kind })
}

// blockExpr reads a block that may end with a value.
func (p *parser) blockExpr(last bool) (*expr, error) {
	e := &expr{kind: exBlock, Span: p.tok.Span}
	loops, pred := p.loops, p.pred
	p.loops, p.pred = 0, false
	defer func() { p.loops, p.pred = loops, pred }()
	body, err := p.block(last)
	if err != nil {
		return nil, err
	}
	if n := len(body); n > 0 && p.endsOpen {
		e.args, body = []*expr{body[n-1].value}, body[:n-1]
	}
	e.body = body
	return e, nil
}

// maxExpanded bounds the expansion of macros, in statements and expressions.
const maxExpanded = 1 << 16

// expander replaces calls of macros by their expansions.
type expander struct {
	*script
	calls []*macro // macros that are being expanded
	nodes int
	made  int // number of expansions
}

// scope is the meaning of names in a macro: its parameters, and its own variables.
type scope struct {
	m      *macro
	number int
	args   map[string]*expr
	at     *Span // the place of everything in a builtin macro; nil: use each node's own
}

// place returns the place of a part of the macro in its expansion.
func (in *scope) place(sp Span) Span {
	switch {
	case in == nil:
	case in.at != nil:
		return *in.at
	case sp.in == 0:
		sp.in = in.number + 1
	}
	return sp
}

// expandMacros expands the macros of the whole script.
func (s *script) expandMacros() (err error) {
	if len(s.macros) == 0 {
		return nil
	}
	x := &expander{script: s}
	for _, d := range s.probes {
		s.types = d.types
		if d.cond != nil {
			if d.cond, err = x.expr(d.cond, nil); err != nil {
				return err
			}
		}
		if d.body, err = x.stmts(d.body, nil); err != nil {
			return err
		}
	}
	return nil
}

func (x *expander) count(at Span) error {
	if x.nodes++; x.nodes > maxExpanded {
		return x.errorAt(at, "macros stand for more than %d expressions", maxExpanded)
	}
	return nil
}

func (x *expander) stmts(body []*stmt, in *scope) ([]*stmt, error) {
	var out []*stmt
	for _, s := range body {
		if err := x.count(s.Span); err != nil {
			return nil, err
		}
		n := *s
		n.Span = in.place(s.Span)
		if in != nil && s.kind == stLet && in.args[s.to.name] != nil {
			return nil, x.errorAt(s.to.Span, "Variable declaration shadows macro arg %s", s.to.name)
		}
		var err error
		for _, e := range []**expr{&n.to, &n.value, &n.bound} {
			if *e != nil && err == nil {
				*e, err = x.expr(*e, in)
			}
		}
		for _, b := range []*[]*stmt{&n.body, &n.other} {
			if err == nil {
				*b, err = x.stmts(*b, in)
			}
		}
		if err != nil {
			return nil, err
		}
		out = append(out, &n)
	}
	return out, nil
}

// expr returns a copy of an expression with all macros expanded.
func (x *expander) expr(e *expr, in *scope) (*expr, error) {
	if err := x.count(e.Span); err != nil {
		return nil, err
	}
	n := *e
	n.Span = in.place(e.Span)
	if in != nil {
		arg := in.args[e.name]
		switch {
		case e.kind == exBuiltin && arg != nil:
			return x.expr(arg, nil) // the macros in it have already been expanded
		case e.kind == exVar && arg != nil, e.kind == exMap && arg != nil:
			n.name = arg.name
		case e.kind == exVar:
			n.name = fmt.Sprintf("%s (%d of %s)", e.name, in.number, in.m.name)
		case e.kind == exMap:
			return nil, x.errorAt(e.Span, "Unhygienic access to map: %s. Maps must be passed into the macro as arguments.", e.name)
		}
	}
	n.args = nil
	for _, a := range e.args {
		a, err := x.expr(a, in)
		if err != nil {
			return nil, err
		}
		n.args = append(n.args, a)
	}
	for _, a := range n.args {
		if a.kind == exType && e.kind != exIndex && (e.kind != exCall || !unevaluated[e.name] && len(x.macros[e.name]) == 0) {
			return nil, x.errorAt(a.Span, "%s", onlyTypeArg)
		}
	}
	if n.cast != nil {
		var err error
		if n.cast, err = x.typeName(n.cast, in); err != nil {
			return nil, err
		}
	}
	switch e.kind {
	case exBlock:
		body, err := x.stmts(e.body, in)
		n.body = body
		return &n, err
	case exCall, exBuiltin:
		if ms := x.macros[e.name]; len(ms) > 0 && !e.own {
			return x.call(ms, &n)
		}
	case exIndex:
		if t := n.args[0]; t.kind == exType && n.args[1].kind == exInt { // t[2], where t is a type
			return x.arrayOf(&n)
		}
	}
	return &n, nil
}

// kinds describes what a macro's parameter takes.
var kinds = map[tokenKind]string{tokVar: "a variable", tokMap: "a map"}

// kindOf describes an argument of a macro.
func kindOf(a *expr) string {
	switch {
	case a.kind == exVar:
		return kinds[tokVar]
	case a.kind == exMap && len(a.args) == 0:
		return kinds[tokMap]
	}
	return "an expression"
}

// fits counts the arguments that a macro does not take, and those that it takes as what they are.
func (m *macro) fits(args []*expr) (wrong, exact int) {
	for i, p := range m.params {
		switch want := kinds[p.kind]; {
		case want != "" && want != kindOf(args[i]):
			wrong++
		case want != "":
			exact++
		}
	}
	return wrong, exact
}

// choose returns the macro of ms for a call: of those that take all its arguments the one that takes most
// of them as what they are. Without one it returns the closest.
func choose(ms []*macro, args []*expr) (best *macro, ok bool) {
	least, most := 0, 0
	for _, m := range ms {
		if len(m.params) != len(args) {
			continue
		}
		wrong, exact := m.fits(args)
		if best == nil || wrong < least || wrong == least && exact > most {
			best, least, most = m, wrong, exact
		}
	}
	if best == nil {
		best = ms[0]
		for _, m := range ms[1:] {
			if abs(len(m.params)-len(args)) < abs(len(best.params)-len(args)) {
				best = m
			}
		}
		return best, false
	}
	return best, least == 0
}

func abs(n int) int { return max(n, -n) }

// call expands one call, whose arguments are already expanded.
func (x *expander) call(ms []*macro, e *expr) (*expr, error) {
	if ms[0].builtin && len(e.args) == 1 {
		e.args = append(e.args, &expr{kind: exString, Span: e.Span, text: " "})
	}
	m, ok := choose(ms, e.args)
	if m.define && slices.Contains(x.calls, m) {
		if _, isConstant := x.constantOf(m.name); isConstant {
			return e, nil
		}
	}
	if len(e.args) != len(m.params) {
		_, isName := builtins[e.name]
		if _, isCall := calls[e.name]; isCall || isName {
			return e, nil
		}
		return nil, x.errorAt(e.Span, "Call to %s() has the wrong number of arguments. Expected: %d but got %d.", m.name, len(m.params), len(e.args))
	}
	in := &scope{m: m, number: x.made, args: map[string]*expr{}}
	x.made++
	x.expansions = append(x.expansions, e.Span)
	if m.builtin {
		in.at = &e.Span
	}
	for i, p := range m.params {
		a := e.args[i]
		if want, got := kinds[p.kind], kindOf(a); !ok && want != "" && want != got {
			return nil, x.errorAt(a.Span, "Mismatched arg. %s() expects %s for arg %s but got %s.", m.name, want, p.text, got)
		}
		in.args[p.text] = a
	}
	x.calls = append(x.calls, m)
	defer func() { x.calls = x.calls[:len(x.calls)-1] }()
	for i, c := range x.calls[:len(x.calls)-1] {
		if c == m {
			var chain strings.Builder
			for _, c := range x.calls[i : len(x.calls)-1] {
				chain.WriteString(c.name + " > ")
			}
			return nil, x.errorAt(e.Span, "Recursive macro call detected. Call chain: %s%s", &chain, m.name)
		}
	}
	if len(x.calls) > maxDepth {
		return nil, x.errorAt(e.Span, "macros nested too deep: at most %d levels", maxDepth)
	}
	return x.expr(m.block, in)
}

// block checks a block that is an expression: its last part is its value. A statement
// needs no value.
func (c *checker) block(e *expr, statement bool) (t Type, err error) {
	c.scopes = append(c.scopes, map[string]*variable{})
	defer func() { c.scopes = c.scopes[:len(c.scopes)-1] }()
	if n := len(e.body) - 1; !statement && len(e.args) == 0 && n >= 0 {
		if value := e.body[n].asValue(); value != nil {
			e.body, e.args = e.body[:n], []*expr{value}
		}
	}
	for _, s := range e.body {
		if err := c.stmt(s); err != nil {
			return t, err
		}
	}
	switch {
	case statement && len(e.args) > 0:
		return t, c.exprStmt(e.args[0])
	case statement:
		return t, nil
	case len(e.args) == 0:
		return t, c.errorAt(e.Span, "this block has no value").hint("the last expression is its value if no semicolon follows it")
	}
	return c.expr(e.args[0])
}

// emitBlock generates the statements of a block that is an expression, and calls f
// with its value.
func (g *generator) emitBlock(e *expr, f func(value *expr)) {
	g.runInScope(func() {
		for _, s := range e.body {
			g.runAt(s.Span, func() { g.stmt(s) })
		}
		if len(e.args) > 0 {
			f(e.args[0])
		}
	})
}
