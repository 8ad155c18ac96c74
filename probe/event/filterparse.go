package event

import (
	"strings"

	"github.com/guestprobe/guestprobe/guest"
)

// filterParser parses a filter expression:
//
//	or   = and { "||" and }
//	and  = not { "&&" not }
//	not  = "!" not | "(" or ")" | term
//	term = FIELD OP VALUE
type filterParser struct {
	text   string
	layout *Layout
	at     int
	depth  int
	terms  int
}

// fail returns the error for a column of the expression.
func (p *filterParser) fail(column int, code Code, detail string) *SyntaxError {
	return &SyntaxError{
		Code: code, Text: code.Text(), Errno: code.Errno(), Column: min(column, len(p.text)), Command: strings.ReplaceAll(p.text, "\t", " "), Detail: detail,
	}
}

func (p *filterParser) parse() (*FilterNode, error) {
	if len(p.text) > maxFilter {
		text := p.text
		p.text = text[:maxFilter]
		return nil, p.fail(maxFilter, CodeCommandTooLong, "a filter has at most 4095 bytes")
	}
	for i := range len(p.text) {
		if c := p.text[i]; c < ' ' && c != '\t' || c == 0x7f {
			// It would break the lines that the expression is printed in.
			e := p.fail(i, CodeBadCharacter, "")
			e.Command = strings.Map(func(r rune) rune {
				if r < ' ' || r == 0x7f {
					return '?'
				}
				return r
			}, p.text)
			return nil, e
		}
	}
	if p.skip(); p.at == len(p.text) {
		return nil, p.fail(0, CodeNoFilter, "it has the form FIELD OP VALUE")
	}
	n, err := p.parseOr()
	if err != nil {
		return nil, err
	}
	if p.at < len(p.text) {
		if p.text[p.at] == ')' {
			return nil, p.fail(p.at, CodeTooManyClose, "")
		}
		return nil, p.fail(p.at, CodeInvalidOp, "want && or || between terms")
	}
	return n, nil
}

// skip passes over blanks.
func (p *filterParser) skip() {
	for p.at < len(p.text) && (p.text[p.at] == ' ' || p.text[p.at] == '\t') {
		p.at++
	}
}

// take skips s, and blanks after it, if it comes next.
func (p *filterParser) take(s string) bool {
	if !strings.HasPrefix(p.text[p.at:], s) {
		return false
	}
	p.at += len(s)
	p.skip()
	return true
}

func (p *filterParser) parseOr() (*FilterNode, error) { return p.chain("||", FilterOr, p.parseAnd) }

func (p *filterParser) parseAnd() (*FilterNode, error) { return p.chain("&&", FilterAnd, p.parseNot) }

// chain parses operands separated by one operator.
func (p *filterParser) chain(op string, kind FilterOp, operand func() (*FilterNode, error)) (*FilterNode, error) {
	n, err := operand()
	for err == nil && p.take(op) {
		var y *FilterNode
		if y, err = operand(); err == nil {
			n = &FilterNode{Op: kind, X: n, Y: y}
		}
	}
	return n, err
}

func (p *filterParser) parseNot() (*FilterNode, error) {
	start := p.at
	if p.depth == maxFilterDepth {
		return nil, p.fail(start, CodeTooManyPreds, "too deep inside one another")
	}
	p.depth++
	defer func() { p.depth-- }()
	switch {
	case p.take("!"):
		x, err := p.parseNot()
		return &FilterNode{Op: FilterNot, X: x}, err
	case p.take("("):
		n, err := p.parseOr()
		if err != nil {
			return nil, err
		}
		if !p.take(")") {
			if p.at < len(p.text) {
				return nil, p.fail(p.at, CodeInvalidOp, "want && or || between terms, or )")
			}
			return nil, p.fail(start, CodeTooManyOpen, "")
		}
		return n, nil
	}
	return p.term()
}

// word returns the next identifier.
func (p *filterParser) word() string {
	i := p.at
	for i < len(p.text) && (isAlpha(p.text[i]) || isDigit(p.text[i]) || p.text[i] == '_') {
		i++
	}
	return p.text[p.at:i]
}

