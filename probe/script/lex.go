package script

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// tokenKind says what a token is.
type tokenKind uint8

const (
	tokEOF    tokenKind = iota
	tokIdent            // a name or keyword
	tokVar              // $name
	tokMap              // @name, or @
	tokParam            // $1, or $#
	tokInt              // a number, or a duration in nanoseconds
	tokString           // text in quotes, with its escapes undone
	tokOp               // an operator or a bracket
)

// token is one word of the source.
type token struct {
	kind tokenKind
	Span
	text string // name, operator, or the string's bytes
	num  uint64
}

// lexer makes tokens of the source.
type lexer struct {
	src *source
	pos int
}

// operators, the longest first.
var operators = []string{
	"<<=", ">>=", "...", "->", "++", "--", "<<", ">>", "<=", ">=", "==", "!=", "&&", "||", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "..", "?:",
	"+", "-", "*", "/", "%", "&", "|", "^", "~", "!", "<", ">", "=", "?", ":", ";", ",", ".", "(", ")", "[", "]", "{", "}",
}

func isLetter(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }
func isDigit(c byte) bool  { return c >= '0' && c <= '9' }

// skip skips blanks and comments.
func (l *lexer) skip() error {
	for l.pos < len(l.src.text) {
		rest := l.src.text[l.pos:]
		switch {
		case strings.ContainsRune(" \t\r\n", rune(rest[0])):
			l.pos++
		case strings.HasPrefix(rest, "\\\n"), strings.HasPrefix(rest, "\\\r\n"): // a line that continues
			l.pos++
		case strings.HasPrefix(rest, "//"), l.pos == l.src.from && strings.HasPrefix(rest, "#!"):
			if i := strings.IndexByte(rest, '\n'); i >= 0 {
				l.pos += i + 1
			} else {
				l.pos = len(l.src.text)
			}
		case strings.HasPrefix(rest, "/*"):
			i := strings.Index(rest[2:], "*/")
			if i < 0 {
				return l.src.errorAt(Span{From: l.pos, To: l.pos + 2}, "comment without end")
			}
			l.pos += i + 4
		default:
			return nil
		}
	}
	return nil
}

// word returns the end of the name that begins at i.
func (l *lexer) word(i int) int {
	for i < len(l.src.text) && (isLetter(l.src.text[i]) || isDigit(l.src.text[i])) {
		i++
	}
	return i
}

// next returns the next token.
func (l *lexer) next() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	at := l.pos
	if at >= len(l.src.text) {
		return token{kind: tokEOF, Span: Span{From: at, To: at}}, nil
	}
	take := func(kind tokenKind, end int) token {
		l.pos = end
		return token{kind: kind, Span: Span{From: at, To: end}, text: l.src.text[at:end]}
	}
	switch c := l.src.text[at]; {
	case isLetter(c):
		return take(tokIdent, l.word(at)), nil
	case isDigit(c):
		return l.number()
	case c == '"':
		return l.readString()
	case c == '@':
		return take(tokMap, l.word(at+1)), nil
	case c == '$':
		end := l.word(at + 1)
		if end == at+1 && end < len(l.src.text) && l.src.text[end] == '#' {
			return take(tokParam, end+1), nil
		}
		if end == at+1 {
			return token{}, l.src.errorAt(Span{From: at, To: end}, "$ without a name")
		}
		if isDigit(l.src.text[at+1]) {
			t := take(tokParam, end)
			n, err := strconv.ParseUint(t.text[1:], 10, 16)
			if err != nil || n == 0 {
				return token{}, l.src.errorAt(t.Span, "%s is no positional parameter", t.text)
			}
			t.num = n
			return t, nil
		}
		return take(tokVar, end), nil
	}
	for _, op := range operators {
		if strings.HasPrefix(l.src.text[at:], op) {
			return take(tokOp, at+len(op)), nil
		}
	}
	r, n := utf8.DecodeRuneInString(l.src.text[at:])
	if r == '#' { // of a preprocessor directive, which is not part of an expression
		l.pos = at + n
		return token{kind: tokOp, Span: Span{From: at, To: at + n}, text: "#"}, nil
	}
	return token{}, l.src.errorAt(Span{From: at, To: at + n}, "invalid character %q", r)
}

