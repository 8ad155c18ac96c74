package script

import "slices"

// checker determines all types, and rejects invalid scripts. It repeats passes over
// the script until no type changes: a later probe may determine a map's type.
type checker struct {
	*script
	target  Target
	points  []*point // of the current probe
	scopes  []map[string]*variable
	closed  map[string]bool // variables of blocks of this probe that have ended
	dead    int             // levels of branches that are never taken
	final   bool            // all types that can be determined are known
	changed bool
	stored  *expr // the value assigned to a map: it may be an aggregation

	unevaluated bool // the expression is the operand of typeof, typeinfo, sizeof or offsetof

	lacking map[TaskPart]bool // parts of tasks with a warning

	passes int
	grew   Span // the place where a type last became larger

	countStacks bool // the script uses the length of stacks

	places   [][]*point // by probe
	warnings []*Error
	sites    []site
	siteOf   map[site]int
	outputs  []*output
}

// maxPasses bounds the passes: each one widens some type.
const maxPasses = 64

// check determines all types.
func (s *script) check(t Target) (*checker, error) {
	c := &checker{script: s, target: t, lacking: map[TaskPart]bool{}}
	for _, d := range s.probes {
		ps, warnings, err := s.expand(d, t)
		if err != nil {
			return nil, err
		}
		c.places, c.warnings = append(c.places, ps), append(c.warnings, warnings...)
	}
	c.warnings = append(c.warnings, s.left...)
	if len(s.probes) > 0 && len(slices.Concat(c.places...)) == 0 {
		return nil, s.noProbesError()
	}
	for range maxPasses {
		c.changed = false
		c.passes++
		if err := c.pass(); err != nil {
			return nil, err
		}
		if c.changed {
			continue
		}
		if c.final {
			return c, c.limits()
		}
		c.final = true
	}
	return nil, s.errorAt(c.grew, "the type of this never ends: the value is part of itself")
}

func (c *checker) pass() error {
	c.sites, c.siteOf, c.outputs = nil, map[site]int{}, nil
	for i, d := range c.probes {
		c.points, c.closed, c.types = c.places[i], map[string]bool{}, d.types
		c.scopes = []map[string]*variable{{}}
		if d.cond != nil {
			if err := c.condition(d.cond); err != nil {
				return err
			}
		}
		if err := c.stmts(d.body); err != nil {
			return err
		}
	}
	return nil
}

// growing is the number of passes after which a string that still grows is assumed to
// grow in each iteration of a loop.
const growing = 8

// noteGrowth records the place where a type became larger. A string that grows in
// every pass is made from itself: it gets the maximum size of a string.
func (c *checker) noteGrowth(sp Span, was, is Type) Type {
	c.grew = sp
	if c.passes > growing && was.Kind == String && is.Kind == String && is.Size > was.Size {
		is.Size = maxConcat
	}
	return is
}

// stmts checks the statements of a block.
func (c *checker) stmts(body []*stmt) error {
	c.scopes = append(c.scopes, map[string]*variable{})
	defer func() {
		last := len(c.scopes) - 1
		for name := range c.scopes[last] {
			c.closed[name] = true
		}
		c.scopes = c.scopes[:last]
	}()
	for i, s := range body {
		if err := c.stmt(s); err != nil {
			return err
		}
		if s.leaves() && i+1 < len(body) {
			c.warnOnce(body[i+1].Span, "Unreachable statement")
		}
	}
	return nil
}

// leaves reports whether no statement after s in its block runs.
func (s *stmt) leaves() bool {
	switch s.kind {
	case stReturn, stBreak, stContinue:
		return true
	case stExpr:
		return s.value.kind == exCall && s.value.name == "exit"
	}
	return false
}

func (c *checker) stmt(s *stmt) error {
	switch s.kind {
	case stExpr:
		if s.op == discarded {
			_, err := c.value(s.value)
			return err
		}
		return c.exprStmt(s.value)
	case stAssign:
		return c.assign(s)
	case stLet:
		return c.let(s)
	case stIf:
		if s.value.isComptime() {
			body, err := c.choose(s)
			if err != nil {
				return err
			}
			return c.stmts(body)
		}
		if err := c.condition(s.value); err != nil {
			return err
		}
		n, known := c.constantValue(s.value)
		if err := c.branch(s.body, known && n == 0); err != nil {
			return err
		}
		return c.branch(s.other, known && n != 0)
	case stReturn:
		if s.value == nil {
			return nil
		}
		if !slices.ContainsFunc(c.points, func(p *point) bool { return p.class() == atPlace }) { // no function returns the value
			_, err := c.calls().number(&expr{name: "return"}, s.value)
			return err
		}
		return c.calls().override(s.Span, "return", s.value)
	case stWhile:
		if err := c.condition(s.value); err != nil {
			return err
		}
		return c.stmts(s.body)
	case stUnroll:
		if err := c.condition(s.value); err != nil {
			return err
		}
		return c.stmts(s.body)
	case stForRange:
		return c.forRange(s)
	case stForMap:
		return c.forMap(s)
	case stBlock:
		return c.stmts(s.body)
	}
	return nil
}

