package openapi

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"reflect"
	"regexp"
	"strings"
)

// comments has the comments and the constants of package api.
type comments struct {
	types  map[string]string            // first paragraphs, by type
	fields map[string]map[string]string // by type and field
	consts map[string]constant.Value    // by name
	notes  map[string]string            // comments of constants, by name
	values map[string][]string          // names of the constants of a type, in the order of the source
	known  map[string]reflect.Type      // structs of the document, by name
}

// readComments reads the source of the package in dir.
func readComments(dir string) (*comments, error) {
	fset := token.NewFileSet()
	c := &comments{map[string]string{}, map[string]map[string]string{}, map[string]constant.Value{}, map[string]string{}, map[string][]string{}, map[string]reflect.Type{}}
	paths, err := fs.Glob(os.DirFS(dir), "*.go")
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, dir+"/"+path, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			if d, ok := d.(*ast.GenDecl); ok {
				for _, s := range d.Specs {
					switch s := s.(type) {
					case *ast.TypeSpec:
						c.typeSpec(s, d.Doc)
					case *ast.ValueSpec:
						if d.Tok == token.CONST {
							c.constants(s)
						}
					}
				}
			}
		}
	}
	if len(c.types) == 0 {
		return nil, fmt.Errorf("%s: no types", dir)
	}
	return c, nil
}

func (c *comments) typeSpec(s *ast.TypeSpec, doc *ast.CommentGroup) {
	c.types[s.Name.Name] = paragraph(doc)
	st, ok := s.Type.(*ast.StructType)
	if !ok {
		return
	}
	fields := map[string]string{}
	for _, f := range st.Fields.List {
		for _, n := range f.Names {
			fields[n.Name] = strings.TrimSpace(paragraph(f.Doc) + " " + paragraph(f.Comment))
		}
	}
	c.fields[s.Name.Name] = fields
}

func (c *comments) constants(s *ast.ValueSpec) {
	for i, n := range s.Names {
		if i < len(s.Values) {
			if v := c.value(s.Values[i]); v.Kind() != constant.Unknown {
				c.consts[n.Name] = v
			}
		}
		c.notes[n.Name] = paragraph(s.Comment)
		if typ, ok := s.Type.(*ast.Ident); ok {
			c.values[typ.Name] = append(c.values[typ.Name], n.Name)
		}
	}
}

// value is that of an expression of literals. Others are unknown.
func (c *comments) value(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.BinaryExpr:
		x, y := c.value(e.X), c.value(e.Y)
		if x.Kind() != constant.Int || y.Kind() != constant.Int {
			return constant.MakeUnknown()
		}
		if e.Op == token.SHL {
			n, _ := constant.Uint64Val(y)
			return constant.Shift(x, e.Op, uint(n))
		}
		return constant.BinaryOp(x, e.Op, y)
	}
	return constant.MakeUnknown()
}

// paragraph is the first paragraph of a comment, on one line. Later ones are for readers of the source.
func paragraph(g *ast.CommentGroup) string {
	first, _, _ := strings.Cut(g.Text(), "\n\n")
	return strings.Join(strings.Fields(first), " ")
}

// name is a word of a comment that may be a name of Go's, with the byte before it.
var name = regexp.MustCompile(`(^|[^\w/])([A-Z]\w*)(?:\.([A-Z]\w*))?\b`)

// wire translates a comment on a type, on one of its fields, or elsewhere if typ
// is nil, to the terms of the API: fields by their JSON names, constants by
// their values.
func (c *comments) wire(typ reflect.Type, text string) string {
	return name.ReplaceAllStringFunc(text, func(s string) string {
		m := name.FindStringSubmatch(s)
		if m[3] != "" {
			if f := c.field(m[2], m[3]); f != "" {
				return m[1] + m[2] + "." + f
			}
			return s
		}
		if typ != nil {
			if f, ok := typ.FieldByName(m[2]); ok && jsonName(f) != "" {
				return m[1] + jsonName(f)
			}
		}
		if v, ok := c.consts[m[2]]; ok {
			if v.Kind() == constant.String {
				return m[1] + constant.StringVal(v)
			}
			return m[1] + v.ExactString()
		}
		return s
	})
}

// field is the name in JSON of a field of a type that is in the document, or "".
func (c *comments) field(typ, field string) string {
	t, ok := c.known[typ]
	if !ok {
		return ""
	}
	f, ok := t.FieldByName(field)
	if !ok {
		return ""
	}
	return jsonName(f)
}

// describeType describes a type. The first word of its comment is its name.
func (c *comments) describeType(t reflect.Type) string {
	first, rest, _ := strings.Cut(c.types[t.Name()], " ")
	return strings.TrimSpace(first + " " + c.wire(t, rest))
}

// describeField describes a field of the struct t in owner, which is t or embeds
// it.
func (c *comments) describeField(t, owner reflect.Type, f reflect.StructField) string {
	return c.wire(t, c.fields[owner.Name()][f.Name])
}

// describeConstants has a line for each constant of a type that is in use: its value, and the comment.
func (c *comments) describeConstants(names []string) string {
	var b strings.Builder
	for _, n := range names {
		fmt.Fprintf(&b, "- %s", constant.StringVal(c.consts[n]))
		if note := c.notes[n]; note != "" {
			fmt.Fprintf(&b, ": %s", c.wire(nil, note))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// jsonName is the name of a field in JSON, or "".
func jsonName(f reflect.StructField) string {
	n, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return n
}