// operators, each before its prefixes.
var operators = []struct {
	text string
	is   Comparison
}{
	{"==", Equal}, {"!=", NotEqual}, {"<=", LessEqual}, {">=", GreaterEqual}, {"<", Less}, {">", Greater}, {"~", Match},
	{"&", AnyBit},
}

func (p *filterParser) term() (*FilterNode, error) {
	start := p.at
	name := p.word()
	if name == "" {
		return nil, p.fail(start, CodeInvalidFilter, "a term has the form FIELD OP VALUE")
	}
	if p.terms++; p.terms > maxFilterTerms {
		return nil, p.fail(start, CodeTooManyPreds, "at most 128")
	}
	n, code, detail := p.lookup(name)
	if code != "" {
		return nil, p.fail(start, code, detail)
	}
	p.at += len(name)
	p.skip()
	opAt := p.at
	t := &FilterTerm{Field: n.id, Value: n.value, Signed: n.signed, IsText: n.text}
	if !p.operator(&t.Is) {
		return nil, p.fail(opAt, CodeInvalidOp, "want one of == != < <= > >= & ~ after a field")
	}
	text := t.Is == Equal || t.Is == NotEqual || t.Is == Match
	if n.text && !text || !n.text && t.Is == Match {
		detail := "numbers have == != < <= > >= &"
		if n.text {
			detail = "text has == != ~"
		}
		return nil, p.fail(opAt, CodeIllegalFieldOp, detail)
	}
	valueAt := p.at
	if err := p.value(t, n); err != nil || t.Is != Match {
		return &FilterNode{Term: t}, err
	}
	pattern, not := strings.CutPrefix(t.Text, "!")
	if pattern != "" { // the empty text matches it
		if err := guest.CheckGlob(pattern); err != nil {
			return nil, p.fail(valueAt, CodeInvalidFilter, err.Error())
		}
	}
	if !not {
		return &FilterNode{Term: t}, nil
	}
	// A ! before a pattern negates the term (filter_parse_regex), which is still
	// false for an unreadable text: that does not even match "*".
	if p.terms++; p.terms > maxFilterTerms {
		return nil, p.fail(start, CodeTooManyPreds, "at most 128, of which ~ \"!...\" takes two")
	}
	readable, is := *t, *t
	readable.Text, is.Text = "*", pattern
	return &FilterNode{Op: FilterAnd, X: &FilterNode{Term: &readable}, Y: &FilterNode{Op: FilterNot, X: &FilterNode{Term: &is}}}, nil
}

func (p *filterParser) operator(is *Comparison) bool {
	for _, o := range operators {
		// && after a field is not an incomplete operator.
		if o.is == AnyBit && strings.HasPrefix(p.text[p.at:], "&&") {
			return false
		}
		if p.take(o.text) {
			*is = o.is
			return true
		}
	}
	return false
}

// value reads the constant of a term.
func (p *filterParser) value(t *FilterTerm, n field) error {
	start := p.at
	if p.at == len(p.text) {
		return p.fail(start, CodeInvalidValue, "nothing to compare with")
	}
	c := p.text[p.at]
	if c == '"' || c == '\'' {
		end := strings.IndexByte(p.text[p.at+1:], c)
		switch {
		case end < 0:
			return p.fail(start, CodeMissingQuote, "")
		case end > maxFilterValue:
			return p.fail(start+1+maxFilterValue, CodeOperandTooLong, "at most 255 bytes")
		case !n.text:
			return p.fail(start, CodeExpectDigit, n.name+" is a number")
		}
		t.Text = p.text[p.at+1 : p.at+1+end]
		p.at += end + 2
		p.skip()
		return nil
	}
	number := p.text[p.at:]
	sign := 0
	if c == '-' || c == '+' {
		sign = 1
	}
	if len(number) == sign || !isDigit(number[sign]) {
		return p.fail(start, CodeInvalidValue, "")
	}
	p.at += sign
	word := p.word()
	number = number[:sign+len(word)]
	if n.text {
		return p.fail(start, CodeExpectString, n.name+" is text: put quotes around the value")
	}
	v, ok := n.number(number)
	if !ok {
		return p.fail(start, CodeIllegalIntval, n.limits())
	}
	t.Num = v
	p.at += len(word)
	p.skip()
	return nil
}
