package script

import "strings"

// baseNames are the names of kinds in bpftrace, where they differ from kindNames.
var baseNames = map[Kind]string{
	Struct: "c_type", KSym: "ksym_t", MAC: "mac_address", Count: "count_t", Sum: "sum_t", Avg: "avg_t", Min: "min_t", Max: "max_t", Stats: "stats_t", Hist: "hist_t", LHist: "lhist_t", TSeries: "tseries_t",
}

// baseName is typeinfo's name for the kind of a type.
func (t Type) baseName() string {
	if t.Kind == Tuple && len(t.Names) > 0 {
		return "record"
	}
	if name := baseNames[t.Kind]; name != "" {
		return name
	}
	return kindNames[t.Kind]
}

// fullName is typeinfo's name for a type.
func (t Type) fullName() string {
	switch {
	case t.Kind == Struct, t.Kind == Int && t.C != nil:
		return strings.TrimPrefix(t.String(), "enum ")
	case t.is(Sum, Avg, Min, Max, Stats) && !t.Signed:
		return "u" + t.baseName()
	case t.isAggregate():
		return t.baseName()
	}
	return t.String()
}

// typeInfo checks typeinfo(E), the names of a type: a record whose fields are constants. Before all types
// are known it is left as it is; then it is replaced by that record.
func (c callChecker) typeInfo(e *expr) (Type, error) {
	t, err := c.operandType(e.args[0])
	if err != nil || t.Kind == None {
		return Type{}, err
	}
	text := func(s string) *expr { return &expr{kind: exString, Span: e.Span, text: s, typ: typeString(len(s) + 1)} }
	record := &expr{kind: exTuple, Span: e.Span, names: []string{"btf_id", "base_type", "full_type"}, args: []*expr{{kind: exInt, Span: e.Span, typ: typeInt}, text(t.baseName()), text(t.fullName())}}
	e.info = record
	if c.final {
		*e = *record
		return c.typeOf(e)
	}
	return c.typeOf(record)
}

// operandType returns the type of the operand of sizeof, offsetof or typeinfo: of a type, or of an expression.
func (c *checker) operandType(of *expr) (Type, error) {
	was := c.unevaluated
	c.unevaluated = true
	defer func() { c.unevaluated = was }()
	switch {
	case of.kind == exMap && len(of.args) == 0 && c.byName[of.name].keyed != 1: // as in bpftrace, the key's type
		m := c.byName[of.name]
		if m.key == nil && c.final {
			return Type{}, c.undefinedMapError(of.Span, of.name)
		}
		if of.typ = (Type{Kind: Tuple, Elems: m.key}); len(m.key) < 2 {
			of.typ = Type{}
			if len(m.key) == 1 {
				of.typ = m.key[0]
			}
		}
		return of.typ, nil
	case of.kind == exType:
		t, err := c.namedType(of.cast)
		if of.typ = t; t.Kind == Void {
			return t, c.errorAt(of.Span, "there is no value of type 'void'")
		}
		return t, err
	case of.kind == exMap && len(of.args) == 0 && c.byName[of.name].value.isAggregate():
		return c.expr(of)
	}
	return c.part(of)
}

// constantPart returns the part of a constant that a field of it names: of a tuple, a record or typeinfo.
func (e *expr) constantPart() *expr {
	if e.kind == exBlock && len(e.body) == 0 && len(e.args) == 1 { // a macro's literal
		return e.args[0].constantPart()
	}
	if e.kind != exField {
		return e
	}
	of := e.args[0].constantPart()
	if of.info != nil {
		of = of.info
	}
	if of.kind == exTuple && e.num < uint64(len(of.args)) {
		return of.args[e.num].constantPart()
	}
	return e
}

// constantText returns the constant text of an expression; of typeinfo itself, the type's name.
func (e *expr) constantText() (string, bool) {
	e = e.constantPart()
	switch {
	case e.kind == exString:
		return e.text, true
	case e.info != nil:
		return e.info.args[2].text, true
	case e.kind == exTuple && len(e.names) == 3 && e.names[2] == "full_type":
		return e.args[2].text, true
	}
	return "", false
}
