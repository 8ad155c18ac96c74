package script

import (
	"math"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// Limits of a path.
const (
	maxPath     = 4096 // bytes
	maxFollowed = 64   // pointers
)

// Path is a part of memory: a type at an address, or a member or an element of it,
// possibly through pointers.
type Path struct {
	Type btf.Type
	Size uint64 // in bytes, at most 1<<32; 0: it has no values

	// Steps are added to the address in turn, in bytes. After each one except the
	// last, the pointer at that address is the next address.
	Steps []uint64

	bit, width uint64 // of a bit field: its first bit in the first byte, and its width
}

// ParsePath reads a type in the syntax of casts, followed by members and elements as
// in expressions: struct file.f_path.dentry->d_name, int[4]. The tag is optional if
// no other type has the name. It may be called from any goroutine that may use known;
// an error is an *Error.
func ParsePath(text string, known Types) (*Path, error) {
	s := &script{source: &source{name: "type", text: text}, types: known}
	if len(text) > maxPath {
		return nil, s.errorAt(Span{From: 0, To: 1}, "a type of %d bytes: at most %d", len(text), maxPath)
	}
	p := &parser{script: s, lexer: lexer{src: s.source}, inPath: true}
	if err := p.advance(); err != nil {
		return nil, err
	}
	if p.isWord("typeof") {
		return nil, p.errorAt(p.tok.Span, "typeof() is of expressions, which a script has")
	}
	n, err := p.typeName()
	if err != nil {
		return nil, err
	}
	to := &Path{Type: n.c, Steps: []uint64{0}}
	for p.tok.kind != tokEOF {
		switch {
		case p.isOp("."), p.isOp("->"):
			err = p.memberOf(to)
		case p.isOp("["):
			err = p.elementOf(to)
		default:
			err = p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a member or an element", p.describe())
		}
		if err != nil {
			return nil, err
		}
	}
	to.Type = p.completeType(to.Type)
	to.Size, _ = types.Size(to.Type)
	if to.width > 0 {
		to.Size = (to.bit + to.width + 7) / 8
	}
	return to, nil
}

// follow continues at the target of a pointer, if the path leads to one.
func (p *parser) follow(to *Path) error {
	ptr, ok := types.Strip(to.Type).(*btf.Pointer)
	if !ok {
		return nil
	}
	if len(to.Steps) > maxFollowed {
		return p.errorAt(p.tok.Span, "more than %d pointers", maxFollowed)
	}
	to.Type, to.Steps = ptr.Target, append(to.Steps, 0)
	return nil
}

// memberOf reads .NAME and ->NAME, which are equivalent.
func (p *parser) memberOf(to *Path) error {
	if err := p.advance(); err != nil {
		return err
	}
	if p.tok.kind != tokIdent {
		return p.errorAt(p.tok.Span, "syntax error, unexpected %s, expecting a member", p.describe())
	}
	if err := p.follow(to); err != nil {
		return err
	}
	in, name := p.completeType(to.Type), p.tok.text
	f, found, structure := types.Member(in, name)
	if !found {
		err := p.errorAt(p.tok.Span, "%s has no member %q", types.Text(in), name)
		if err.Unknown = true; !structure {
			err.Message = types.Text(in) + " is no structure"
			if _, only := types.Strip(in).(*btf.Fwd); only {
				err.Message = "the guest's types have of " + types.Text(in) + " its name only"
			}
		} else if m := nearestName(name, memberNames(in)); m != "" {
			return err.hint("did you mean %s?", m)
		}
		return err
	}
	to.Type, to.bit, to.width = f.Type, f.Offset%8, f.Width
	to.Steps[len(to.Steps)-1] += f.Offset / 8
	return p.advance()
}

// elementOf reads [INDEX], of an array or of a pointer's target.
func (p *parser) elementOf(to *Path) error {
	if err := p.advance(); err != nil {
		return err
	}
	at, n := p.tok.Span, p.tok.num
	if p.tok.kind != tokInt || n > math.MaxUint32 {
		return p.errorAt(at, "an index is a number from 0 to %d", uint32(math.MaxUint32))
	}
	of := types.Text(to.Type)
	if a, ok := types.Strip(to.Type).(*btf.Array); ok {
		if n >= uint64(a.Nelems) && a.Nelems > 0 { // without a length it extends as far as memory
			return p.errorAt(at, "the index %d is out of bounds for array of size %d", n, a.Nelems)
		}
		to.Type = a.Type
	} else {
		before := len(to.Steps)
		if err := p.follow(to); err != nil {
			return err
		}
		if len(to.Steps) == before {
			return p.errorAt(at, "%s has no elements", of)
		}
	}
	to.Type = p.completeType(to.Type)
	size, ok := types.Size(to.Type)
	if !ok || size == 0 {
		return p.errorAt(at, "elements of %s have no size", of)
	}
	to.bit, to.width = 0, 0
	to.Steps[len(to.Steps)-1] += n * size
	if err := p.advance(); err != nil {
		return err
	}
	return p.expect("]")
}

// Text prints the value in data as C would write it, with a line for each member of a
// structure; a pointer with the symbol that it points to, if symbol does not return
// "".
func (t *Path) Text(data []byte, symbol func(uint64) string) string {
	c := &cPrinter{Printer: &Printer{}, left: maxParts, lines: true, symbolAt: symbol}
	return c.part(fromC(t.Type), data, t.bit, t.width)
}

// JSON prints the value in data as JSON.
func (t *Path) JSON(data []byte) string {
	c := &cPrinter{Printer: &Printer{}, left: maxParts, json: true}
	return c.part(fromC(t.Type), data, t.bit, t.width)
}
