package event

import (
	"fmt"
	"slices"
	"strings"
)

// maxOps is the length of the kernel's fetch program (FETCH_INSN_MAX); its last
// operation is the end mark.
const maxOps = 16

// reservedNames are the fields of every record.
var reservedNames = []string{
	"common_type", "common_flags", "common_preempt_count", "common_pid", "common_tgid",
	"__probe_ip", "__probe_ret_ip", "__probe_func",
}

// args reads the arguments.
func (p *parser) args() error {
	args, err := p.expand(p.tokens[2:])
	if err != nil {
		return err
	}
	return p.readArgs(p.expandPaths(args))
}

// readArgs reads arguments without expanding them, and appends them to the definition's.
func (p *parser) readArgs(args []string) error {
	if len(p.def.Args)+len(args) > MaxArgs {
		return p.fail(2, 0, CodeTooManyArgs)
	}
	fixed := 0 // bytes of a record's fixed part, by the kernel's sizes
	for _, a := range p.def.Args {
		fixed += a.Type.Size * max(1, a.Type.Count)
	}
	for _, text := range args {
		i := len(p.def.Args)
		p.token, p.offset, p.ops, p.typed = i+2, 0, 0, typed{}
		a, err := p.arg(i, text)
		if err != nil {
			return err
		}
		fixed += a.Type.Size * max(1, a.Type.Count)
		if fixed > maxFixed {
			return p.failHere(0, CodeEventTooBig)
		}
		p.def.Args = append(p.def.Args, a)
	}
	return nil
}

// failHere returns the error for the current position plus delta.
func (p *parser) failHere(delta int, code Code) *SyntaxError {
	return p.fail(p.token, p.offset+delta, code)
}

// arg reads the argument with index i.
func (p *parser) arg(i int, text string) (Arg, error) {
	a := Arg{Name: fmt.Sprintf("arg%d", i+1), Text: text}
	if name, body, ok := strings.Cut(text, "="); ok {
		switch {
		case len(name) > maxArgName:
			return a, p.failHere(0, CodeArgNameTooLong)
		case name == "":
			return a, p.failHere(0, CodeNoArgName)
		}
		a.Name, a.Text = name, body
	} else if name, _, _ := strings.Cut(text, ":"); (p.scope.Types != nil || p.scope.Variables != nil) && isIdentifier(name) {
		a.Name = name // the name of a parameter or a variable
	}
	if !isIdentifier(a.Name) {
		return a, p.failHere(0, CodeBadArgName)
	}
	if slices.Contains(reservedNames, a.Name) || p.def.Kind == KindWatch && slices.Contains(watchNames, a.Name) ||
		slices.ContainsFunc(p.def.Args, func(b Arg) bool { return b.Name == a.Name }) {
		return a, p.failHere(0, CodeUsedArgName)
	}
	p.offset = len(text) - len(a.Text)
	switch {
	case len(a.Text) > maxArgBody:
		return a, p.failHere(0, CodeArgTooLong)
	case a.Text == "":
		return a, p.failHere(0, CodeNoArgBody)
	}

	fetch, typeText, typed := strings.Cut(a.Text, ":")
	typeAt := 0
	if typed {
		typeAt = len(fetch) + 1
	}
	var err error
	if typeText, err = p.array(typeText, typeAt, &a.Type.Count); err != nil {
		return a, err
	}
	if err = p.argType(fetch, typeText, typed, typeAt, &a.Type); err != nil {
		return a, err
	}
	if a.Fetch, err = p.fetch(fetch); err != nil {
		return a, err
	}
	if err := p.fitType(&a, typeText, typed); err != nil {
		return a, err
	}
	return a, p.store(a.Fetch, &a.Type, typeText, typeAt)
}

// array removes [N] from a type.
func (p *parser) array(text string, at int, count *int) (string, error) {
	name, rest, ok := strings.Cut(text, "[")
	if !ok {
		return text, nil
	}
	at += len(name) + 1
	number, suffix, ok := strings.Cut(rest, "]")
	if !ok {
		return "", p.failHere(at+len(rest), CodeArrayNoClose)
	}
	if suffix != "" {
		return "", p.failHere(at+len(number)+1, CodeBadArraySuffix)
	}
	n, ok := parseUint(number)
	switch {
	case !ok || n == 0 || n > 1<<32-1:
		return "", p.failHere(at, CodeBadArrayNum)
	case n > maxArray:
		return "", p.failHere(at, CodeArrayTooBig)
	}
	*count = int(n)
	return name, nil
}

// argType determines the type, keeping the count that t already has.
func (p *parser) argType(fetch, text string, typed bool, at int, t *Type) error {
	count := t.Count
	switch {
	case fetch == "$comm" || fetch == "$COMM" || strings.HasPrefix(fetch, `\"`):
		if count > 0 || typed && text != "string" {
			return p.failHere(at, CodeNeedStringType)
		}
		*t = stringType
	case !typed:
		*t = defaultType
	case text == "%pd" || text == "%pD":
		e := p.failHere(at, CodeNoProfile)
		e.Detail = "the guest's dentry and file structures are not known"
		return e
	default:
		found, ok := parseType(text)
		if !ok {
			e := p.failHere(at, CodeBadType)
			e.Detail = typeAdvice(text)
			return e
		}
		*t = found
	}
	t.Count = count
	return nil
}

// store checks that the result of f can be stored as t. As in the kernel, carets
// count from the beginning of the body of an outermost dereference
// (docs/definitions.md, "Carets").
func (p *parser) store(f Fetch, t *Type, typeText string, at int) error {
	deref, memory := f.(Deref)
	if t.isString() {
		if t.Format == SymStr {
			switch f.(type) {
			case Register, StackSlot, RetVal, FuncArg, Sum:
			case Deref:
				if deref.User {
					return p.failHere(at, CodeBadSymstring)
				}
			default:
				return p.failHere(at, CodeBadSymstring)
			}
		} else if !memory {
			switch f.(type) {
			case Immediate, Comm, Literal:
			default:
				return p.failHere(at, CodeBadString)
			}
		}
		// Only a single string in memory replaces the last load; others need an
		// operation of their own.
		if !memory || t.Format == SymStr || t.Count > 0 {
			if !p.op() {
				return p.failHere(0, CodeTooManyOps)
			}
		}
	} else if !memory && !p.op() {
		return p.failHere(0, CodeTooManyOps)
	}
	if t.Format == Bits && (!p.op() || !parseBits(typeText, t)) {
		return p.failHere(at, CodeBadBitfield)
	}
	if t.Count > 0 {
		if t.Format == SymStr || !memory && t.Format != String && t.Format != UString {
			return p.failHere(at, CodeBadString)
		}
		if !p.op() {
			return p.failHere(0, CodeTooManyOps)
		}
	}
	return nil
}

// op takes the next operation of the kernel's program; it returns false if only its
// end mark is left.
func (p *parser) op() bool {
	p.ops++
	return p.ops < maxOps-1
}
