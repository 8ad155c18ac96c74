package event

import (
	"errors"
	"strings"
	"syscall"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// typed is the type information of an expression.
type typed struct {
	t     btf.Type // nil: not known
	bit   uint64   // of a member: its first bit in the byte that is read
	width uint64   // of a bit field, in bits, else 0
}

// parameter reads NAME or $retval, each optionally followed by ->FIELD and .FIELD.
// Errors in the expression itself come first, as in the kernel (parse_btf_arg). A
// name that is not a parameter of the function entered there may be a variable of the
// code.
func (p *parser) parameter(s string) (Fetch, error) {
	if p.def.Kind != KindProbe || p.scope.Symbols == nil || p.scope.Variables == nil {
		return p.functionValue(s)
	}
	f, err := p.functionValue(s)
	var no *SyntaxError
	if !errors.As(err, &no) {
		return f, err
	}
	switch no.Code {
	case CodeNosupBTFArg, CodeNoBTFArg, CodeNoBTFEntry, CodeNosupDatArg:
		f, known, notOne := p.variableOf(s)
		if known && (notOne == nil || no.Code != CodeNosupDatArg) {
			return f, notOne
		}
	}
	return nil, err
}

// variableOf reads a variable's NAME and the fields after it; known is false if
// variables are not known.
func (p *parser) variableOf(s string) (f Fetch, known bool, err error) {
	name, path, arrow, err := p.cutField(s)
	if err != nil {
		return nil, true, err
	}
	var names []string
	if path != "" {
		names = strings.Split(strings.ReplaceAll(path, "->", "."), ".")
	}
	of, t, err := p.scope.Variables.Variable(p.addr, name, names)
	switch {
	case errors.Is(err, ErrNoSource):
		return nil, false, nil
	case err != nil:
		e := p.failHere(0, CodeNoBTFArg)
		e.Detail = err.Error()
		return nil, true, e
	}
	for d, ok := of.(Deref); ok; d, ok = d.Of.(Deref) {
		if _, more := d.Of.(Deref); more && !p.op() {
			return nil, true, p.failHere(0, CodeTooManyOps)
		}
	}
	p.typed = typed{t: types.Strip(t)}
	if len(name) == len(s) {
		return of, true, nil
	}
	p.offset += len(s) - len(path)
	if !arrow {
		if _, memory := of.(Deref); !memory {
			e := p.failHere(0, CodeNosupDatArg)
			e.Detail = "the structure is not in memory"
			return nil, true, e
		}
	}
	f, err = p.fields(of, path, arrow)
	return f, true, err
}

// functionValue reads a parameter of a function, or its result.
func (p *parser) functionValue(s string) (Fetch, error) {
	if !p.entry {
		e := p.failHere(0, CodeNosupBTFArg)
		e.Errno, e.Detail = syscall.EINVAL, "there are parameters at a function's entry and return only"
		return nil, e
	}
	name, path, arrow, err := p.cutField(s)
	if err != nil {
		return nil, err
	}
	fields := len(name) < len(s)
	if fields && !arrow {
		return nil, p.failHere(len(s)-len(path), CodeNosupDatArg)
	}
	if p.scope.Types == nil {
		return nil, p.typesError(p.token, p.offset)
	}
	var of Fetch
	var t btf.Type
	fn := p.function()
	switch {
	case name == "$retval" && fn.proto == nil && fields:
		return nil, p.failHere(len(s)-len(path), CodeNoBTFEntry)
	case name == "$retval" && fn.proto == nil:
		return RetVal{}, nil
	case name == "$retval" && types.IsVoid(fn.proto.Return):
		return nil, p.failHere(0, CodeNoRetval)
	case name == "$retval":
		of, t = RetVal{}, fn.proto.Return
	case len(fn.params()) == 0:
		return nil, p.failHere(0, CodeNoBTFEntry)
	default:
		if of, t, err = p.namedParameter(fn, name); err != nil {
			return nil, err
		}
	}
	p.typed = typed{t: types.Strip(t)}
	if !fields {
		return of, nil
	}
	p.offset += len(s) - len(path)
	return p.fields(of, path, true)
}

// namedParameter finds a parameter by name.
func (p *parser) namedParameter(fn function, name string) (Fetch, btf.Type, error) {
	for i, x := range fn.params() {
		if x.Name != name {
			continue
		}
		if fn.words[i] == 0 {
			e := p.failHere(0, CodeNoBTFArg)
			e.Detail = "it is passed in a vector register"
			return nil, nil, e
		}
		return FuncArg{fn.words[i]}, x.Type, nil
	}
	e := p.failHere(0, CodeNoBTFArg)
	e.Detail = "parameters are " + parameterNames(fn.params())
	return nil, nil, e
}

// cutField splits a name from the text after -> or a dot; arrow says which.
func (p *parser) cutField(s string) (name, rest string, arrow bool, err error) {
	i := strings.IndexAny(s, ".-")
	switch {
	case i < 0:
		return s, "", false, nil
	case s[i] == '.':
		return s[:i], s[i+1:], false, nil
	case strings.HasPrefix(s[i:], "->"):
		return s[:i], s[i+2:], true, nil
	}
	return "", "", false, p.failHere(i, CodeBadHyphen)
}

// fields reads the fields after an arrow: of a pointer to a structure, whose type is
// p.typed (parse_btf_field); or after a dot: of a structure in memory, which of
// reads. p.offset advances to the last of them.
func (p *parser) fields(of Fetch, path string, pointed bool) (Fetch, error) {
	t := p.typed.t
	for more := true; more; pointed = true {
		from := int64(0)
		if pointed {
			pointer, ok := t.(*btf.Pointer)
			if !ok {
				return nil, p.failHere(0, CodeNoPtrStrct)
			}
			t = types.Strip(pointer.Target)
		} else if d, ok := of.(Deref); ok {
			of, from = d.Of, d.Offset
		}
		var ok bool
		var m types.Field
		offset := uint64(0)
		for arrow := false; more && !arrow; {
			name, rest, isArrow, err := p.cutField(path)
			if err != nil {
				return nil, err
			}
			var found bool
			m, found, ok = types.Member(t, name)
			switch {
			case !ok:
				return nil, p.failHere(0, CodeBadBTFTID)
			case !found:
				return nil, p.failHere(0, CodeNoBTFField)
			}
			offset += m.Offset
			t = types.Strip(m.Type)
			if more = len(name) < len(path); more {
				p.offset += len(path) - len(rest)
			}
			path, arrow = rest, isArrow
		}
		if !p.op() {
			return nil, p.failHere(0, CodeTooManyOps)
		}
		of = Deref{Offset: from + int64(offset/8), Of: of}
		p.typed = typed{t: t, bit: offset % 8, width: m.Width}
	}
	return of, nil
}

// fitType gives an argument without a type the one from the guest's types, and treats
// a pointer to characters, where text is wanted, as the address of the text.
func (p *parser) fitType(a *Arg, typeText string, given bool) error {
	switch t := p.typed.t; {
	case t == nil:
	case !given:
		a.Type = scalarType(t)
		if p.typed.width > 0 || p.typed.bit > 0 {
			return p.bits(a)
		}
	case !strings.Contains(typeText, "string") || types.IsCharArray(t):
	case !types.IsCharPointer(t):
		return p.failHere(0, CodeBadType4Str)
	case !p.op():
		return p.failHere(0, CodeTooManyOps)
	default:
		a.Fetch = Deref{User: typeText[0] == 'u', Of: a.Fetch}
	}
	return nil
}

// scalarType returns the language's type for a guest's type
// (fetch_type_from_btf_type), except that an enumeration has its size.
func scalarType(t btf.Type) Type {
	switch t := t.(type) {
	case *btf.Enum:
		if t.Size == 1 || t.Size == 2 || t.Size == 4 || t.Size == 8 {
			return Type{Format: Signed, Size: int(t.Size)}
		}
	case *btf.Int:
		if t.Size == 1 || t.Size == 2 || t.Size == 4 || t.Size == 8 {
			if t.Encoding == btf.Signed {
				return Type{Format: Signed, Size: int(t.Size)}
			}
			return Type{Format: Unsigned, Size: int(t.Size)}
		}
	}
	return defaultType
}

// bits makes a the bit field that it is in memory. It reads the number that the
// member is declared as, aligned to its size, or 8 bytes if the field extends beyond
// that.
func (p *parser) bits(a *Arg) error {
	d, ok := a.Fetch.(Deref)
	if !ok || !p.op() {
		return p.failHere(0, CodeTooManyOps)
	}
	at, width := d.Offset*8+int64(p.typed.bit), int64(p.typed.width)
	if width == 0 {
		width = int64(8 * a.Type.Size)
	}
	size := int64(a.Type.Size)
	d.Offset = at / 8 &^ (size - 1)
	if at-8*d.Offset+width > 8*size {
		size, d.Offset = 8, at/8
	}
	if at-8*d.Offset+width > 64 {
		e := p.failHere(0, CodeBadBitfield)
		e.Detail = "it spans more than 8 bytes"
		return e
	}
	a.Fetch, a.Type.Size, a.Type.Width, a.Type.Offset = d, int(size), int(width), int(at-8*d.Offset)
	return nil
}
