package types

import (
	"strconv"
	"strings"

	"github.com/cilium/ebpf/btf"
)

// Limits of C text; a longer or deeper text ends in "...".
const (
	maxText  = 4096
	maxDepth = 32
)

// Text returns the type as C writes it.
func Text(t btf.Type) string { return Declaration(t, "") }

// Declaration returns the C declaration of name with type t.
func Declaration(t btf.Type, name string) string {
	w := writer{left: maxText}
	return w.declare(t, name, 0)
}

// Prototype returns a function with its parameters and its result:
//
//	vfs_read(struct file *file, char *buf, size_t count, loff_t *pos) -> ssize_t
func Prototype(name string, p *btf.FuncProto) string {
	w := writer{left: maxText}
	return name + "(" + w.params(p, 0) + ") -> " + w.declare(p.Return, "", 0)
}

// Parameter is one parameter of a function.
type Parameter struct {
	Name string // "" if it has none
	Type string // in C syntax, or "..."
}

// Parameters returns the parameters of p as text.
func Parameters(p *btf.FuncProto) []Parameter {
	out := make([]Parameter, len(p.Params))
	for i, x := range p.Params {
		out[i] = Parameter{x.Name, Text(x.Type)}
		if variadic(p, i) {
			out[i].Type = "..."
		}
	}
	return out
}

// variadic reports whether parameter i of p is the "..." of a variable argument list:
// in BTF the last one, with neither a name nor a type.
func variadic(p *btf.FuncProto, i int) bool {
	return i == len(p.Params)-1 && p.Params[i].Name == "" && IsVoid(p.Params[i].Type)
}

// writer writes types.
type writer struct {
	left   int  // the number of parts that it may still write
	whole  bool // types without a name with their members
	indent int  // of the line, with whole
	steps  int  // the number of members that may still be searched, with whole
}

func (w *writer) params(p *btf.FuncProto, depth int) string {
	if len(p.Params) == 0 {
		return "void"
	}
	out := make([]string, len(p.Params))
	for i, x := range p.Params {
		if variadic(p, i) {
			out[i] = "..."
		} else {
			out[i] = w.declare(x.Type, x.Name, depth+1)
		}
	}
	return strings.Join(out, ", ")
}

// declare writes the declaration of inner, which may be a name, possibly with the
// syntax that makes it a pointer, an array or a function.
func (w *writer) declare(t btf.Type, inner string, depth int) string {
	if w.left -= 1 + len(inner); w.left < 0 || depth > maxDepth {
		return "..."
	}
	word := func(s string) string {
		if inner == "" {
			return s
		}
		return s + " " + inner
	}
	if tag, ok := TagOf(t); w.whole && ok && tag != TagNone && t.TypeName() == "" {
		return word(w.body(t, depth+1))
	}
	switch t := t.(type) {
	case *btf.Pointer:
		target := t.Target
		if r := referenceOf(t); r != "" {
			inner, target = r+inner, t.Target.(*btf.TypeTag).Type
		} else {
			inner = "*" + inner
		}
		switch btf.QualifiedType(target).(type) {
		case *btf.Array, *btf.FuncProto:
			inner = "(" + inner + ")"
		}
		return w.declare(target, inner, depth+1)
	case *btf.Array:
		return w.declare(t.Type, inner+"["+strconv.FormatUint(uint64(t.Nelems), 10)+"]", depth+1)
	case *btf.FuncProto:
		return w.declare(t.Return, inner+"("+w.params(t, depth)+")", depth+1)
	case *btf.Const:
		return w.qualify("const", t.Type, inner, depth)
	case *btf.Volatile:
		return w.qualify("volatile", t.Type, inner, depth)
	case *btf.Restrict:
		return w.qualify("restrict", t.Type, inner, depth)
	case *btf.TypeTag:
		return w.declare(t.Type, inner, depth+1)
	case *btf.Void:
		return word("void")
	case *btf.Struct:
		return word(tagText("struct", t.Name))
	case *btf.Union:
		return word(tagText("union", t.Name))
	case *btf.Enum:
		return word(tagText("enum", t.Name))
	case *btf.Fwd:
		return word(tagText(t.Kind.String(), t.Name))
	}
	if name := t.TypeName(); name != "" {
		return word(name)
	}
	return word("?")
}

// qualify writes a qualifier: after the star of a pointer, otherwise in front.
func (w *writer) qualify(qualifier string, t btf.Type, inner string, depth int) string {
	if _, pointer := btf.QualifiedType(t).(*btf.Pointer); pointer {
		if inner != "" && inner[0] != '[' && inner[0] != '(' {
			inner = " " + inner
		}
		return w.declare(t, qualifier+inner, depth+1)
	}
	return qualifier + " " + w.declare(t, inner, depth+1)
}

func tagText(kind, name string) string {
	if name == "" {
		return kind + " {...}"
	}
	return kind + " " + name
}
