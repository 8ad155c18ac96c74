package script

import (
	"slices"
	"strings"
)

// beginsRecord reports whether the current parenthesis begins a record.
func (p *parser) beginsRecord() bool {
	at := p.pos
	defer func() { p.pos = at }()
	name, err := p.next()
	return err == nil && name.kind == tokIdent && p.follows("=")
}

// record reads (NAME=VALUE, ...), a tuple with named elements.
func (p *parser) record() (*expr, error) {
	e := &expr{kind: exTuple, Span: p.tok.Span}
	pred := p.pred
	p.pred = false
	defer func() { p.pred = pred }()
	for more := true; more; more = p.isOp(",") {
		if err := p.advance(); err != nil {
			return nil, err
		}
		if p.isOp(")") {
			break
		}
		name := p.tok
		switch {
		case name.kind != tokIdent:
			return nil, p.errorAt(name.Span, "syntax error, unexpected %s, expecting a name", p.describe())
		case slices.Contains(e.names, name.text):
			return nil, p.errorAt(name.Span, "a record has two fields '%s'", name.text)
		case len(e.names) == 64:
			return nil, p.errorAt(name.Span, "more than 64 of a list")
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
		if err := p.expect("="); err != nil {
			return nil, err
		}
		v, err := p.expr()
		if err != nil {
			return nil, err
		}
		e.names, e.args = append(e.names, name.text), append(e.args, v)
	}
	e.Span = e.Span.join(p.tok.Span)
	return e, p.expect(")")
}

// record prints a tuple with named elements.
func (p *Printer) record(t Type, data []byte, json bool) string {
	var parts []string
	for i, e := range t.Elems {
		d := data[t.offset(i):][:e.bytes()]
		if json {
			parts = append(parts, jsonText(t.Names[i])+": "+p.json(e, d))
		} else {
			parts = append(parts, "."+t.Names[i]+" = "+p.text(e, d))
		}
	}
	if json {
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return "{ " + strings.Join(parts, ", ") + " }"
}
