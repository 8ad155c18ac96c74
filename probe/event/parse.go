package event

import (
	"cmp"
	"fmt"
	"math"
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// Parse reads one definition. Checks that need the names of an image (that a symbol
// exists and is unique, that a return probe is at a function's entry) are left to
// Compile. The error is a *SyntaxError.
func Parse(text string) (*Def, error) { return ParseIn(text, Scope{}) }

// ParseIn is Define for a text.
func ParseIn(text string, scope Scope) (*Def, error) { return ReadCommand(text).Define(scope) }

// Define parses a definition. With a guest it does every check, in the kernel's
// order, except that Compile looks up symbols in arguments, as the kernel does at
// registration. The error is a *SyntaxError.
func (c *Command) Define(scope Scope) (*Def, error) {
	src := c.line
	if err := src.check(); err != nil {
		return nil, err
	}
	if len(src.tokens) == 0 || !isKind(src.tokens[0][0]) {
		e := src.fail(0, 0, CodeBadCommand)
		e.Column = 0
		e.Detail = commandAdvice(src.tokens)
		return nil, e
	}
	if len(src.tokens) < 2 {
		e := src.fail(1, 0, CodeNoPlace)
		e.Detail = cmp.Or(scriptAdvice(src.tokens[0]), placeAdvice(src.tokens[0]))
		return nil, e
	}
	p := &parser{line: src, scope: scope, def: &Def{Group: defaultGroup, src: src}}
	for _, step := range []func() error{p.head, p.place, p.name, p.args} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return p.def, nil
}

// parser is the state of one ParseIn.
type parser struct {
	*line
	scope  Scope
	def    *Def
	entry  bool   // the place is, or without symbols may be, a function's entry
	fn     string // then its name, if there are symbols
	module string // and its module
	addr   guest.GVA

	token  int // the current argument, as a token
	offset int // offset in that token from which carets count
	ops    int // operations of the kernel's program for the current argument
	typed  typed
}

// head reads the letter and maxactive. If no digit follows the letter, the text
// before the colon is ignored, as in the kernel.
func (p *parser) head() error {
	head, _, _ := strings.Cut(p.tokens[0], ":")
	p.def.Kind = Kind(head[0])
	if p.def.Kind == KindTracepoint {
		p.def.Group = TracepointGroup
	}
	digits := head[1:]
	if digits == "" || !isDigit(digits[0]) {
		return nil
	}
	if p.def.Kind != KindReturn {
		return p.fail(0, 1, CodeBadMaxactType)
	}
	n, ok := parseUint(digits)
	switch {
	case !ok || n == 0 || n > math.MaxUint32 || len(digits) > maxName:
		return p.fail(0, 1, CodeBadMaxact)
	case n > MaxMaxActive:
		return p.fail(0, 1, CodeMaxactTooBig)
	}
	p.def.MaxActive = int(n)
	return nil
}

// place reads the place of the probe and, if there is an image, finds it there.
func (p *parser) place() error {
	text := p.tokens[1]
	switch p.def.Kind {
	case KindWatch:
		return p.watch(text)
	case KindTracepoint:
		return p.tracepoint(text)
	}
	if addr, ok := parseUint(text); ok {
		p.def.Place.Addr = guest.GVA(addr)
		return p.locate()
	}
	if inFile(text) {
		return p.file(text)
	}
	if strings.Contains(text, "/") && strings.Contains(text, ":") {
		return p.fail(1, 0, CodeFilePlace)
	}
	if i := strings.IndexByte(text, '%'); i >= 0 {
		if text[i:] != "%return" {
			return p.fail(1, i, CodeBadAddrSuffix)
		}
		p.def.Kind = KindReturn
		text = text[:i]
	}
	symbol, offset, ok := splitOffset(text)
	if _, number := parseUint(symbol); !ok || offset < 0 || offset > math.MaxUint32 || symbol == "" || number {
		return p.fail(1, 0, CodeBadProbeAddr)
	}
	p.def.Place.Symbol, p.def.Place.Offset = symbol, uint64(offset)
	if module, name, ok := strings.Cut(symbol, ":"); ok && !strings.Contains(symbol, "::") { // a C++ name
		if module == "" || name == "" {
			return p.fail(1, 0, CodeBadProbeAddr)
		}
		p.def.Place.Module, p.def.Place.Symbol = module, name
	}
	return p.locate()
}

// locate does the checks of the place that need an image.
func (p *parser) locate() error {
	p.entry = true
	if p.scope.Symbols == nil {
		return nil
	}
	addr, fn, err := p.def.locate(p.scope.Symbols)
	p.addr, p.entry, p.fn, p.module = addr, fn != "", fn, p.def.Place.Module
	if p.module == "" {
		p.module = ModuleOf(p.scope.Symbols, addr)
	}
	return err
}

// scriptProviders are the prefixes of places in a script, with the equivalent letter
// of definitions.
var scriptProviders = map[string]string{
	"kprobe": "p", "k": "p", "kretprobe": "r", "kr": "r", "uprobe": "p", "u": "p", "uretprobe": "r", "ur": "r", "fentry": "p", "fexit": "r", "kfunc": "p", "kretfunc": "r",
	"tracepoint": "t", "rawtracepoint": "t", "rt": "t", "watchpoint": "w",
}

// scriptAdvice suggests a replacement for a place of a script in a definition, "" for
// other tokens.
func scriptAdvice(token string) string {
	prefix, place, ok := strings.Cut(token, ":")
	letter := scriptProviders[prefix]
	if !ok || letter == "" || len(prefix) == 1 && isKind(prefix[0]) {
		return ""
	}
	return fmt.Sprintf("%s: is for scripts ('guestprobe run -e'); as a definition this is \"%s %s\"", prefix, letter, cmp.Or(place, "PLACE"))
}

// placeAdvice explains that p:NAME lacks a place, if NAME was meant as one; "" without a name.
func placeAdvice(token string) string {
	letter, name, ok := strings.Cut(token, ":")
	if !ok || name == "" {
		return ""
	}
	return fmt.Sprintf("%s is the probe's name: write \"%s %s\" or \"%s:NAME %s\"", name, letter, name, letter, name)
}

// commandAdvice explains the error in a command's first letter.
func commandAdvice(tokens []string) string {
	const have = "it begins with p, r, t or w"
	if len(tokens) == 0 || tokens[0] == "" {
		return have
	}
	other := map[byte]string{
		'f': "f is for function probes: write p for the entry, r for the return",
		'e': "e is for events on other events, which are not there: give the other event's probe a filter",
		's': "s is for synthetic events, which are not there",
	}
	if why := scriptAdvice(tokens[0]); why != "" {
		return have + "; " + why
	}
	letter := other[tokens[0][0]] != "" && len(strings.TrimLeft(tokens[0][1:], "0123456789")) == 0 // such as f10
	if symbol, _, ok := splitOffset(tokens[0]); ok && len(tokens[0]) > 1 && !letter && isIdentifier(symbol) {
		return fmt.Sprintf("%s; for the function %s write \"p %s\", for its return \"r %s\"", have, symbol, tokens[0], symbol)
	}
	if why, ok := other[tokens[0][0]]; ok && (len(tokens[0]) == 1 || tokens[0][1] == ':' || isDigit(tokens[0][1])) {
		return have + "; " + why
	}
	return have
}

// name reads the group and event name, or makes one.
func (p *parser) name() error {
	d := p.def
	_, name, given := strings.Cut(p.tokens[0], ":")
	at := len(p.tokens[0]) - len(name)
	if given {
		i := strings.IndexByte(name, '/')
		if i < 0 {
			i = strings.IndexByte(name, '.')
		}
		if i >= 0 {
			group := name[:i]
			switch {
			case group == "":
				return p.fail(0, at, CodeNoGroupName)
			case len(group) > maxName:
				return p.fail(0, at, CodeGroupTooLong)
			case !isGroupName(group):
				return p.fail(0, at, CodeBadGroupName)
			}
			d.Group, name = group, name[i+1:]
			at += i + 1
		}
		switch {
		case name == "" && i >= 0: // "p:group/ ..." names the group only
		case name == "":
			return p.fail(0, at, CodeNoEventName)
		case len(name) > maxName:
			return p.fail(0, at, CodeEventTooLong)
		case !isIdentifier(name):
			return p.fail(0, at, CodeBadEventName)
		}
	}
	d.Event, d.AutoName = name, name == ""
	if d.AutoName {
		d.Event = autoName(d.Kind, d.Place)
	}
	return nil
}