func (c *checker) forRange(s *stmt) error {
	for _, e := range []*expr{s.value, s.bound} {
		if t, err := c.expr(e); err != nil {
			return err
		} else if t.Kind != None && t.Kind != Int {
			return c.errorAt(e.Span, "a range is of integers, not of %s", t)
		}
	}
	return c.loop(s, typeInt)
}

// forMap checks a loop over the elements of a map, which are tuples of key and value.
func (c *checker) forMap(s *stmt) error {
	m, err := c.keyedMap(s.value, "for")
	if err != nil {
		return err
	}
	if (m.key == nil || m.value.Kind == None) && c.final {
		return c.undefinedMapError(s.value.Span, m.name)
	}
	t := Type{Kind: Tuple, Elems: []Type{{Kind: Tuple, Elems: m.key}, m.value.asNumber()}}
	if len(m.key) == 1 {
		t.Elems[0] = m.key[0]
	}
	return c.loop(s, t)
}

// keyedMap is the map that e names as a whole, if its elements are values.
func (c *checker) keyedMap(e *expr, what string) (*mapDef, error) {
	if e.kind != exMap || len(e.args) > 0 {
		return nil, c.errorAt(e.Span, "%s expects a map to be provided", what)
	}
	m := c.byName[e.name]
	switch {
	case m.keyed == 1:
		return m, c.errorAt(e.Span, "%s expects a map with explicit keys (non-scalar map)", what)
	case m.isHist() || what == "for" && m.value.Kind == Stats:
		return m, c.errorAt(e.Span, "%s does not support a map of %s()", what, m.value).hint("print(%s) prints all of it", m.name)
	case m.keyed == 0:
		m.keyed, c.changed = 2, true
	}
	return m, nil
}

// loop checks the body of a loop whose variable has type t.
func (c *checker) loop(s *stmt, t Type) error {
	if c.find(s.to.name) != nil {
		return c.errorAt(s.to.Span, "Loop declaration shadows existing variable: %s", s.to.name)
	}
	if s.decl == nil {
		s.decl = &variable{name: s.to.name}
	}
	if !s.decl.typ.equal(t) {
		s.decl.typ, c.changed = t, true
	}
	s.to.decl, s.to.typ = s.decl, t
	c.scopes = append(c.scopes, map[string]*variable{s.to.name: s.decl})
	defer func() { c.scopes = c.scopes[:len(c.scopes)-1] }()
	return c.stmts(s.body)
}

// find returns the variable of that name, or nil.
func (c *checker) find(name string) *variable {
	for i := len(c.scopes) - 1; i >= 0; i-- {
		if v := c.scopes[i][name]; v != nil {
			return v
		}
	}
	return nil
}

func (c *checker) let(s *stmt) error {
	if c.find(s.to.name) != nil {
		return c.errorAt(s.to.Span, "Variable %s was already declared. Variable shadowing is not allowed.", s.to.name)
	}
	t := Type{}
	if s.value != nil {
		var err error
		if t, err = c.value(s.value); err != nil {
			return err
		}
	}
	c.declare(s)
	if name := s.to.cast; name != nil && name.text > 0 {
		if s.decl.typ.Kind == None { // the type of the first assignment may follow
			s.decl.typ, c.changed = typeString(name.text), true
		}
	} else if name != nil && (!s.decl.fixed || name.of != nil) { // the type of an expression may still change
		of, err := c.namedType(name)
		switch {
		case err != nil:
			return err
		case of.Kind == Void || name.whole || of.bytes() > maxTuple:
			return c.errorAt(name.Span, "a variable of type '%s' is not supported", of)
		case of.Kind != None && !(s.decl.fixed && of.equal(s.decl.typ)):
			s.decl.typ, s.decl.fixed, c.changed = of, true, true
		}
	}
	if err := c.checkFits(s.decl, s.value); err != nil {
		return err
	}
	return c.widen(s.Span, s.to, s.decl, t)
}

// declare makes the variable of a statement.
func (c *checker) declare(s *stmt) {
	if s.decl == nil {
		s.decl = &variable{name: s.to.name}
	}
	c.scopes[len(c.scopes)-1][s.to.name] = s.decl
	s.to.decl = s.decl
}

