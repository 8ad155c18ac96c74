package script

// hasEffects reports whether evaluating an expression has an effect that another
// expression, or the order of the output, depends on: it has a block with statements
// (also from a macro), changes a variable or a map, or takes an element out.
func (e *expr) hasEffects() bool {
	switch {
	case e.kind == exBlock, e.kind == exIncDec, e.kind == exCall && (e.name == "delete" || e.name == "find" || calls[e.name].statement):
		return true
	case e.kind == exCall && unevaluated[e.name]:
		return false
	}
	return haveEffects(e.args)
}

// unevaluated are the calls that use only the types of their arguments.
var unevaluated = map[string]bool{
	"sizeof": true, "typeinfo": true, "offsetof": true, "strcap": true, "is_ptr": true, "is_str": true, "is_integer": true, "is_unsigned_integer": true, "is_literal": true, "is_array": true, "is_scalar": true,
}

// haveEffects reports whether one of the expressions has effects.
func haveEffects(es []*expr) bool {
	for _, e := range es {
		if e.hasEffects() {
			return true
		}
	}
	return false
}

// stableView is view for a value that must not change while later expressions are
// evaluated: if they have effects it returns a copy, not the variable itself.
func (g *generator) stableView(e *expr, later ...*expr) mem {
	if !haveEffects(later) {
		return g.view(e)
	}
	m := g.alloc(e.typ.bytes())
	g.put(e, e.typ, m)
	return m
}

// steadyKey returns an element of a map whose key is evaluated now, and reused with
// each use of the result.
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
