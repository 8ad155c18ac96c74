package script

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
)

// buildTime checks the calls that end the compilation: fail("FORMAT", ...), static_assert(E, "TEXT") and assert_str(E).
// Where they hold, or are in a branch that a constant condition never takes, nothing is left of them.
func (c callChecker) buildTime(e *expr) error {
	nothing := func() error { *e = expr{kind: exBlock, Span: e.Span}; return nil }
	if c.dead > 0 {
		return nothing()
	}
	a := e.args[0]
	switch e.name {
	case "fail":
		text, err := c.failText(e)
		if err != nil {
			return err
		}
		return c.errorAt(e.Span, "%s", text)
	case "assert_str":
		t, err := c.value(a)
		switch {
		case err != nil:
			return err
		case !t.is(None, String, Array, Pointer, Buffer):
			return c.errorAt(e.Span, "string-like values must be either strings, arrays or pointers")
		}
	case "static_assert":
		text, isText := e.args[1].constantText()
		if !isText {
			return c.errorAt(e.args[1].Span, "static_assert() expects a string literal as its second argument")
		}
		n, known, err := c.decide(&expr{kind: exUnary, name: "comptime", Span: e.Span, args: []*expr{a}})
		switch {
		case err != nil:
			return err
		case known && n == 0:
			return c.errorAt(e.Span, "%s", text)
		}
	}
	if c.final {
		return nothing()
	}
	return nil
}

// failConversion matches a conversion in the format of fail(), whose values are literals.
var failConversion = regexp.MustCompile(`%(?:%|([-+ #0]*\d*)(?:hh|h|ll|l|z)?([a-zA-Z]))`)

// failText formats the message of fail().
func (c callChecker) failText(e *expr) (string, error) {
	format, ok := e.args[0].constantText()
	if !ok {
		return "", c.errorAt(e.args[0].Span, "fail() expects a string literal as its first argument")
	}
	var values []any
	for _, a := range e.args[1:] {
		if _, err := c.value(a); err != nil {
			return "", err
		}
		text, isText := a.constantText()
		n, isNumber := c.constantValue(a)
		switch {
		case isText:
			values = append(values, text)
		case isNumber:
			values = append(values, n)
		default:
			return "", c.errorAt(a.Span, "fail() only accepts literals, which are known at compile time")
		}
	}
	wrong := ""
	text := failConversion.ReplaceAllStringFunc(format, func(s string) string {
		if s == "%%" {
			return "%"
		}
		if len(values) == 0 {
			wrong = "fail() has fewer arguments than its format"
			return s
		}
		m := failConversion.FindStringSubmatch(s)
		v := values[0]
		values = values[1:]
		n, isNumber := v.(int64)
		switch {
		case m[2] == "s" && isNumber:
			return fmt.Sprintf("%"+m[1]+"s", strconv.FormatInt(n, 10))
		case m[2] == "s":
			return fmt.Sprintf("%"+m[1]+"s", v)
		case !isNumber:
			wrong = "fail(): %" + m[2] + " wants a number"
		case m[2] == "u":
			return fmt.Sprintf("%"+m[1]+"d", uint64(n))
		case m[2] == "d" || m[2] == "i":
			return fmt.Sprintf("%"+m[1]+"d", n)
		case m[2] == "x" || m[2] == "X" || m[2] == "o":
			return fmt.Sprintf("%"+m[1]+m[2], uint64(n))
		default:
			wrong = "fail(): unknown format %" + m[2]
		}
		return s
	})
	if wrong == "" && len(values) > 0 {
		wrong = "fail() has more arguments than its format"
	}
	if wrong != "" {
		return "", c.errorAt(e.Span, "%s", wrong)
	}
	return text, nil
}

// branch checks a branch of an if whose condition is known to be true or false, and which it never takes if dead is true.
func (c *checker) branch(body []*stmt, dead bool) error {
	if dead {
		c.dead++
		defer func() { c.dead-- }()
	}
	return c.stmts(body)
}

// fixedSettings are settings of bpftrace's that have no effect here: names of C++ are
// always shown as the source has them.
var fixedSettings = []string{"cpp_demangle"}

// configRecord turns config into a record of the settings.
func (c callChecker) configRecord(e *expr) (Type, error) {
	number := func(n uint64) *expr { return &expr{kind: exInt, Span: e.Span, num: n} }
	text := func(s string) *expr { return &expr{kind: exString, Span: e.Span, text: s} }
	s := c.config
	*e = expr{
		kind: exTuple, Span: e.Span, names: slices.Concat(settings, fixedSettings),
		args: []*expr{number(s.maxKeys), number(uint64(s.maxProbes)), number(uint64(s.maxString)), truthAt(e.Span, s.printMaps), text(s.missing), text(s.stackMode), truthAt(e.Span, s.strict), truthAt(e.Span, !s.noDebugInfo), text(s.trailer), truthAt(e.Span, !s.mangled)},
	}
	return c.typeOf(e)
}
