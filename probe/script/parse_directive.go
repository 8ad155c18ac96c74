package script

import "strings"

// hasTypes is the name by which scripts test whether a guest's types are known.
const hasTypes = "BPFTRACE_HAVE_BTF"

// directive reads a line for C's preprocessor, before or after probes: definitions of
// names, and conditions on names.
func (p *parser) directive(at int) error {
	line, word, rest := p.directiveLine(at)
	end := at + len(line)
	sp := Span{From: at, To: at + len(strings.TrimRight(line, " \t\r"))}
	p.pos = end
	switch word {
	case "ifdef", "ifndef", "if":
		yes, ok := p.holds(word, rest)
		if !ok {
			return p.errorAt(sp, "#%s of more than one name is not supported", word).hint("write #ifdef NAME, #ifndef NAME or #if defined(NAME)")
		}
		p.conditions = append(p.conditions, sp)
		if !yes {
			return p.skipBranch(sp)
		}
		return nil
	case "else", "endif", "elif":
		if len(p.conditions) == 0 {
			return p.errorAt(sp, "#%s without #if", word)
		}
		if word == "endif" {
			p.conditions = p.conditions[:len(p.conditions)-1]
			return nil
		}
		return p.skipBranch(sp) // the branch before was read
	case "define":
		return p.defineValue(sp, end-len(rest), rest)
	}
	if word == "pragma" && strings.TrimSpace(rest) == "once" && p.importer.file > 0 {
		return nil // each file is imported once
	}
	if word == "include" && p.types != nil {
		return nil // the guest's types replace C's headers
	}
	err := p.errorAt(sp, "#%s is not supported", word)
	if word == "include" {
		return err.hint("the guest's types are not known: define the needed types in the script, as struct NAME { int a; }")
	}
	return err.hint("lines of C's preprocessor are for the headers of C")
}

// directiveLine returns a line, its word, and the rest.
func (p *parser) directiveLine(at int) (line, word, rest string) {
	line, _, _ = strings.Cut(p.text[at:], "\n")
	body := strings.TrimLeft(line[1:], " \t")
	n := 0
	for n < len(body) && isLetter(body[n]) {
		n++
	}
	return line, body[:n], body[n:]
}

// holds evaluates a condition; ok is false if it is not supported.
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
	defined := len(p.macros[name]) > 0 || name == hasTypes && p.types != nil
	return defined != not, name != ""
}

// skipBranch skips to after the #else or #endif of the condition.
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
				return p.errorAt(Span{From: at, To: at + len(line)}, "#elif%s is not supported", rest).hint("write #else, and #if after it")
			}
		}
	}
	return p.errorAt(sp, "#if without #endif")
}

// isElse reports whether a line ends a branch that was read.
func (p *parser) isElse(sp Span) bool {
	_, word, _ := p.directiveLine(sp.From)
	return word == "else" || word == "elif"
}

// defineValue makes a macro from #define NAME EXPRESSION.
func (p *parser) defineValue(sp Span, at int, rest string) error {
	trimmed := strings.TrimLeft(rest, " \t")
	from := at + len(rest) - len(trimmed)
	to := p.word(from)
	name := p.text[from:to]
	switch {
	case name == "" || isDigit(name[0]):
		return p.errorAt(sp, "#define without a name")
	case strings.HasPrefix(p.text[to:], "("):
		return p.errorAt(sp, "#define with parameters is not supported").hint("write macro %s(x) { x }", name)
	case len(p.macros[name]) > 0:
		return p.errorAt(sp, "redefinition of '%s'", name)
	}
	m := &macro{Span: Span{From: from, To: to}, name: name, define: true, block: &expr{kind: exBlock, Span: sp}}
	p.macros[name] = []*macro{m}
	// Parse only this line.
	all, end := p.src, p.pos
	p.src, p.pos, p.macro = &source{name: p.name, text: p.text[:end], from: p.src.from, parts: p.parts}, to, m
	defer func() { p.src, p.pos, p.macro = all, end, nil }()
	if err := p.advance(); err != nil || p.tok.kind == tokEOF {
		return err
	}
	value, err := p.expr()
	if err == nil && p.tok.kind != tokEOF {
		err = p.errorAt(p.tok.Span, "#define of more than one expression is not supported")
	}
	m.block.args = []*expr{value}
	return err
}
