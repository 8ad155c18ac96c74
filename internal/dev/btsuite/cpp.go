package btsuite

import (
	"regexp"
	"strconv"
	"strings"
)

// argument is an argument of a call in C++. isText is set, and text is its value, if it consists only of string literals.
type argument struct {
	text   string
	isText bool
	code   string // without its strings
}

// invocation is a call of a function whose name begins with test.
type invocation struct {
	name   string
	test   string   // the test that contains the call
	params []string // positional parameters that the test has added so far
	args   []argument
	line   int
}

// reader reads the calls in a C++ file. It understands only string literals, and
// variables that are assigned one.
type reader struct {
	text   string
	pos    int
	vars   map[string]string
	test   string
	params []string
	found  []invocation
}

var (
	word      = regexp.MustCompile(`^[A-Za-z_]\w*`)
	testName  = regexp.MustCompile(`^TEST(?:_F)?\(\s*\w+\s*,\s*(\w+)\s*\)`)
	addsParam = regexp.MustCompile(`^add_param\(\s*"((?:[^"\\]|\\.)*)"\s*\)`)
	rawBegin  = regexp.MustCompile(`^R"([^(\s]*)\(`)
)

// invocations returns the calls of test functions in a C++ file, in the order of the source.
func invocations(text string) []invocation {
	r := &reader{text: text, vars: map[string]string{}}
	for r.pos < len(text) {
		rest := text[r.pos:]
		switch {
		case r.skipBlank():
		case rest[0] == '"' || rest[0] == '\'' || rawBegin.MatchString(rest):
			r.literal()
		case word.MatchString(rest):
			r.word(rest)
		default:
			r.pos++
		}
	}
	return r.found
}

// skipBlank goes past a comment or blanks, and reports whether there was one.
func (r *reader) skipBlank() bool {
	rest := r.text[r.pos:]
	end := len(rest) - len(strings.TrimLeft(rest, " \t\r\n"))
	switch {
	case strings.HasPrefix(rest, "//"):
		end, _ = cutAt(rest, "\n")
	case strings.HasPrefix(rest, "/*"):
		end, _ = cutAt(rest, "*/")
	}
	r.pos += end
	return end > 0
}

// cutAt returns the offset after the first end in s.
func cutAt(s, end string) (int, bool) {
	i := strings.Index(s, end)
	if i < 0 {
		return len(s), false
	}
	return i + len(end), true
}

// literal reads a string or character literal.
func (r *reader) literal() string {
	rest := r.text[r.pos:]
	if m := rawBegin.FindStringSubmatch(rest); m != nil {
		body := rest[len(m[0]):]
		end, _ := cutAt(body, ")"+m[1]+`"`)
		r.pos += len(m[0]) + end
		return strings.TrimSuffix(body[:end], ")"+m[1]+`"`)
	}
	i := 1
	for i < len(rest) && rest[i] != rest[0] {
		if rest[i] == '\\' {
			i++
		}
		i++
	}
	i = min(i, len(rest)-1)
	r.pos += i + 1
	return unescape(rest[1:i])
}

var escapes = regexp.MustCompile(`\\(x[0-9a-fA-F]+|[0-7]{1,3}|.)`)

// unescape undoes the escapes of a literal of C++.
func unescape(s string) string {
	return escapes.ReplaceAllStringFunc(s, func(e string) string {
		if i := strings.IndexByte("ntrabfv0", e[1]); i >= 0 && len(e) == 2 {
			return "\n\t\r\a\b\f\v\x00"[i : i+1]
		}
		base, digits := 8, e[1:]
		if e[1] == 'x' {
			base, digits = 16, e[2:]
		}
		if n, err := strconv.ParseUint(digits, base, 8); err == nil {
			return string([]byte{byte(n)})
		}
		return e[1:]
	})
}

// word reads a name and the tokens that depend on it.
func (r *reader) word(rest string) {
	if m := testName.FindStringSubmatch(rest); m != nil {
		r.test, r.params = m[1], nil
		r.pos += len(m[0])
		return
	}
	if m := addsParam.FindStringSubmatch(rest); m != nil {
		r.params = append(r.params, unescape(m[1]))
		r.pos += len(m[0])
		return
	}
	name := word.FindString(rest)
	line := 1 + strings.Count(r.text[:r.pos], "\n")
	r.pos += len(name)
	after := strings.TrimLeft(r.text[r.pos:], " \t\n")
	switch {
	case r.test == "":
	case strings.HasPrefix(after, "=") && !strings.HasPrefix(after, "=="), strings.HasPrefix(after, "("):
		if strings.HasPrefix(after, "(") && strings.HasPrefix(name, "test") {
			r.pos += strings.IndexByte(r.text[r.pos:], '(') + 1
			r.found = append(r.found, invocation{name: name, test: r.test, params: append([]string(nil), r.params...), args: r.arguments(')'), line: line})
			return
		}
		if after[0] == '=' {
			r.pos += strings.IndexByte(r.text[r.pos:], '=') + 1
			at := r.pos
			args := r.arguments(';')
			if len(args) == 1 && args[0].isText {
				r.vars[name] = args[0].text
			} else {
				delete(r.vars, name)
				r.pos = at
			}
		}
	}
}

// arguments reads arguments up to end.
func (r *reader) arguments(end byte) (args []argument) {
	var a argument
	var code strings.Builder
	texts, depth := 0, 0
	flush := func() {
		a.code = strings.TrimSpace(code.String())
		if text, known := r.vars[a.code]; known && texts == 0 {
			a.text, texts, a.code = text, 1, ""
		}
		a.isText = texts > 0 && strings.Trim(a.code, "+ ") == ""
		if a.code != "" || texts > 0 {
			args = append(args, a)
		}
		a, texts = argument{}, 0
		code.Reset()
	}
	for r.pos < len(r.text) {
		c := r.text[r.pos]
		switch {
		case r.skipBlank():
			code.WriteByte(' ')
			continue
		case c == '"', c == '\'', rawBegin.MatchString(r.text[r.pos:]):
			a.text += r.literal()
			texts++
			continue
		case strings.IndexByte("([{", c) >= 0:
			depth++
		case depth == 0 && c == end:
			r.pos++
			flush()
			return args
		case strings.IndexByte(")]}", c) >= 0:
			depth--
		case c == ',' && depth == 0:
			r.pos++
			flush()
			continue
		}
		code.WriteByte(c)
		r.pos++
	}
	flush()
	return args
}
