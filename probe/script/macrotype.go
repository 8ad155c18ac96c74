package script

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// typeParam is a type in a macro that is one of its parameters, with a tag or without.
type typeParam struct {
	btf.Type
	tag  types.Tag
	name string
}

// onlyTypeArg is the error for typeof(...) as an argument of anything else, in bpftrace's words.
const onlyTypeArg = "When used as a call argument, `typeof` builtin only valid for macro calls that are expecting a type parameter"

// hasTypeParam reports whether a name may be a type that calls of the macro pass. m may be nil.
func (m *macro) hasTypeParam(name string) bool {
	return m != nil && slices.ContainsFunc(m.params, func(t token) bool { return t.kind == tokIdent && t.text == name })
}

// pointsTo reports whether stars and a closing parenthesis follow the name at hand, and how many stars, and what follows these.
func pointsTo(p *parser) (stars int, after token, ok bool) {
	at := p.pos
	defer func() { p.pos = at }()
	for {
		t, err := p.next()
		switch {
		case err != nil || t.kind != tokOp:
			return 0, after, false
		case t.text == "*" && stars < maxPointers:
			stars++
		case t.text == ")":
			after, err = p.next()
			return stars, after, err == nil
		default:
			return 0, after, false
		}
	}
}

// castsToParam reports whether a cast to a type that is a parameter of the macro begins at the name at hand.
func castsToParam(p *parser) bool {
	if p.tok.kind != tokIdent || !p.macro.hasTypeParam(p.tok.text) {
		return false
	}
	stars, after, ok := pointsTo(p)
	return ok && (stars > 0 || after.kind != tokOp && after.kind != tokEOF)
}

// typeParamOf returns the type parameter at the bottom of pointers and arrays, or nil.
func typeParamOf(t btf.Type) *typeParam {
	for {
		switch x := t.(type) {
		case *btf.Pointer:
			t = x.Target
		case *btf.Array:
			t = x.Type
		case *typeParam:
			return x
		default:
			return nil
		}
	}
}

// replaceTypeParam returns t with another type at the bottom of its pointers and arrays.
func replaceTypeParam(t, by btf.Type) btf.Type {
	switch x := t.(type) {
	case *btf.Pointer:
		return &btf.Pointer{Target: replaceTypeParam(x.Target, by)}
	case *btf.Array:
		return &btf.Array{Index: x.Index, Type: replaceTypeParam(x.Type, by), Nelems: x.Nelems}
	}
	return by
}

// typeName returns a copy of a type's name in a macro, with the arguments of its call.
func (x *expander) typeName(n *typeName, in *scope) (*typeName, error) {
	cast := *n
	if n.of != nil {
		of, err := x.expr(n.of, in)
		if err != nil {
			return nil, err
		}
		if cast.of = of; of.kind == exType { // typeof(t), where t is a type
			stars := cast.stars
			cast = *of.cast
			if cast.Span = n.Span; cast.of != nil {
				cast.stars += stars
				return &cast, nil
			}
			for range stars {
				cast.c = &btf.Pointer{Target: cast.c}
			}
		}
		return &cast, nil
	}
	param := typeParamOf(n.c)
	if param == nil || in == nil {
		return &cast, nil
	}
	wrong := func() error {
		return x.errorAt(n.Span, "Invalid replacement for macro '%s' type parameter '%s' in the type '%s'", in.m.name, param.name, strings.TrimSpace(string(param.tag)+" "+param.name))
	}
	arg := in.args[param.name]
	if arg == nil || arg.kind != exType {
		return nil, wrong()
	}
	by := arg.cast.c
	if param.tag != types.TagNone {
		of := arg.cast.of
		if of == nil || of.kind != exBuiltin || arg.cast.stars > 0 { // typeof(task_struct) for struct t
			return nil, wrong()
		}
		if by = x.typeNamed(param.tag, of.name); by == nil {
			return nil, x.unknownTypeError(arg.Span, param.tag, of.name)
		}
	}
	if by == nil { // of an expression
		cast.of = arg.cast.of
		cast.stars = arg.cast.stars
		t := n.c
		for p, ok := t.(*btf.Pointer); ok; p, ok = t.(*btf.Pointer) {
			cast.stars, t = cast.stars+1, p.Target
		}
		if _, ok := t.(*typeParam); !ok {
			return nil, x.errorAt(n.Span, "an array of typeof(EXPRESSION) is not supported").hint("write the type")
		}
		cast.c = nil
		return &cast, nil
	}
	cast.c = replaceTypeParam(n.c, by)
	return &cast, nil
}

// arrayOf makes the type of t[N], where t is a type.
func (x *expander) arrayOf(e *expr) (*expr, error) {
	n := e.args[1].num
	if of := e.args[0]; of.cast.c == nil || n > maxElements {
		return nil, x.errorAt(e.Span, "an array of that type is not supported: it has a type's name, and 0 to %d elements", maxElements)
	}
	cast := *e.args[0].cast
	cast.Span, cast.c = e.Span, &btf.Array{Index: cNumbers["uint32"], Type: cast.c, Nelems: uint32(n)}
	return &expr{kind: exType, Span: e.Span, cast: &cast}, nil
}