// units are the units of durations, in nanoseconds.
var units = map[string]uint64{"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "m": 60e9, "h": 3600e9, "d": 86400e9}

// number reads a number: decimal, 0x, octal with 0, with _ between its digits, with an
// exponent, with a suffix as C's, or a unit of time.
func (l *lexer) number() (token, error) {
	at := l.pos
	end := l.word(at)
	l.pos = end
	t := token{kind: tokInt, Span: Span{From: at, To: end}, text: l.src.text[at:end]}
	var ok bool
	t.num, ok = parseNumber(t.text)
	if !ok {
		return token{}, l.src.errorAt(t.Span, "invalid number %q", t.text)
	}
	return t, nil
}

// suffixes are the suffixes of numbers in C.
var suffixes = []string{"u", "l", "ll", "ul", "ull", "lu", "llu"}

// parseNumber is the value of a number's text.
func parseNumber(text string) (uint64, bool) {
	if strings.HasSuffix(text, "_") {
		return 0, false
	}
	digits := strings.ReplaceAll(text, "_", "")
	if n, err := strconv.ParseUint(digits, 0, 64); err == nil && !strings.HasPrefix(digits, "0b") && !strings.HasPrefix(digits, "0o") {
		return n, true
	}
	if strings.HasPrefix(digits, "0x") {
		n, err := strconv.ParseUint(strings.TrimRight(digits, "uUlL"), 0, 64)
		return n, err == nil
	}
	i := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
	if i <= 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits[:i], 0, 64)
	if err != nil {
		return 0, false
	}
	suffix := digits[i:]
	if f, ok := units[suffix]; ok {
		return n * f, n == 0 || n*f/n == f
	}
	if slices.Contains(suffixes, strings.ToLower(suffix)) {
		return n, true
	}
	if exp, ok := strings.CutPrefix(suffix, "e"); ok {
		e, err := strconv.ParseUint(exp, 10, 5)
		for ; err == nil && e > 0; e-- {
			if n*10/10 != n {
				return 0, false
			}
			n *= 10
		}
		return n, err == nil && e == 0
	}
	return 0, false
}

// readString reads a string.
func (l *lexer) readString() (token, error) {
	at := l.pos
	var b strings.Builder
	for i := at + 1; i < len(l.src.text); {
		c := l.src.text[i]
		if c == '"' {
			l.pos = i + 1
			return token{kind: tokString, Span: Span{From: at, To: i + 1}, text: b.String()}, nil
		}
		if c == '\n' {
			break
		}
		if c != '\\' || i+1 == len(l.src.text) {
			b.WriteByte(c)
			i++
			continue
		}
		v, n, ok := escape(l.src.text[i+1:])
		if !ok {
			return token{}, l.src.errorAt(Span{From: i, To: i + 2}, "invalid escape \\%c", l.src.text[i+1])
		}
		b.WriteByte(v)
		i += 1 + n
	}
	return token{}, l.src.errorAt(Span{From: at, To: at + 1}, "string without end")
}

// escape reads the n bytes after a backslash.
func escape(s string) (v byte, n int, ok bool) {
	if i := strings.IndexByte(`ntr\"abfve`, s[0]); i >= 0 {
		return "\n\t\r\\\"\a\b\f\v\x1b"[i], 1, true
	}
	base, from, most := 8, 0, 3
	if s[0] == 'x' {
		base, from, most = 16, 1, 2
	}
	for n = from; n < len(s) && n < from+most; n++ {
		if _, err := strconv.ParseUint(s[n:n+1], base, 8); err != nil {
			break
		}
	}
	u, err := strconv.ParseUint(s[from:n], base, 8)
	return byte(u), n, err == nil
}

// inFile is an attach point at a line of a file, whose name may have slashes.
var inFile = regexp.MustCompile(`^[a-z]+:[\w+-][\w.+-]*(/[\w.+-]+)*\.[A-Za-z]+:\d+`)

// place reads the text of an attach point, which ends at a blank, a comma, a brace,
// or the slash of a predicate.
func (l *lexer) place() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	at := l.pos
	i := at + len(inFile.FindString(l.src.text[at:]))
	path := false
	for ; i < len(l.src.text); i++ {
		c := l.src.text[i]
		if c == '"' { // a quoted part ends with the quote
			for i++; i < len(l.src.text) && l.src.text[i] != '"' && l.src.text[i] != '\n'; i++ {
				if l.src.text[i] == '\\' {
					i++
				}
			}
			if i >= len(l.src.text) || l.src.text[i] != '"' {
				return token{}, l.src.errorAt(Span{From: at, To: min(i, len(l.src.text))}, "string without end")
			}
			continue
		}
		if c == ':' {
			switch l.src.text[at:i] {
			case "uprobe", "u", "uretprobe", "ur", "usdt", "U":
				path = true
			default: // a file, where only a kernel's function may be
				path = path || strings.HasPrefix(l.src.text[i+1:], "/")
			}
		}
		if strings.IndexByte(" \t\r\n,{", c) >= 0 || c == '/' && !path || c == ';' {
			break
		}
	}
	l.pos = i
	return token{kind: tokIdent, Span: Span{From: at, To: i}, text: l.src.text[at:i]}, nil
}
