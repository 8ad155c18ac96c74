package event

import (
	"slices"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
)

// fetch reads a fetch expression, which begins at p.offset. On return p.offset is the
// beginning of the body of the outermost dereference, if any: the kernel counts later
// carets from there.
func (p *parser) fetch(s string) (Fetch, error) {
	if s == "" {
		e := p.failHere(0, CodeBadFetchArg)
		e.Detail = "it is empty: in a shell, a definition with $ is written in single quotes"
		return nil, e
	}
	switch c := s[0]; {
	case c == '$':
		return p.variable(s[1:])
	case c == '%':
		r, ok := regByName(s[1:])
		if !ok {
			e := p.failHere(0, CodeBadRegName)
			if e.Detail = "registers have the names of struct pt_regs, as %di or %rdi"; s != "%" {
				if near := guest.Nearest(s[1:], slices.Values(x86.PtNames[:])); near != "" {
					e.Detail = "did you mean %" + near + "?"
				}
			}
			return nil, e
		}
		return Register{r}, nil
	case c == '@':
		return p.memory(s[1:])
	case c == '+' || c == '-':
		return p.deref(s)
	case c == '\\':
		return p.parseImmediate(s[1:])
	case isAlpha(c) || c == '_':
		return p.parameter(s)
	}
	return nil, p.failHere(0, CodeBadFetchArg)
}

// variable reads the text after a $.
func (p *parser) variable(s string) (Fetch, error) {
	if rest, ok := strings.CutPrefix(s, "retval"); ok {
		switch {
		case p.def.Kind != KindReturn:
			e := p.failHere(0, CodeRetvalOnProbe)
			e.Detail = "a return probe is defined by r"
			return nil, e
		case p.scope.Types != nil || strings.HasPrefix(rest, "-") || strings.HasPrefix(rest, "."):
			return p.parameter("$" + s)
		case rest == "":
			return RetVal{}, nil
		}
		return nil, p.failHere(0, CodeBadVar)
	}
	if rest, ok := strings.CutPrefix(s, "stack"); ok {
		if rest == "" {
			return StackPointer{}, nil
		}
		n, tail, ok := leadingDigits(rest, 10)
		switch {
		case !ok || tail != "":
			return nil, p.failHere(0, CodeBadVar)
		case n > maxStackSlot:
			return nil, p.failHere(0, CodeBadStackNum)
		}
		return StackSlot{int(n)}, nil
	}
	if s == "comm" || s == "COMM" {
		return Comm{}, nil
	}
	if rest, ok := strings.CutPrefix(s, "arg"); ok {
		n, tail, ok := leadingDigits(rest, 10)
		switch {
		case !ok || tail != "":
			return nil, p.failHere(0, CodeBadVar)
		case n == 0 || n > maxStackSlot:
			e := p.failHere(0, CodeBadArgNum)
			if n == 0 {
				e.Detail = "the first is $arg1"
			}
			return nil, e
		case !p.entry:
			return nil, p.failHere(0, CodeNofentryArgs)
		}
		if p.def.Kind == KindTracepoint {
			n++ // the tracepoint's follow the function's first
		}
		return FuncArg{int(n)}, nil
	}
	e := p.failHere(0, CodeBadVar)
	e.Detail = "there are $arg1, $retval, $stack, $stack0 and so on, and $comm"
	return nil, e
}

// memory reads the text after an @.
func (p *parser) memory(s string) (Fetch, error) {
	if s != "" && isDigit(s[0]) {
		addr, ok := parseUint(s)
		if !ok {
			return nil, p.failHere(0, CodeBadMemAddr)
		}
		if !p.op() {
			return nil, p.failHere(0, CodeTooManyOps)
		}
		return Deref{Of: Immediate{addr}}, nil
	}
	if strings.HasPrefix(s, "+") {
		return nil, p.failHere(0, CodeFileOnKprobe)
	}
	// One operation for the name, one for the address, one for the load.
	if name := p.op(); !name || !p.op() {
		return nil, p.failHere(0, CodeTooManyOps)
	}
	name, offset, ok := splitOffset(s)
	if !ok {
		// No symbol has such a name: Compile reports it, as registration does in the
		// kernel.
		name, offset = s, 0
	}
	return Deref{Of: SymbolAddr{name, offset}}, nil
}

// deref reads +OFF(FETCH), -OFF(FETCH) and the u forms.
func (p *parser) deref(s string) (Fetch, error) {
	d := Deref{}
	rest := s
	if len(s) > 1 && s[1] == 'u' {
		d.User = true
		rest = s[:1] + s[2:]
	}
	text, body, ok := strings.Cut(rest, "(")
	if !ok {
		return nil, p.failHere(0, CodeDerefNeedBrace)
	}
	if d.Offset, ok = parseInt(strings.TrimPrefix(text, "+")); !ok {
		return nil, p.failHere(0, CodeBadDerefOffs)
	}
	// The u is not counted: the kernel's carets inside are one to the left.
	p.offset += len(text) + 1
	i := strings.LastIndexByte(body, ')')
	if i < 0 {
		return nil, p.failHere(len(body), CodeDerefOpenBrace)
	}
	inside := p.offset
	of, err := p.fetch(body[:i])
	if err != nil {
		return nil, err
	}
	p.offset = inside
	switch of.(type) {
	case Comm, Literal:
		return nil, p.failHere(0, CodeCommCantDeref)
	}
	if !p.op() {
		return nil, p.failHere(0, CodeTooManyOps)
	}
	if i+1 < len(body) {
		return nil, p.failHere(i+1, CodeDerefSuffix)
	}
	d.Of, p.typed = of, typed{}
	return d, nil
}

// parseImmediate reads the text after a backslash.
func (p *parser) parseImmediate(s string) (Fetch, error) {
	if text, ok := strings.CutPrefix(s, `"`); ok {
		value, ok := strings.CutSuffix(text, `"`)
		if !ok {
			return nil, p.failHere(2+len(text), CodeImmstrNoClose)
		}
		return Literal{value}, nil
	}
	if s == "" || !isDigit(s[0]) && s[0] != '-' && s[0] != '+' {
		return nil, p.failHere(1, CodeBadImm)
	}
	if isDigit(s[0]) {
		if v, ok := parseUint(s); ok {
			return Immediate{v}, nil
		}
		return nil, p.failHere(1, CodeBadImm)
	}
	v, ok := parseInt(s)
	if !ok {
		return nil, p.failHere(1, CodeBadImm)
	}
	return Immediate{uint64(v)}, nil
}
