package scripttest

import (
	"fmt"
	"strings"
)

// macros are the macros that random scripts use. An argument is evaluated where
// its name is.
const macros = `macro twice(x) { printf("<%s>", x); x }
macro add($v, x) { print(x); $v += 3; x }
`

// maxNested bounds the expressions of a script that do something.
const maxNested = 12

// writer makes an expression of a kind that has a side effect before its value:
// a block, or a macro.
func (g *gen) writer(k kind) (e expr, ok bool) {
	if !g.Nested || g.nested >= maxNested || g.deep == 2 || g.n(5) > 0 {
		return e, false
	}
	g.nested, g.deep = g.nested+1, g.deep+1
	defer func() { g.deep-- }()
	v := g.pick(func(v *variable) bool { return v.kind == signed && !v.fixed })
	switch {
	case g.n(3) == 0:
		a := g.exprOf(k, 1)
		return expr{kind: k, src: "twice(" + a.src + ")", eval: func(h *hit) value {
			fmt.Fprintf(&h.printed, "<%s>", a.eval(h).format(k))
			return a.eval(h)
		}}, true
	case v != nil && g.n(2) == 0:
		a := g.exprOf(k, 1)
		src, printed := a.src, a
		if k == signed { // a map alone would be printed completely
			src = "(int64)" + a.src
		}
		return expr{kind: k, src: fmt.Sprintf("add(%s, %s)", v.name, src), eval: func(h *hit) value {
			fmt.Fprintln(&h.printed, printed.eval(h).format(k))
			h.vars[v.name] = value{n: h.vars[v.name].n + 3}
			return a.eval(h)
		}}, true
	}
	// The statements are on lines of their own.
	out, scope, loops := g.b, len(g.vars), g.loops
	g.b, g.loops = &strings.Builder{}, 0
	var ss []statement
	for range 1 + g.n(2) {
		ss = append(ss, g.simpleStatement())
	}
	a := g.exprOf(k, 1)
	e = expr{kind: k, src: "({\n" + g.b.String() + a.src + "})"}
	g.b, g.vars, g.loops = out, g.vars[:scope], loops
	e.eval = func(h *hit) value {
		if run(ss, h) == end {
			panic(left{})
		}
		return a.eval(h)
	}
	return e, true
}

// simpleStatement makes a statement of a block that is an expression.
func (g *gen) simpleStatement() statement {
	switch g.n(8) {
	case 0, 1:
		return g.assign()
	case 2, 3:
		return g.store()
	case 4:
		return g.ifElse(1)
	case 5:
		return g.loop(1)
	case 6:
		if g.n(3) == 0 {
			c := g.numericExpr(1)
			g.line("if (%s) { return; }", c.src)
			return func(h *hit) flow {
				if c.eval(h).n != 0 {
					return end
				}
				return on
			}
		}
	}
	return g.print()
}

// format is a value as %s prints it.
func (v value) format(k kind) string {
	if k == text {
		return v.s
	}
	return fmt.Sprint(v.n)
}