// widen extends the type of a variable to values of another type.
func (c *checker) widen(sp Span, e *expr, v *variable, t Type) error {
	u, ok := unify(v.typ, t)
	if !ok || v.fixed && c.final && u.isLonger(v.typ) {
		return c.errorAt(sp, "Type mismatch for %s: trying to assign value of type '%s' when variable already has a type '%s'", v.name, t, v.typ)
	}
	switch {
	case v.fixed: // numbers are converted to the declared type
		u = v.typ
	case !u.equal(v.typ):
		u = c.noteGrowth(sp, v.typ, u)
		v.typ, c.changed = u, true
	}
	e.decl, e.typ = v, u
	return nil
}

// value is expr for values that variables and tuples can hold: of an aggregation its
// current number.
func (c *checker) value(e *expr) (Type, error) {
	t, err := c.part(e)
	if n := t.bytes(); err == nil && t.is(Struct, Array) && n > maxWhole {
		return t, c.errorAt(e.Span, "a value of type '%s' has %d bytes: at most %d", t, n, maxWhole).hint("name a member of it")
	}
	return t, err
}

// part is value if only a part of the value is used.
func (c *checker) part(e *expr) (Type, error) {
	t, err := c.expr(e)
	switch {
	case err == nil && t.isAggregate() && !t.isScalarAggregate():
		return t, c.errorAt(e.Span, "a map of %s() has no value for an expression", t).hint("print(%s) prints all of it", e.name)
	case err == nil && t.Kind == Void:
		return t, c.errorAt(e.Span, "there is no value of type 'void'")
	}
	t = t.asNumber()
	e.typ = t
	return t, err
}

func (c *checker) assign(s *stmt) error {
	if s.op != "=" {
		if s.to.kind == exVar && c.find(s.to.name) == nil {
			return c.unknownNameError(s.to)
		}
		// Its value is that of the operation.
		op := &expr{kind: exBinary, name: s.op[:len(s.op)-1], Span: s.Span, args: []*expr{s.to, s.value}}
		t, err := c.expr(op)
		if err != nil {
			return err
		}
		if s.to.kind == exVar {
			return c.widen(s.Span, s.to, s.to.decl, t)
		}
		return c.mapValue(s.Span, s.to, t)
	}
	if s.to.kind == exVar {
		t, err := c.value(s.value)
		if err != nil {
			return err
		}
		if v := c.find(s.to.name); v != nil {
			if err := c.checkFits(v, s.value); err != nil {
				return err
			}
			return c.widen(s.Span, s.to, v, t)
		}
		c.declare(s)
		return c.widen(s.Span, s.to, s.decl, t)
	}
	if s.aggregates() {
		return c.stmts(s.body)
	}
	c.stored = s.value
	t, err := c.expr(s.value)
	if err != nil {
		return err
	}
	if t.isAggregate() && s.value.kind != exCall {
		if c.byName[s.to.name].value.Kind != Int {
			err := c.errorAt(s.value.Span, "Map value '%s' cannot be assigned from one map to another. The function that returns this type must be called directly", t)
			if t.isScalarAggregate() {
				return err.hint("write %s = (int64)%s for its number", s.to.name, s.value.name)
			}
			return err
		}
		if t, err = c.value(s.value); err != nil {
			return err
		}
	}
	if _, err := c.mapKey(s.to); err != nil {
		return err
	}
	return c.mapValue(s.Span, s.to, c.symbolicType(c.byName[s.to.name], s.value, t))
}

// aggregates turns @m = { STATEMENTS; count() } into { STATEMENTS; @m = count(); }, and
// reports whether it did: an aggregation is no value that a block could have.
func (s *stmt) aggregates() bool {
	block := s.value
	if block.kind != exBlock || len(block.args) != 1 {
		return false
	}
	last := block.args[0]
	if _, is := aggregations[last.name]; !is || last.kind != exCall {
		return false
	}
	inner := *s
	inner.value = last
	*s = stmt{kind: stBlock, Span: s.Span, body: append(slices.Clone(block.body), &inner)}
	return true
}

// symbolicType returns the type of e as a value of the map. func is text here, but a
// symbol in bpftrace: a map that holds symbols stores it as a symbol, whichever comes
// first.
func (c *checker) symbolicType(m *mapDef, e *expr, t Type) Type {
	switch isFunc := e.kind == exBuiltin && e.name == "func"; {
	case isFunc && m.value.Kind == KSym:
		e.typ = m.value
		return e.typ
	case isFunc:
		m.funcs = m.funcs || m.value.Kind == None
	case t.Kind == String:
		m.funcs = false
	case t.Kind == KSym && m.funcs && m.value.Kind == String:
		m.value, c.changed = t, true
	}
	return t
}

