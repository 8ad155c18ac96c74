package script

// hasEffects reports whether evaluating an expression does something that another expression, or the order of
// what is written, can tell: it has a block with statements (a macro's, too), changes a variable or a map, or
// takes an element out.
func (e *expr) hasEffects() bool {
	switch {
	case e.kind == exBlock, e.kind == exIncDec, e.kind == exCall && (e.name == "delete" || calls[e.name].statement):
		return true
	case e.kind == exCall && unevaluated[e.name]:
		return false
	}
	return anyEffects(e.args)
}

// unevaluated are the calls whose arguments only have types.
var unevaluated = map[string]bool{
	"sizeof": true, "offsetof": true, "strcap": true, "is_ptr": true, "is_str": true, "is_integer": true, "is_unsigned_integer": true, "is_literal": true, "is_array": true,
}

// anyEffects reports whether one of the expressions has effects.
func anyEffects(es []*expr) bool {
	for _, e := range es {
		if e.hasEffects() {
			return true
		}
	}
	return false
}

// fixed is view for a value that must stay what it is while later expressions are evaluated: where they have
// effects it is a copy, not the variable itself.
func (g *generator) fixed(e *expr, later ...*expr) mem {
	if !anyEffects(later) {
		return g.view(e)
	}
	m := g.alloc(e.typ.bytes())
	g.put(e, e.typ, m)
	return m
}

// steadyKey returns an element of a map whose key is made now, and read as often as the result is used.
func (g *generator) steadyKey(e *expr) *expr {
	args := e.args
	if len(args) == 1 && args[0].isTuple() {
		args = args[0].args
	}
	n := *e
	n.args = nil
	for _, a := range args {
		v := &expr{kind: exVar, Span: a.Span, typ: a.typ, decl: &variable{typ: a.typ}}
		g.vars[v.decl] = g.alloc(a.typ.bytes())
		g.put(a, a.typ, g.vars[v.decl])
		n.args = append(n.args, v)
	}
	return &n
}
