package command

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"text/template"
	"text/template/parse"
	"unicode"
)

// fieldChecker checks the fields in a template before any row is printed. It accepts the
// names of the JSON form in upper or lower case and replaces them with Go's names.
type fieldChecker struct {
	vars map[string]reflect.Type // types of variables $NAME; nil: unknown
	err  error                   // the first error
}

// checkFields checks the fields in t against the type of its rows.
func checkFields(t *template.Template, row reflect.Type) error {
	c := fieldChecker{vars: map[string]reflect.Type{"$": row}}
	c.node(t.Root, row)
	return c.err
}

// node checks a node. dot is the type of the node's dot, or nil if it is unknown.
func (c *fieldChecker) node(n parse.Node, dot reflect.Type) {
	switch n := n.(type) {
	case *parse.ListNode:
		if n == nil {
			return
		}
		for _, n := range n.Nodes {
			c.node(n, dot)
		}
	case *parse.ActionNode:
		c.pipe(n.Pipe, dot)
	case *parse.IfNode:
		c.pipe(n.Pipe, dot)
		c.node(n.List, dot)
		c.node(n.ElseList, dot)
	case *parse.WithNode:
		c.node(n.List, c.pipe(n.Pipe, dot))
		c.node(n.ElseList, dot)
	case *parse.RangeNode:
		of := c.pipe(n.Pipe, dot)
		var elem reflect.Type
		if of != nil && slices.Contains([]reflect.Kind{reflect.Slice, reflect.Array, reflect.Map}, of.Kind()) {
			elem = of.Elem()
		}
		for i, v := range n.Pipe.Decl {
			if c.vars[v.Ident[0]] = nil; i == len(n.Pipe.Decl)-1 {
				c.vars[v.Ident[0]] = elem
			}
		}
		c.node(n.List, elem)
		c.node(n.ElseList, dot)
	}
}

// pipe returns the type of a pipeline's result, or nil if it is unknown.
func (c *fieldChecker) pipe(p *parse.PipeNode, dot reflect.Type) (t reflect.Type) {
	if p == nil {
		return nil
	}
	for _, cmd := range p.Cmds {
		t = nil
		for i, arg := range cmd.Args {
			at := c.arg(arg, dot)
			if i == 0 {
				t = at // the result type of a function is unknown
			}
		}
	}
	for _, v := range p.Decl {
		c.vars[v.Ident[0]] = t
	}
	return t
}

// arg returns the type of an operand.
func (c *fieldChecker) arg(n parse.Node, dot reflect.Type) reflect.Type {
	switch n := n.(type) {
	case *parse.DotNode:
		return dot
	case *parse.FieldNode:
		return c.chain(dot, n.Ident)
	case *parse.VariableNode:
		return c.chain(c.vars[n.Ident[0]], n.Ident[1:])
	case *parse.ChainNode:
		return c.chain(c.arg(n.Node, dot), n.Field)
	case *parse.PipeNode:
		return c.pipe(n, dot)
	}
	return nil
}

// chain returns the type of a.b.c, and replaces JSON names with Go's names.
func (c *fieldChecker) chain(t reflect.Type, names []string) reflect.Type {
	for i, name := range names {
		for t != nil && t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		if t == nil || t.Kind() == reflect.Interface {
			return nil
		}
		if m, ok := t.MethodByName(name); ok {
			t = m.Type.Out(0)
			continue
		}
		switch t.Kind() {
		case reflect.Map:
			t = t.Elem()
		case reflect.Struct:
			f, ok := fieldNamed(t, name)
			if !ok {
				c.fail(names[:i], name, t)
				return nil
			}
			names[i], t = f.Name, f.Type
		default:
			c.fail(names[:i], name, t)
			return nil
		}
	}
	return t
}

// fieldNamed returns the field of a struct with that name in Go or JSON, in upper or lower case.
func fieldNamed(t reflect.Type, name string) (reflect.StructField, bool) {
	if f, ok := t.FieldByName(name); ok && f.IsExported() {
		return f, true
	}
	for _, f := range reflect.VisibleFields(t) {
		// A name in two embedded structs is ambiguous and does not count.
		if _, own := t.FieldByName(f.Name); own && f.IsExported() && (strings.EqualFold(f.Name, name) || strings.EqualFold(jsonName(f), name)) {
			return f, true
		}
	}
	return reflect.StructField{}, false
}

// jsonName returns a field's name in JSON.
func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// fail records an error about an unknown field, with the existing fields.
func (c *fieldChecker) fail(before []string, name string, t reflect.Type) {
	if c.err != nil {
		return
	}
	var there []string
	if t.Kind() == reflect.Struct {
		for _, f := range reflect.VisibleFields(t) {
			if _, ok := t.FieldByName(f.Name); ok && f.IsExported() && !f.Anonymous && !slices.Contains(there, f.Name) {
				there = append(there, f.Name)
			}
		}
		for i := range t.NumMethod() {
			if m := t.Method(i); m.Type.NumIn() > 1 { // skip methods without arguments, such as String
				there = append(there, m.Name)
			}
		}
	}
	slices.Sort(there)
	of := ""
	if len(before) > 0 {
		of = " of ." + strings.Join(before, ".")
	}
	switch {
	case t.Kind() == reflect.Slice:
		c.err = fmt.Errorf("no field .%s%s, which is a list: {{range}} goes through it", name, of)
		return
	case len(there) == 0:
		c.err = fmt.Errorf("no field .%s%s, which has none", name, of)
		return
	}
	if near := Suggest(name, slices.Values(there)); near != "" {
		c.err = fmt.Errorf("no field .%s%s: %s", name, of, near)
		return
	}
	c.err = fmt.Errorf("no field .%s%s; there are %s", name, of, strings.Join(there, ", "))
}

// headings returns the heading of a table: the template with each value replaced by the name of its field, such
// as IN-USE for .InUse.
func headings(n parse.Node) string {
	switch n := n.(type) {
	case *parse.ListNode:
		var b strings.Builder
		for _, n := range n.Nodes {
			b.WriteString(headings(n))
		}
		return b.String()
	case *parse.TextNode:
		return string(n.Text)
	case *parse.ActionNode:
		if len(n.Pipe.Decl) > 0 {
			return ""
		}
		for _, cmd := range n.Pipe.Cmds {
			for _, arg := range cmd.Args {
				switch f := arg.(type) {
				case *parse.FieldNode:
					return heading(f.Ident[len(f.Ident)-1])
				case *parse.VariableNode:
					return heading(strings.TrimPrefix(f.Ident[len(f.Ident)-1], "$"))
				}
			}
		}
	case *parse.IfNode:
		return headings(n.List)
	case *parse.WithNode:
		return headings(n.List)
	case *parse.RangeNode:
		return headings(n.List)
	}
	return ""
}

// heading returns a field's name in capitals, with dashes between words.
func heading(name string) string {
	var b strings.Builder
	r := []rune(name)
	for i := range r {
		if i > 0 && unicode.IsUpper(r[i]) && unicode.IsLower(r[i-1]) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToUpper(r[i]))
	}
	return b.String()
}
