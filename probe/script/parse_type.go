package script

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// isQualifier reports whether a word does not affect the type here.
func isQualifier(w string) bool {
	switch w {
	case "const", "volatile", "restrict", "__user", "__rcu", "__percpu", "__kernel":
		return true
	}
	return false
}

// typed reports whether a type begins at the current word.
func (p *parser) typed() bool {
	w := p.tok.text
	switch {
	case p.tok.kind != tokIdent:
		return false
	case p.macro.hasTypeParam(w): // alone it may be an expression, too
		stars, _, ok := pointsTo(p)
		return ok && stars > 0
	case w == "struct", w == "union", w == "enum", w == "void", w == "typeof" && p.follows("("), isQualifier(w):
		return true
	case cNumbers[w] != nil || slices.Contains(cWords, w):
		return len(p.macros[w]) == 0 || !p.follows("(")
	}
	_, isName := builtins[w]
	_, isCall := calls[w]
	known := p.types
	if len(p.macros[w]) > 0 { // a file's types do not hide macros
		known = p.guest
	}
	return !isName && !isCall && p.typeNamedIn(known, types.TagNone, w) != nil
}

// words reads qualifiers.
func (p *parser) qualifiers() error {
	for p.tok.kind == tokIdent && isQualifier(p.tok.text) {
		if err := p.advance(); err != nil {
			return err
		}
	}
	return nil
}

// baseType reads a type without pointers and dimensions.
func (p *parser) baseType() (t btf.Type, err error) {
	if err := p.qualifiers(); err != nil {
		return nil, err
	}
	at, w := p.tok.Span, p.tok.text
	if p.tok.kind != tokIdent {
		return nil, p.errorAt(at, "syntax error, unexpected %s, expecting a type", p.describe())
	}
	switch {
	case w == "struct", w == "union", w == "enum":
		t, err = p.taggedType(types.Tag(w))
	case slices.Contains(cWords, w):
		var ws []string
		for p.tok.kind == tokIdent && (slices.Contains(cWords, p.tok.text) || isQualifier(p.tok.text)) {
			if at.To = p.tok.To; !isQualifier(p.tok.text) {
				ws = append(ws, p.tok.text)
			}
			if err := p.advance(); err != nil {
				return nil, err
			}
		}
		if t = typeOfWords(ws); t == nil {
			return nil, p.errorAt(at, "Cannot resolve unknown type %q", strings.Join(ws, " ")).hint("write uint8 to uint64, or int8 to int64")
		}
	default:
		if w == "void" {
			t = cVoid
		} else if p.macro.hasTypeParam(w) {
			t = &typeParam{Type: cVoid, name: w}
		} else if t = p.plainType(w); t == nil {
			return nil, p.unknownTypeError(at, types.TagNone, w)
		}
		err = p.advance()
	}
	if err != nil {
		return nil, err
	}
	return t, p.qualifiers()
}

// plainType returns the type of a name without a tag, or nil.
func (p *parser) plainType(name string) btf.Type {
	n := cNumbers[name]
	if n != nil && !p.inPath {
		return n
	}
	own := p.typeNamed(types.TagNone, name)
	switch {
	case own == nil && n == nil && p.inPath: // the tag is optional
		for _, tag := range []types.Tag{types.TagStruct, types.TagUnion, types.TagEnum} {
			if t := p.typeNamed(tag, name); t != nil {
				return t
			}
		}
	case own != nil && n != nil: // a guest may use the name for another number
		was, _ := types.Size(n)
		if is, ok := types.Size(own); !ok || is == was {
			return n
		}
	case own == nil:
		return n
	}
	return own
}

// unknownTypeError is the error for an unknown type.
func (s *script) unknownTypeError(at Span, tag types.Tag, name string) error {
	full := strings.TrimSpace(string(tag) + " " + name)
	err := s.errorAt(at, "Cannot resolve unknown type %q", full)
	err.Unknown = true
	var names []string
	for d := range s.defined {
		if d.tag == tag {
			names = append(names, d.name)
		}
	}
	if tag == types.TagNone {
		for n := range cNumbers {
			names = append(names, n)
		}
	}
	if s.types != nil {
		names = append(names, s.types.Names(tag)...)
	}
	if m := nearestName(name, names); m != "" {
		return err.hint("did you mean %s?", strings.TrimSpace(string(tag)+" "+m))
	}
	if s.types == nil && tag != types.TagNone {
		return err.hint("the guest's types are not known: define it in the script, as %s { int a; };", full)
	}
	return err
}

