package script

import (
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// maxMembers bounds a structure that a script defines.
const maxMembers = 1024

// typeDefinition reads struct TAG { ... }; and so on, or a typedef. After the
// semicolon it reads no token: an attach point may follow.
func (p *parser) typeDefinition() error {
	p.inDefinition = true
	defer func() { p.inDefinition = false }()
	isTypedef := p.isWord("typedef")
	if isTypedef {
		if err := p.advance(); err != nil {
			return err
		}
	}
	at := p.tok.Span
	t, err := p.baseType()
	if err != nil {
		return err
	}
	if isTypedef {
		name, t, _, err := p.declarator(t)
		if err != nil {
			return err
		}
		if err := p.define(at, types.TagNone, name, &btf.Typedef{Name: name, Type: t}); err != nil {
			return err
		}
	}
	if p.isOp(";") {
		return nil
	}
	// bpftrace does not require a semicolon after a definition.
	p.pos = p.tok.From
	return nil
}

// define adds a type of the script.
func (p *parser) define(at Span, tag types.Tag, name string, t btf.Type) error {
	if name == "" {
		return nil
	}
	if p.defined[cName{tag, name}] != nil {
		return p.errorAt(at, "redefinition of '%s'", strings.TrimSpace(string(tag)+" "+name))
	}
	p.defined[cName{tag, name}] = t
	return nil
}

// definition reads the part in braces of a structure, a union or an enumeration.
func (p *parser) definition(tag types.Tag, name string, as attributes) (t btf.Type, err error) {
	at := p.tok.Span
	err = p.nest(func() error {
		if err := p.advance(); err != nil {
			return err
		}
		if tag == types.TagEnum {
			t, err = p.enumeration(name)
			return err
		}
		l := layout{union: tag == types.TagUnion, align: 1, known: p.alignments}
		for !p.isOp("}") {
			if err := p.memberDecl(&l); err != nil {
				return err
			}
		}
		if err := p.advance(); err != nil {
			return err
		}
		if err := as.readAttributes(p); err != nil {
			return err
		}
		if as.packed {
			l = l.withoutPadding()
		}
		l.align = max(l.align, as.align)
		if size := l.size(); l.union {
			t = &btf.Union{Name: name, Size: size, Members: l.members}
		} else {
			t = &btf.Struct{Name: name, Size: size, Members: l.members}
		}
		p.alignments[t] = l.align
		return nil
	})
	if err != nil {
		return nil, err
	}
	return t, p.define(at, tag, name, t)
}

// attributes say where the members of a structure or a union are.
type attributes struct {
	packed bool
	align  uint64 // bytes; 0: as the members need it
}

// harmless are the attributes that do not say where members are.
var harmless = []string{"preserve_access_index", "may_alias", "unused", "deprecated", "designated_init"}

// readAttributes reads any number of __attribute__((NAME, NAME(N), ...)), and adds them to a.
func (a *attributes) readAttributes(p *parser) error {
	for p.isWord("__attribute__") {
		if err := p.advance(); err != nil {
			return err
		}
		for range 2 {
			if err := p.expect("("); err != nil {
				return err
			}
		}
		for !p.isOp(")") {
			if err := a.readAttribute(p); err != nil {
				return err
			}
			if p.isOp(")") {
				break
			}
			if err := p.expect(","); err != nil {
				return err
			}
		}
		// An attach point may follow the last one: it is read again from its first
		// word.
		for range 2 {
			if err := p.expect(")"); err != nil {
				return err
			}
		}
	}
	return nil
}

// readAttribute reads one attribute. Its name may have two underscores before and after it.
func (a *attributes) readAttribute(p *parser) error {
	at := p.tok
	name := at.text
	if len(name) > 4 && strings.HasPrefix(name, "__") {
		name = strings.TrimSuffix(name[2:], "__")
	}
	if err := p.advance(); err != nil {
		return err
	}
	switch {
	case name == "packed":
		a.packed = true
		return nil
	case name == "aligned":
		n := uint64(maxAlignment)
		if p.isOp("(") {
			args, err := p.list(")")
			if err != nil {
				return err
			}
			if err := p.expect(")"); err != nil {
				return err
			}
			n = 0
			if len(args) == 1 {
				x, _ := p.constant(args[0])
				n = uint64(max(x, 0))
			}
		}
		if n == 0 || n&(n-1) != 0 || n > 4096 {
			return p.errorAt(at.Span, "aligned takes a power of 2, up to 4096")
		}
		a.align = max(a.align, n)
		return nil
	case slices.Contains(harmless, name):
		if !p.isOp("(") {
			return nil
		}
		if _, err := p.list(")"); err != nil {
			return err
		}
		return p.expect(")")
	}
	return p.errorAt(at.Span, "the attribute %q is not supported", at.text).hint("packed and aligned(N) are: leave out an attribute that does not move members")
}

// maxAlignment is the largest alignment that a type of C needs by itself, in bytes: that of aligned without a number.
const maxAlignment = 16

// enumeration reads enumerators up to the brace.
func (p *parser) enumeration(name string) (btf.Type, error) {
	e := &btf.Enum{Name: name, Size: 4}
	for next := uint64(0); !p.isOp("}"); next++ {
		v := p.tok
		if v.kind != tokIdent {
			return nil, p.errorAt(v.Span, "syntax error, unexpected %s, expecting a name", p.describe())
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if p.isOp("=") {
			if err := p.advance(); err != nil {
				return nil, err
			}
			x, err := p.unary()
			if err != nil {
				return nil, err
			}
			n, ok := p.constant(x)
			if !ok {
				return nil, p.errorAt(x.Span, "an enumerator is a number that is known before")
			}
			next = uint64(n)
			e.Signed = e.Signed || n < 0
		}
		if _, ok := p.enumerators[v.text]; ok || len(e.Values) == maxMembers {
			return nil, p.errorAt(v.Span, "redefinition of '%s', or more than %d enumerators", v.text, maxMembers)
		}
		if next+1<<31 > 3<<31 {
			e.Size = 8
		}
		p.enumerators[v.text] = enumerator{next, e}
		e.Values = append(e.Values, btf.EnumValue{Name: v.text, Value: next})
		if p.isOp("}") {
			break
		}
		if err := p.expect(","); err != nil {
			return nil, err
		}
	}
	return e, p.advance()
}

// memberDecl reads one declaration of members.
func (p *parser) memberDecl(l *layout) error {
	base, err := p.baseType()
	if err != nil {
		return err
	}
	if p.isOp(";") { // the members of an anonymous structure
		l.add("", base, 0)
		return p.advance()
	}
	for {
		at := p.tok.Span
		name, t, width, err := p.declarator(base)
		if err != nil {
			return err
		}
		if _, ok := types.Size(t); !ok {
			return p.errorAt(at, "member '%s' has a type without a size", name)
		}
		switch {
		case len(l.members) == maxMembers:
			return p.errorAt(at, "more than %d members", maxMembers)
		case name != "" && slices.ContainsFunc(l.members, func(m btf.Member) bool { return m.Name == name }):
			return p.errorAt(at, "duplicate member '%s'", name)
		}
		l.add(name, t, width)
		if l.bits > 1<<31 {
			return p.errorAt(at, "a structure that is too large")
		}
		switch {
		case p.isOp(";"):
			return p.advance()
		case p.isOp("}"): // the last semicolon is optional
			return nil
		}
		if err := p.expect(","); err != nil {
			return err
		}
	}
}

// declarator reads a name with the parts that make its type a pointer, an array, a
// function or a bit field. For a bit field, width is its width plus 1.
func (p *parser) declarator(t btf.Type) (name string, _ btf.Type, width uint64, err error) {
	if t, err = p.pointers(t); err != nil {
		return "", nil, 0, err
	}
	if p.isOp("(") { // a pointer to a function
		return p.functionPointer()
	}
	if p.tok.kind == tokIdent {
		name = p.tok.text
		if err := p.advance(); err != nil {
			return "", nil, 0, err
		}
	} else if !p.isOp(":") {
		return "", nil, 0, p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a name", p.describe())
	}
	if p.isOp(":") {
		if err := p.advance(); err != nil {
			return "", nil, 0, err
		}
		n, ok := types.Size(t)
		if p.tok.kind != tokInt || !ok || p.tok.num > 8*n || fromC(t).Kind != Int && fromC(t).Kind != Bool {
			return "", nil, 0, p.errorAt(p.tok.Span, "a bit field has a width of at most its type's")
		}
		width = p.tok.num + 1
		return name, t, width, p.advance()
	}
	t, _, err = p.dimensions(t)
	return name, t, 0, err
}

// functionPointer reads (*NAME)(...), which is a pointer whatever its target.
func (p *parser) functionPointer() (name string, _ btf.Type, width uint64, err error) {
	for _, want := range []string{"(", "*"} {
		if err := p.expect(want); err != nil {
			return "", nil, 0, err
		}
	}
	if p.tok.kind == tokIdent {
		name = p.tok.text
		if err := p.advance(); err != nil {
			return "", nil, 0, err
		}
	}
	if err := p.expect(")"); err != nil {
		return "", nil, 0, err
	}
	if err := p.expect("("); err != nil {
		return "", nil, 0, err
	}
	for open := 1; open > 0; {
		switch {
		case p.tok.kind == tokEOF:
			return "", nil, 0, p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting %q", p.describe(), ")")
		case p.isOp("("):
			open++
		case p.isOp(")"):
			open--
		}
		if err := p.advance(); err != nil {
			return "", nil, 0, err
		}
	}
	return name, &btf.Pointer{Target: cVoid}, 0, nil
}

// layout places members as the System V ABI for AMD64 does (3.1.2).
type layout struct {
	members []btf.Member
	union   bool
	bits    uint64 // bits so far
	align   uint64 // bytes
	tight   bool   // packed: no alignment
	all     []declaration
	known   map[btf.Type]uint64
}

// declaration is a member as declared.
type declaration struct {
	name  string
	t     btf.Type
	width uint64
}

// withoutPadding returns the layout of the same members without alignment.
func (l layout) withoutPadding() layout {
	p := layout{union: l.union, align: 1, known: l.known, tight: true}
	for _, d := range l.all {
		p.add(d.name, d.t, d.width)
	}
	return p
}

// add places a member; width is the width of a bit field plus 1, or 0.
func (l *layout) add(name string, t btf.Type, width uint64) {
	l.all = append(l.all, declaration{name, t, width})
	n, _ := types.Size(t)
	align := l.alignment(t, maxPointers)
	if l.tight {
		align = 1
	}
	at := l.bits
	if l.union {
		at = 0
	}
	end := at
	if width > 0 {
		// A bit field is within a number of its type; one of width 0 ends that
		// number.
		if w := width - 1; w == 0 || !l.tight && at/(8*n) != (at+w-1)/(8*n) {
			at = (at + 8*n - 1) / (8 * n) * (8 * n)
		}
		end = at + width - 1
		width--
	} else {
		at = (at + 8*align - 1) / (8 * align) * (8 * align)
		end = at + 8*n
	}
	l.bits = max(l.bits, end)
	if width > 0 || end > at || n == 0 {
		if name != "" || width == 0 {
			l.align = max(l.align, align)
			l.members = append(l.members, btf.Member{Name: name, Type: t, Offset: btf.Bits(at), BitfieldSize: btf.Bits(width)})
		}
	}
}

// size returns the structure's size in bytes.
func (l *layout) size() uint32 {
	return uint32((l.bits + 8*l.align - 1) / (8 * l.align) * l.align)
}

// alignment returns a type's alignment in bytes. It is cached for structures.
func (l *layout) alignment(t btf.Type, left int) uint64 {
	if left--; left < 0 {
		return 1
	}
	t = types.Strip(t)
	if a, ok := t.(*btf.Array); ok {
		return l.alignment(a.Type, left)
	}
	ms, ok := types.Members(t)
	if !ok {
		n, _ := types.Size(t)
		return max(min(n, maxAlignment), 1)
	}
	if n, ok := l.known[t]; ok {
		return n
	}
	most := uint64(1)
	l.known[t] = most
	for _, m := range ms {
		most = max(most, l.alignment(m.Type, left))
	}
	l.known[t] = most
	return most
}