// mapValue extends the type of a map's values.
func (c *checker) mapValue(sp Span, e *expr, t Type) error {
	m := c.byName[e.name]
	if c.unevaluated {
		return c.errorAt(sp, "Map assignments not allowed inside of typeof or typeinfo, or inside of sizeof").hint("only the type of an expression is used there")
	}
	u, ok := unify(m.value, t)
	if !ok {
		return c.errorAt(sp, "Type mismatch for %s: trying to assign value of type '%s' when map already has a type '%s'", m.name, t, m.value)
	}
	if !u.equal(m.value) {
		u = c.noteGrowth(sp, m.value, u)
		m.value, c.changed = u, true
	}
	e.typ = u
	e.site = c.addSite(failureAt(e.Span, siteFull))
	return nil
}

// Failures other than reads.
const (
	siteCut    = "String cut: it has no room for more than 1023 bytes"
	siteDivide = "Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result."
	siteFull   = "Map full; can't update element. Try increasing max_map_keys config or manually setting the max entries in a map declaration e.g. `let @a = hash(5000)`"
)

// mapKey checks the key of a map's element.
func (c *checker) mapKey(e *expr) (*mapDef, error) {
	m := c.byName[e.name]
	keyed := 1
	if len(e.args) > 0 {
		keyed = 2
	}
	if m.keyed != 0 && m.keyed != keyed {
		if keyed == 1 {
			return m, c.errorAt(e.Span, "%s used as a map without an explicit key (scalar map), previously used with an explicit key (non-scalar map)", m.name)
		}
		return m, c.errorAt(e.Span, "%s used as a map with an explicit key (non-scalar map), previously used without an explicit key (scalar map)", m.name)
	}
	if m.keyed == 0 {
		m.keyed, c.changed = keyed, true
	}
	if keyed == 1 {
		return m, nil
	}
	return m, c.keyTypes(e, m, e.args)
}

// keyText formats the type of a key for messages.
func keyText(t Type) string {
	if len(t.Elems) == 1 {
		t = t.Elems[0]
	}
	return t.String()
}

// keyTypes extends the key type of a map to that of args.
func (c *checker) keyTypes(e *expr, m *mapDef, args []*expr) error {
	if len(args) == 1 && args[0].isTuple() {
		args = args[0].args
	}
	var key []Type
	for _, a := range args {
		t, err := c.value(a)
		if err != nil {
			return err
		}
		key = append(key, t)
	}
	if len(args) == 1 && key[0].isTuple() { // a variable with the whole key
		key = slices.Clone(key[0].Elems)
	}
	if len(key) == 0 {
		if !c.final { // the key may be that of a map whose keys are not known yet
			return nil
		}
		return c.errorAt(e.Span, "an empty tuple is not a key")
	}
	if m.key == nil {
		m.key, c.changed = key, true
		return nil
	}
	have, want := Type{Kind: Tuple, Elems: key}, Type{Kind: Tuple, Elems: m.key}
	u, ok := unify(want, have)
	if !ok {
		return c.errorAt(e.Span, "Argument mismatch for %s: trying to access with arguments: '%s' when map expects arguments: '%s'", m.name, keyText(have), keyText(want))
	}
	if !u.equal(want) {
		m.key, c.changed = u.Elems, true
	}
	return nil
}

// undefinedMapError is the error for a map without an assignment.
func (c *checker) undefinedMapError(at Span, name string) error {
	err := c.errorAt(at, "Undefined map: %s", name)
	var names []string
	for _, m := range c.maps {
		if m.name != name && m.value.Kind != None {
			names = append(names, m.name)
		}
	}
	if m := nearestName(name, names); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err.hint("nothing is ever assigned to it")
}

func (c *checker) unknownNameError(e *expr) error {
	err := c.errorAt(e.Span, "Undefined or undeclared variable: %s", e.name)
	if c.closed[e.name] { // accepted by bpftrace up to 0.21
		return err.hint("it lives in the block in which it is first assigned to: write let %s; before that", e.name)
	}
	var names []string
	for _, s := range c.scopes {
		for n := range s {
			names = append(names, n)
		}
	}
	if m := nearestName(e.name, names); m != "" {
		return err.hint("did you mean %s?", m)
	}
	return err
}

// condition checks an expression that is used as true or false.
func (c *checker) condition(e *expr) error {
	t, err := c.value(e)
	if e.kind == exString && err == nil { // as in C, any literal is
		*e = *truthAt(e.Span, e.text != "")
		t, err = c.value(e)
	}
	if err == nil && t.Kind != None && !t.isInt() {
		err = c.errorAt(e.Span, "a condition is a number, not a %s", t)
	}
	return err
}