// taggedType reads struct TAG and so on, or a definition in braces.
func (p *parser) taggedType(tag types.Tag) (btf.Type, error) {
	at := p.tok.Span
	if err := p.advance(); err != nil {
		return nil, err
	}
	name, as := "", attributes{}
	read := func() (err error) { // before the tag and after it
		if !p.inDefinition {
			return nil
		}
		return as.readAttributes(p)
	}
	if err := read(); err != nil {
		return nil, err
	}
	if p.tok.kind == tokIdent {
		name, at.To = p.tok.text, p.tok.To
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if err := read(); err != nil {
		return nil, err
	}
	if as != (attributes{}) && (!p.isOp("{") || tag == types.TagEnum) {
		return nil, p.errorAt(at, "packed or aligned is for the definition of a structure or a union").hint("write it where the members are, in braces")
	}
	if p.isOp("{") && p.inDefinition {
		return p.definition(tag, name, as)
	}
	if name == "" {
		return nil, p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a name", p.describe())
	}
	if p.macro.hasTypeParam(name) {
		return &typeParam{Type: cVoid, tag: tag, name: name}, nil
	}
	if t := p.typeNamed(tag, name); t != nil {
		return t, nil
	}
	if p.inDefinition && p.isOp("*") { // a pointer to a type that need not be known
		kind := btf.FwdStruct
		if tag == types.TagUnion {
			kind = btf.FwdUnion
		}
		return &btf.Fwd{Name: name, Kind: kind}, nil
	}
	return nil, p.unknownTypeError(at, tag, name)
}

// pointers reads the stars after a type.
func (p *parser) pointers(t btf.Type) (btf.Type, error) {
	for n := 0; p.isOp("*"); n++ {
		if n == maxPointers/2 {
			return nil, p.errorAt(p.tok.Span, "too many *")
		}
		t = &btf.Pointer{Target: t}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if err := p.qualifiers(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// dimensions reads the dimensions of an array; whole means an array of as many
// elements as there are.
func (p *parser) dimensions(t btf.Type) (_ btf.Type, whole bool, err error) {
	var counts []uint32
	for p.isOp("[") {
		if err := p.advance(); err != nil {
			return nil, false, err
		}
		n := uint64(0)
		switch {
		case p.isOp("]") && len(counts) == 0:
			whole = true
		case p.tok.kind != tokInt || p.tok.num > maxElements:
			return nil, false, p.errorAt(p.tok.Span, "an array has a number of elements from 0 to %d", maxElements)
		default:
			n = p.tok.num
			if err := p.advance(); err != nil {
				return nil, false, err
			}
		}
		if counts = append(counts, uint32(n)); len(counts) > maxPointers/2 {
			return nil, false, p.errorAt(p.tok.Span, "an array of too many dimensions")
		}
		if err := p.expect("]"); err != nil {
			return nil, false, err
		}
	}
	for i := len(counts) - 1; i >= 0; i-- {
		t = &btf.Array{Index: cNumbers["uint32"], Type: t, Nelems: counts[i]}
	}
	return t, whole, nil
}

// maxElements bounds the arrays of a script.
const maxElements = 1 << 16

// typeName reads a type in the syntax of casts.
func (p *parser) typeName() (*typeName, error) {
	n := &typeName{Span: p.tok.Span}
	if p.isWord("typeof") {
		return n, p.typeOf(n)
	}
	t, err := p.baseType()
	for level := 0; err == nil; level++ { // int *[4]*: an array of pointers, and a pointer to it
		if level == maxPointers {
			return n, p.errorAt(p.tok.Span, "too many *")
		}
		if t, err = p.pointers(t); err == nil {
			t, n.whole, err = p.dimensions(t)
		}
		if n.c = t; !p.isOp("*") {
			break
		}
	}
	n.To = p.tok.From
	return n, err
}

// typeOf reads typeof(E) with the stars after it.
func (p *parser) typeOf(n *typeName) (err error) {
	if err := p.advance(); err != nil {
		return err
	}
	return readTypeOf(p, n)
}

// readTypeOf is typeOf after its first word.
func readTypeOf(p *parser, n *typeName) (err error) {
	if err := p.expect("("); err != nil {
		return err
	}
	if p.typed() {
		of, err := p.typeName()
		if err != nil {
			return err
		}
		*n = *of
	} else if n.of, err = p.expr(); err != nil {
		return err
	}
	if err := p.expect(")"); err != nil {
		return err
	}
	if n.of == nil {
		n.c, err = p.pointers(n.c)
	}
	for ; n.of != nil && p.isOp("*"); n.stars++ {
		if n.stars == maxPointers/2 {
			return p.errorAt(p.tok.Span, "too many *")
		}
		if err := p.advance(); err != nil {
			return err
		}
	}
	n.To = p.tok.From
	return err
}

// castOf reads (TYPE)operand, if the tokens are one.
func (p *parser) castOf() (*expr, bool, error) {
	open, back := p.tok, p.pos
	if err := p.advance(); err != nil {
		return nil, false, err
	}
	isText := p.isWord("string") && (p.follows(")") || p.follows("[") || p.follows("*")) && p.typeNamed(types.TagNone, "string") == nil
	if !p.typed() && !isText && !castsToParam(p) {
		err := p.notTypeError()
		p.tok, p.pos = open, back
		return nil, false, err
	}
	read := p.typeName
	if isText {
		read = p.stringType
	}
	name, err := read()
	if err != nil {
		return nil, false, err
	}
	if isText && p.isOp("*") { // a pointer to text
		if err := name.readPointerToText(p); err != nil {
			return nil, false, err
		}
	}
	if err := p.expect(")"); err != nil {
		return nil, false, err
	}
	of, err := p.unary()
	if err != nil {
		return nil, false, err
	}
	return &expr{kind: exCast, cast: name, Span: open.Span.join(of.Span), args: []*expr{of}}, true, nil
}

// readPointerToText reads the stars after string or string[N]: N characters, or max_strlen, are read at the pointer.
func (n *typeName) readPointerToText(p *parser) (err error) {
	size := uint32(p.config.maxString)
	if n.sized {
		size = uint32(n.text)
	}
	n.text, n.sized = 0, false
	n.c, err = p.pointers(&btf.Array{Index: cNumbers["uint32"], Type: cNumbers["char"], Nelems: size})
	n.To = p.tok.From
	return err
}

// notTypeError is the error for (NAME *) and (NAME)OPERAND, which can only be casts
// to an unknown type.
func (p *parser) notTypeError() error {
	name := p.tok
	if name.kind != tokIdent {
		return nil
	}
	if err := p.advance(); err != nil {
		return nil // reported when it is read again
	}
	if _, ok := builtins[name.text]; ok {
		return nil
	}
	stars := 0
	for ; p.isOp("*"); stars++ {
		if err := p.advance(); err != nil {
			return nil
		}
	}
	if !p.isOp(")") || p.advance() != nil {
		return nil
	}
	switch {
	case stars > 0, p.tok.kind == tokIdent, p.tok.kind == tokInt, p.tok.kind == tokVar, p.tok.kind == tokMap, p.tok.kind == tokParam, p.tok.kind == tokString:
		return p.unknownTypeError(name.Span, types.TagNone, name.text)
	}
	return nil
}

// parseTypeOperand reads the operand of sizeof and offsetof: a type, or an
// expression, and for offsetof the field.
func (p *parser) parseTypeOperand(e *expr) (*expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	of := &expr{kind: exType, Span: p.tok.Span}
	var err error
	switch ms := p.macros[p.tok.text]; {
	case p.typed():
		if of.cast, err = p.typeName(); err == nil {
			of.Span = of.cast.Span
		}
	case len(ms) > 0 && !ms[0].define && p.tok.kind == tokIdent && !p.macro.hasTypeParam(p.tok.text) && (p.follows(")") || p.follows(",")): // a name alone is that of a type
		return nil, p.errorAt(p.tok.Span, "Cannot resolve unknown type %q", p.tok.text).hint("write %s() for the value of the macro", p.tok.text)
	default:
		of, err = p.expr()
	}
	if err != nil {
		return nil, err
	}
	e.kind, e.args = exCall, []*expr{of}
	if e.name == "offsetof" {
		if err := p.expect(","); err != nil {
			return nil, err
		}
		field, err := p.expr()
		if err != nil {
			return nil, err
		}
		for in := field; in.kind == exField; in = in.args[0] {
			if in.arrow {
				return nil, p.errorAt(in.Span, "offsetof() takes members of the structure itself, not of what a pointer in it points to").hint("write a dot")
			}
		}
		e.args = append(e.args, field)
	}
	e.Span = e.Span.join(p.tok.Span)
	return e, p.expect(")")
}

// containerOf reads container_of(POINTER, TYPE, FIELD): (TYPE *)((uint64)POINTER -
// offsetof(TYPE, FIELD)).
func (p *parser) containerOf(e *expr) (*expr, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	pointer, err := p.expr()
	if err != nil {
		return nil, err
	}
	if !p.isOp(",") {
		return nil, p.expect(",")
	}
	offset := &expr{Span: e.Span, name: "offsetof", text: "offsetof"}
	if offset, err = p.parseTypeOperand(offset); err != nil {
		return nil, err
	}
	of := offset.args[0]
	if of.kind != exType || of.cast.c == nil {
		return nil, p.errorAt(of.Span, "container_of() takes a structure's type, as struct file")
	}
	sp := e.Span.join(offset.Span)
	number := &expr{kind: exCast, cast: &typeName{c: cNumbers["uint64"]}, Span: pointer.Span, args: []*expr{pointer}}
	begin := &expr{kind: exBinary, name: "-", Span: sp, args: []*expr{number, offset}}
	return &expr{kind: exCast, cast: &typeName{Span: of.Span, c: &btf.Pointer{Target: of.cast.c}}, Span: sp, args: []*expr{begin}}, nil
}
