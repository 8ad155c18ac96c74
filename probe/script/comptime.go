package script

// isComptime reports whether an expression is comptime E, which is evaluated at
// compile time.
func (e *expr) isComptime() bool { return e.kind == exUnary && e.name == "comptime" }

// comptimeType checks comptime E. When all types are known, it is replaced by its
// value.
func (c *checker) comptimeType(e *expr) (Type, error) {
	of := e.args[0]
	if _, err := c.value(of); err != nil {
		return Type{}, err
	}
	part := of.constantPart()
	if part.info != nil {
		part = part.info
	}
	if part.kind == exTuple || part.kind == exString {
		if c.final {
			*e = *part
			return c.typeOf(e)
		}
		return c.typeOf(part)
	}
	n, known, err := c.decide(e)
	if err != nil || !known {
		return Type{}, err
	}
	value := &expr{kind: exCast, Span: e.Span, cast: &typeName{c: cNumbers["int64"]}, args: []*expr{{kind: exInt, Span: e.Span, num: uint64(n)}}}
	switch {
	case of.typ.Kind == Bool:
		value = truthAt(e.Span, n != 0)
	}
	if c.final {
		*e = *value
		return c.typeOf(e)
	}
	return c.typeOf(value)
}

// choose returns the chosen branch of an if with the condition comptime E, nil while
// the types in E are not known yet. The other branch is not checked. When all types
// are known, the if becomes a block with that branch.
func (c *checker) choose(s *stmt) (body []*stmt, err error) {
	n, known, err := c.decide(s.value)
	if err != nil || !known {
		return nil, err
	}
	was := s.chosen
	if s.chosen, body = chosenBody, s.body; n == 0 {
		s.chosen, body = chosenOther, s.other
	}
	if was != notChosen && was != s.chosen { // the branch that was checked before may have affected types
		return nil, c.errorAt(s.value.Span, "comptime condition depends on a type that is not final yet").hint("a later assignment makes a string or a value larger: declare it with its size, as let $x: string[16]")
	}
	if c.final {
		s.kind, s.body, s.value, s.other = stBlock, body, nil, nil
	}
	return body, nil
}

// decide returns the number of comptime E; of a string, whether it is not empty.
func (c *checker) decide(e *expr) (n int64, known bool, err error) {
	of := e.args[0]
	if _, err := c.value(of); err != nil {
		return 0, false, err
	}
	n, known = c.constantValue(of)
	if !known && c.final {
		return 0, false, c.errorAt(e.Span, "Unable to resolve comptime expression").hint("it is made of constants, sizeof, offsetof and is_ptr, is_scalar and so on")
	}
	return n, known, nil
}

// constantValue returns the constant value of a checked expression.
func (c *checker) constantValue(e *expr) (int64, bool) {
	if n, ok := c.constant(e); ok {
		return n, true
	}
	if part := e.constantPart(); part != e {
		return c.constantValue(part)
	}
	switch e.kind {
	case exString:
		return int64(signIndex(e.text != "")), true
	case exCast:
		n, ok := c.constantValue(e.args[0])
		if e.typ.Kind == Bool {
			n = int64(signIndex(n != 0))
		}
		return n, ok && e.typ.is(Bool, Int) && (e.typ.Kind == Bool || e.typ.Size == 8)
	case exCall:
		if a := e.args; len(a) == 0 || !unevaluated[e.name] {
			return 0, false
		}
		if e.name == "is_scalar" {
			return int64(e.num), c.byName[e.args[0].name].keyed != 0
		}
		return int64(e.num), e.args[0].typ.Kind != None
	case exUnary:
		if n, ok := c.constantValue(e.args[0]); ok && e.name == "!" {
			return int64(signIndex(n == 0)), true
		}
	case exBinary:
		return c.constantOperation(e)
	}
	return 0, false
}

// constantOperation is constantValue for an operation on two numbers.
func (c *checker) constantOperation(e *expr) (int64, bool) {
	if x, y := e.args[0].typ.Kind, e.args[1].typ.Kind; x == String || y == String || x == Tuple && y == Tuple {
		a, okA := e.args[0].constantText()
		b, okB := e.args[1].constantText()
		return int64(signIndex((a == b) == (e.name == "=="))), okA && okB && (e.name == "==" || e.name == "!=")
	}
	a, ok := c.constantValue(e.args[0])
	b, ok2 := c.constantValue(e.args[1])
	if !ok || !ok2 || a < 0 || b < 0 { // for negative numbers the operations depend on the sign
		return 0, false
	}
	is := false
	switch e.name {
	case "&&":
		is = a != 0 && b != 0
	case "||":
		is = a != 0 || b != 0
	case "==":
		is = a == b
	case "!=":
		is = a != b
	case "<":
		is = a < b
	case "<=":
		is = a <= b
	case ">":
		is = a > b
	case ">=":
		is = a >= b
	default:
		return fold(e.name, a, b)
	}
	return int64(signIndex(is)), true
}
