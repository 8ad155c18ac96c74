package btsuite

import (
	"fmt"
	"path"
	"strings"

	"github.com/guestprobe/guestprobe/probe/script"
)

// unitFile is a file of unit tests whose cases are scripts.
type unitFile struct {
	name   string
	kind   Kind
	parsed bool // upstream only parses the scripts
	// wrap makes a script from a case's text; nil: the text is a script.
	wrap func(invocation, string) string
}

// unitFiles are the supported files of unit tests.
var unitFiles = []unitFile{
	{name: "parser", kind: Parser, parsed: true},
	{name: "attachpoint_passes", kind: Parser, parsed: true},
	{name: "macro_expansion", kind: Parser, parsed: true},
	{name: "config_analyser", kind: Parser, parsed: true},
	{name: "type_checker", kind: Checker},
	{name: "type_resolver", kind: Checker},
	{name: "pre_type_check", kind: Checker},
	{name: "field_analyser", kind: Checker},
	{name: "named_param", kind: Checker},
	{name: "fold_literals", kind: Checker, wrap: wrapStatement},
}

// wrapStatement makes a script from a statement.
func wrapStatement(i invocation, text string) string {
	switch {
	case i.name == "test_comptime_if":
		return "begin { " + text + " }"
	case strings.HasSuffix(text, "}"), strings.HasSuffix(text, ";"):
		return "begin { " + text + " exit(); }"
	}
	return "begin { " + text + "; exit(); }"
}

// unitCase is a script and the result that upstream's test expects.
type unitCase struct {
	id, text string
	refused  bool   // the test expects an error,
	message  string // with this text, if not ""
	unsafe   bool
	params   []string
}

// read makes a case from a call; ok is false if the script is assembled in a way
// that the reader does not support.
func (f unitFile) read(i invocation) (c unitCase, ok bool) {
	c = unitCase{id: fmt.Sprintf("%s.%s:%d", f.name, i.test, i.line), params: i.params}
	at := -1
	for n, a := range i.args {
		if a.isText {
			at = n
			break
		}
		if a.text != "" { // text with an unknown part
			c.text = a.text + " ... " + a.code
			return c, false
		}
	}
	if at < 0 {
		return c, false
	}
	c.text = strings.TrimLeft(i.args[at].text, "\n")
	if f.wrap != nil {
		c.text = f.wrap(i, c.text)
	}
	c.refused = strings.HasSuffix(i.name, "_error") || strings.HasSuffix(i.name, "_failure")
	for n, a := range i.args {
		switch {
		case n <= at:
		case strings.HasPrefix(a.code, "UnsafeMode"):
			c.unsafe = true
		case strings.HasPrefix(a.code, "NoFeatures"): // needs a kernel that is too old
			return c, false
		case strings.HasPrefix(a.code, "Error"):
			c.refused, c.message = true, a.text
		case a.code == "false" && (f.name == "config_analyser" || f.name == "field_analyser"):
			c.refused = true
		case a.code == "false" && f.name == "pre_type_check":
			c.unsafe = true
		case f.name == "pre_type_check" && n == at+1 && (a.text != "" || a.code != ""):
			c.refused, c.message = true, a.text
		case c.refused && a.isText && c.message == "":
			c.message = a.text
		}
	}
	if i.name == "test_for_warning" {
		c.refused = false
	}
	return c, true
}

// run compares our answer with upstream's.
func (c unitCase) run(f unitFile, t *target) Result {
	r := Result{Kind: f.kind, Name: c.id, Script: c.text}
	var err error
	if f.parsed {
		err = script.Check("stdin", c.text, noImports(c.text), c.params, t.Types())
	} else {
		_, err = script.Compile(c.text, t, script.Options{Params: c.params, Unsafe: c.unsafe, CPUs: 1})
	}
	switch {
	case err == nil && !c.refused:
		r.Outcome = Agree
	case err != nil && c.refused:
		r.Outcome = Agree
		r.Words = c.message != "" && !strings.Contains(err.Error(), strings.TrimSpace(c.message))
	case err != nil:
		r.Outcome, r.Said = Refused, err.Error()
	default:
		r.Outcome, r.Said = Accepted, firstLine(c.message)
	}
	return r
}

// noImports are empty files for the imports of a script, which upstream's parser does not read.
func noImports(text string) (files []script.File) {
	for _, name := range script.Imports(text) {
		if path.Ext(name) == "" { // a folder
			name += "/empty.bt"
		}
		files = append(files, script.File{Name: name})
	}
	return files
}

// firstLine returns the first line of a text that is not blank.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
