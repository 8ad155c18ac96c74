package script

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// namedArgs are the command line arguments for getopt(): --NAME and --NAME=VALUE.
type namedArgs struct {
	given []namedArg
	asked []string // names used, in the order of the script
	uses  map[string]namedUse
}

type namedArg struct {
	name, value string
	has         bool // it has a value
}

// namedUse is what a script says about a named argument.
type namedUse struct {
	initial, description string // as written; "" without a description
}

var callsGetopt = regexp.MustCompile(`\bgetopt\s*\(`)

// takeNamed takes the named arguments out of the arguments of a script that calls
// getopt; the others are $1 and so on. In a script without getopt all arguments are
// positional.
func takeNamed(text string, args []string) (named namedArgs, others []string) {
	if !callsGetopt.MatchString(text) {
		return named, args
	}
	for _, a := range args {
		name, ok := strings.CutPrefix(a, "--")
		if !ok || name == "" {
			others = append(others, a)
			continue
		}
		name, value, has := strings.Cut(name, "=")
		named.given = append(named.given, namedArg{name, value, has})
	}
	return named, others
}

// getopt replaces getopt(NAME [, DEFAULT] [, DESCRIPTION]) by the value on the
// command line, as bpftrace does: a constant of the default's type, and without a
// default true or false.
func (p *parser) getopt(e *expr) (*expr, error) {
	if n := len(e.args); n < 1 || n > 3 {
		return nil, p.errorAt(e.Span, "getopt() takes a name, a default and a description (%d provided)", n)
	}
	name := e.args[0]
	if name.kind != exString {
		return nil, p.errorAt(name.Span, "getopt() expects a string literal as its first argument")
	}
	if !slices.Contains(p.named.asked, name.text) {
		p.named.asked = append(p.named.asked, name.text)
	}
	if len(e.args) == 3 && e.args[2].kind != exString {
		return nil, p.errorAt(e.args[2].Span, "getopt() expects a string literal as its description")
	}
	var value *namedArg
	for i := range p.named.given {
		if g := &p.named.given[i]; g.name == name.text {
			value = g
		}
	}
	wrong := func(want string) (*expr, error) {
		return nil, p.errorAt(e.Span, "--%s: want %s (%q provided)", name.text, want, value.value)
	}
	truth := func(is bool) *expr {
		var n uint64
		if is {
			n = 1
		}
		return &expr{kind: exCast, Span: e.Span, cast: &typeName{c: cNumbers["bool"]}, args: []*expr{{kind: exInt, Span: e.Span, num: n}}}
	}
	def := truth(false)
	if len(e.args) > 1 {
		def = e.args[1]
	}
	if err := p.named.noteUse(p, e, def); err != nil {
		return nil, err
	}
	_, isNumber := p.constant(def)
	switch {
	case def.kind == exString && value == nil, isNumber && value == nil:
		return def, nil
	case def.kind == exString:
		return &expr{kind: exString, Span: e.Span, text: value.value}, nil
	case isNumber:
		n, err := strconv.ParseInt(value.value, 0, 64)
		if u, wide := strconv.ParseUint(value.value, 0, 64); wide == nil && err != nil {
			return &expr{kind: exInt, Span: e.Span, num: u, text: value.value}, nil
		}
		if err != nil {
			return wrong("a number")
		}
		if n >= 0 {
			return &expr{kind: exInt, Span: e.Span, num: uint64(n), text: value.value}, nil
		}
		return &expr{kind: exUnary, Span: e.Span, name: "-", args: []*expr{{kind: exInt, Span: e.Span, num: uint64(-n)}}}, nil
	case def.kind != exCast || len(def.args) != 1 || def.args[0].kind != exInt:
		return nil, p.errorAt(def.Span, "getopt() expects a literal as its default: a number, a string, true or false")
	case value == nil:
		return def, nil
	case !value.has || strings.EqualFold(value.value, "true") || value.value == "1":
		return truth(true), nil
	case strings.EqualFold(value.value, "false") || value.value == "0":
		return truth(false), nil
	}
	return wrong("true or false")
}

// noteUse rejects a call of getopt with another default, or another description, than an earlier one for the same name.
func (named *namedArgs) noteUse(p *parser, e, def *expr) error {
	name := e.args[0].text
	use := namedUse{initial: "text " + def.text}
	n, isNumber := p.constant(def)
	switch {
	case isNumber:
		use.initial = strconv.FormatInt(n, 10)
	case def.kind == exCast && len(def.args) == 1:
		use.initial = strconv.FormatBool(def.args[0].num != 0)
	}
	if len(e.args) == 3 {
		use.description = e.args[2].text
	}
	before, again := named.uses[name]
	switch {
	case again && before.initial != use.initial:
		return p.errorAt(e.Span, "Command line option '%s' needs to have the same default value in all places it is used. Previous default value: %s", name, strings.TrimPrefix(before.initial, "text "))
	case before.description != "" && use.description != "" && before.description != use.description:
		return p.errorAt(e.Span, "Command line option '%s' must have the same description in all places it's used", name).hint("call it in a macro")
	case use.description == "":
		use.description = before.description
	}
	if named.uses == nil {
		named.uses = map[string]namedUse{}
	}
	named.uses[name] = use
	return nil
}

// checkNamed rejects arguments that the script does not use.
func (p *parser) checkNamed() error {
	for _, g := range p.named.given {
		if slices.Contains(p.named.asked, g.name) {
			continue
		}
		err := p.errorAt(Span{From: 0, To: 1}, "--%s: the script has no such option", g.name)
		if len(p.named.asked) == 0 {
			return err
		}
		return err.hint("it has --%s", strings.Join(p.named.asked, ", --"))
	}
	return nil
}
