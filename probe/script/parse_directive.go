package script

import "strings"

// hasTypes is the name that scripts ask for whether a guest's types are known.
const hasTypes = "BPFTRACE_HAVE_BTF"

// directive reads a line for C's preprocessor, in front of probes and behind them: names for values,
// and what depends on names.
func (p *parser) directive(at int) error {
	line, word, rest := p.directiveLine(at)
	end := at + len(line)
	sp := Span{at, at + len(strings.TrimRight(line, " \t\r"))}
	p.pos = end
	switch word {
	case "ifdef", "ifndef", "if":
		yes, ok := p.holds(word, rest)
		if !ok {
			return p.at(sp, "#%s of more than one name is not supported", word).hint("write #ifdef NAME, #ifndef NAME or #if defined(NAME)")
		}
		p.conditions = append(p.conditions, sp)
		if !yes {
			return p.skipBranch(sp)
		}
		return nil
	case "else", "endif", "elif":
		if len(p.conditions) == 0 {
			return p.at(sp, "#%s without #if", word)
		}
		if word == "endif" {
			p.conditions = p.conditions[:len(p.conditions)-1]
			return nil
		}
		return p.skipBranch(sp) // the branch before has been read
	case "define":
		return p.defineValue(sp, end-len(rest), rest)
	}
	if word == "include" && p.types != nil {
		return nil // what the headers of C have of types the guest has, too
	}
	err := p.at(sp, "#%s is not supported", word)
	if word == "include" {
		return err.hint("the guest's types are not known: define what is needed in the script, as struct NAME { int a; }")
	}
	return err.hint("lines of C's preprocessor are for the headers of C")
}

// directiveLine returns a line, its word, and what stands behind that.
func (p *parser) directiveLine(at int) (line, word, rest string) {
	line, _, _ = strings.Cut(p.text[at:], "\n")
	body := strings.TrimLeft(line[1:], " \t")
	n := 0
	for n < len(body) && isLetter(body[n]) {
		n++
	}
	return line, body[:n], body[n:]
}

// holds reports whether a condition does; ok is false for one that is not known here.
func (p *parser) holds(word, rest string) (yes, ok bool) {
	rest, _, _ = strings.Cut(rest, "//")
	rest, _, _ = strings.Cut(rest, "/*")
	name := strings.TrimSpace(rest)
	not := word == "ifndef"
	if word == "if" {
		if name == "0" || name == "1" {
			return name == "1", true
		}
		var is bool
		if name, not = strings.CutPrefix(name, "!"); strings.HasPrefix(name, "defined") {
			name, is = strings.TrimPrefix(name, "defined"), true
		}
		if !is {
			return false, false
		}
		name = strings.Trim(strings.TrimSpace(name), "()")
	}
	for i := range len(name) {
		if !isLetter(name[i]) && !isDigit(name[i]) {
			return false, false
		}
	}
	defined := p.macros[name] != nil || name == hasTypes && p.types != nil
	return defined != not, name != ""
}

// skipBranch goes on behind the #else or #endif of the condition.
func (p *parser) skipBranch(sp Span) error {
	for depth := 0; p.pos < len(p.text); {
		at := p.pos
		line, _, _ := strings.Cut(p.text[at:], "\n")
		p.pos = min(at+len(line)+1, len(p.text))
		indent := len(line) - len(strings.TrimLeft(line, " \t"))
		if !strings.HasPrefix(line[indent:], "#") {
			continue
		}
		switch _, word, rest := p.directiveLine(at + indent); word {
		case "if", "ifdef", "ifndef":
			depth++
		case "endif":
			if depth--; depth < 0 {
				p.conditions = p.conditions[:len(p.conditions)-1]
				return nil
			}
		case "else":
			if depth == 0 && !p.isElse(sp) {
				return nil
			}
		case "elif":
			if depth == 0 && !p.isElse(sp) {
				return p.at(Span{at, at + len(line)}, "#elif%s is not supported", rest).hint("write #else, and #if behind it")
			}
		}
	}
	return p.at(sp, "#if without #endif")
}

// isElse reports whether a line ends a branch that was read.
func (p *parser) isElse(sp Span) bool {
	_, word, _ := p.directiveLine(sp.From)
	return word == "else" || word == "elif"
}

// defineValue makes a macro of #define NAME EXPRESSION.
func (p *parser) defineValue(sp Span, at int, rest string) error {
	trimmed := strings.TrimLeft(rest, " \t")
	from := at + len(rest) - len(trimmed)
	to := p.word(from)
	name := p.text[from:to]
	switch {
	case name == "" || isDigit(name[0]):
		return p.at(sp, "#define without a name")
	case strings.HasPrefix(p.text[to:], "("):
		return p.at(sp, "#define with parameters is not supported").hint("write macro %s(x) { x }", name)
	case p.macros[name] != nil:
		return p.at(sp, "redefinition of '%s'", name)
	}
	m := &macro{Span: Span{from, to}, name: name, block: &expr{kind: exBlock, Span: sp}}
	p.macros[name] = m
	// The line is all that there is of it.
	all, end := p.src, p.pos
	p.src, p.pos, p.inMacro = &source{p.name, p.text[:end]}, to, true
	defer func() { p.src, p.pos, p.inMacro = all, end, false }()
	if err := p.advance(); err != nil || p.tok.kind == tokEOF {
		return err
	}
	value, err := p.expr()
	if err == nil && p.tok.kind != tokEOF {
		err = p.at(p.tok.Span, "#define of more than one expression is not supported")
	}
	m.block.args = []*expr{value}
	return err
}
