package script

import "github.com/guestprobe/guestprobe/guest/x86"

// exprStmt checks a statement that is an expression.
func (c *checker) exprStmt(e *expr) error {
	if e.kind == exBlock {
		_, err := c.block(e, true)
		return err
	}
	if e.kind == exCall && calls[e.name].statement {
		return c.calls().action(e)
	}
	if e.isChoice() {
		if err := c.condition(e.args[0]); err != nil {
			return err
		}
		n, known := c.constantValue(e.args[0])
		for i, a := range e.args[1:] {
			err := c.branch([]*stmt{{kind: stExpr, Span: a.Span, value: a}}, known && (n != 0) == (i == 1))
			if err != nil {
				return err
			}
		}
		return nil
	}
	t, err := c.expr(e)
	switch {
	case err != nil:
		return err
	case t.isAggregate() && e.kind == exCall:
		return c.errorAt(e.Span, "%s() must be assigned to a map", e.name).hint("@ = %s(...)", e.name)
	case e.kind == exIncDec, e.kind == exCall && e.name == "delete":
		return nil
	}
	c.warnOnce(e.Span, "Value of the statement is not used")
	return nil
}

// isChoice reports whether it is a ?: of statements, which has no value.
func (e *expr) isChoice() bool {
	isAction := func(e *expr) bool {
		return e.kind == exCall && calls[e.name].statement || e.kind == exBlock && len(e.args) == 0
	}
	return e.kind == exCond && !e.short && isAction(e.args[1]) && isAction(e.args[2])
}

// warnOnce warns in the last pass.
func (c *checker) warnOnce(sp Span, format string, args ...any) {
	if c.final {
		w := c.errorAt(sp, format, args...)
		w.AtRunTime = true
		c.warnings = append(c.warnings, w)
	}
}

// callChecker checks calls: of statements, functions and aggregations.
type callChecker struct{ *checker }

// calls returns the part that checks calls.
func (c *checker) calls() callChecker { return callChecker{c} }

// arity checks how many arguments a call has.
func (c callChecker) arity(e *expr) (call, error) {
	f, ok := calls[e.name]
	switch {
	case !ok:
		if e.name == "comm" && len(e.args) == 1 {
			return f, c.errorAt(e.Span, "comm(PID) is not supported").hint("write comm in a probe with the condition /pid == PID/; 'guestprobe tasks' lists the names of all tasks")
		}
		if _, isName := builtins[e.name]; isName {
			return f, c.errorAt(e.Span, "%s takes no arguments", e.name)
		}
		return f, c.unknownError(e, "function")
	case len(e.args) < f.least || len(e.args) > f.most:
		want := "at most"
		n := f.most
		if len(e.args) < f.least {
			want, n = "at least", f.least
		}
		if want += " "; f.least == f.most {
			want = ""
		}
		if want == "at least " && n == 1 {
			return f, c.errorAt(e.Span, "%s() requires at least one argument (%d provided)", e.name, len(e.args))
		}
		return f, c.errorAt(e.Span, "%s() requires %s%d argument%s (%d provided)", e.name, want, n, plural(n), len(e.args))
	}
	return f, nil
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// action checks a call that is a statement.
func (c callChecker) action(e *expr) error {
	if _, err := c.arity(e); err != nil {
		return err
	}
	o := &output{Span: e.Span}
	switch e.name {
	case "printf", "errorf", "warnf", "debugf":
		if _, err := c.value(e.args[0]); err != nil { // a macro may be a literal
			return err
		}
		literal, ok := e.args[0].constantText()
		if !ok {
			return c.errorAt(e.args[0].Span, "%s() expects a string literal as its first argument", e.name)
		}
		o.kind = map[string]outputKind{"printf": outPrintf, "errorf": outError, "warnf": outWarn, "debugf": outDebug}[e.name]
		if e.text == printsJoin {
			o.kind = outJoin
		}
		f, wrong := parseFormat(literal)
		if wrong != "" {
			return c.errorAt(e.args[0].Span, "%s", wrong)
		}
		f.setFlags(c.types)
		o.format = f
		for _, a := range e.args[1:] {
			t, err := c.value(a)
			if err != nil {
				return err
			}
			o.types = append(o.types, t)
		}
		if wrong := f.checkTypes(o.types); wrong != "" {
			return c.errorAt(e.Span, "%s", wrong)
		}
	case "time":
		o.kind, o.time = outTime, "%H:%M:%S\n"
		if len(e.args) == 1 {
			if e.args[0].kind != exString {
				return c.errorAt(e.args[0].Span, "time() expects a string literal as its first argument")
			}
			o.time = e.args[0].text
		}
	case "print":
		return c.print(e, o)
	case "fail", "static_assert", "assert_str":
		return c.buildTime(e)
	case "override":
		return c.override(e.Span, e.name, e.args[0])
	case "setreg":
		return c.setReg(e)
	case "poke":
		return c.poke(e)
	case "stop":
		return c.stop(e)
	case "clear", "zero":
		m, err := c.wholeMap(e)
		if err != nil {
			return err
		}
		o.kind, o.of = outClear, m
		if e.name == "zero" {
			o.kind = outZero
		}
	case "exit":
		o.kind = outExit
		if len(e.args) == 1 {
			t, err := c.value(e.args[0])
			if err != nil {
				return err
			}
			if t.Kind != None && !t.isInt() {
				return c.errorAt(e.args[0].Span, "exit() takes a number")
			}
		} else {
			e.args = []*expr{{kind: exInt, Span: e.Span, typ: typeInt}}
		}
		o.types = []Type{typeInt}
	}
	return c.addOutput(e, o)
}

// maxRecord bounds the output of one printf, in bytes.
const maxRecord = maxStrlen + 8<<10

// addOutput numbers an output statement.
func (c callChecker) addOutput(e *expr, o *output) error {
	if n := o.bytes(); n > maxRecord {
		return c.errorAt(e.Span, "%s() of %d bytes: at most %d", e.name, n, maxRecord)
	}
	e.num = uint64(len(c.outputs))
	c.outputs = append(c.outputs, o)
	return nil
}

// wholeMap is the map that a call names as a whole.
func (c callChecker) wholeMap(e *expr) (*mapDef, error) {
	a := e.args[0]
	if a.kind != exMap || len(a.args) > 0 {
		return nil, c.errorAt(a.Span, "%s() expects a map to be provided", e.name)
	}
	return c.byName[a.name], nil
}

func (c callChecker) print(e *expr, o *output) error {
	a := e.args[0]
	// A map that never has a key is printed with its value at the time of printing
	// too.
	if a.kind == exMap && len(a.args) == 0 {
		o.kind, o.of = outMap, c.byName[a.name]
		for i, x := range e.args[1:] {
			n, ok := c.constant(x)
			if !ok || n < 0 {
				return c.errorAt(x.Span, "print() expects a number that is not negative")
			}
			if i == 0 {
				o.top = int(min(n, 1<<20))
			} else {
				o.div = n
			}
		}
		return c.addOutput(e, o)
	}
	if len(e.args) > 1 {
		return c.errorAt(e.args[1].Span, "Only maps can be printed with a number of entries")
	}
	t, err := c.value(a)
	if a.kind == exMap && t.isAggregate() {
		return c.errorAt(a.Span, "Map type %s cannot print the value of individual keys. You must print the whole map.", t).hint("print(%s)", a.name)
	}
	if err != nil {
		return err
	}
	o.kind, o.types = outValue, []Type{t}
	return c.addOutput(e, o)
}

// call checks a call that has a value.
func (c callChecker) call(e *expr) (Type, error) {
	f, err := c.arity(e)
	if err != nil {
		return Type{}, err
	}
	if f.statement {
		return Type{}, c.errorAt(e.Span, "%s() should not be used in an expression", e.name)
	}
	if k, ok := aggregations[e.name]; ok {
		return c.aggregation(e, k)
	}
	switch e.name {
	case "delete", "has_key":
		return c.element(e)
	case "find":
		return c.find(e)
	case "pton":
		return c.pton(e)
	case "is_scalar":
		return c.isKeyScalar(e)
	case "stack_len":
		e.name = "len"
		return c.length(e)
	case "len":
		return c.length(e)
	case "kstack", "ustack", "dw_ustack":
		return c.stack(e)
	case "kaddr", "uaddr", "reg":
		return c.checkNamed(e)
	case "str":
		if text, ok := c.paramFrom(e.args[0]); ok {
			if len(e.args) == 2 { // with its final zero
				n, known := c.constant(e.args[1])
				if !known || n < 1 {
					return Type{}, c.errorAt(e.args[1].Span, "str() of a parameter expects a number above 0 that is known before")
				}
				text = text[:min(int64(len(text)), n-1)]
			}
			*e = expr{kind: exString, Span: e.Span, text: text}
			return c.typeOf(e)
		}
	case "sizeof":
		return c.sizeOf(e)
	case "offsetof":
		return c.offsetOf(e)
	case "typeinfo":
		return c.typeInfo(e)
	}
	if e.name == "buf" || e.name == "ntop" || e.name == "macaddr" {
		for _, a := range e.args {
			a.raw = true
		}
	}
	if t, done, err := c.function(e); done || err != nil {
		return t, err
	}
	var ts []Type
	for _, a := range e.args {
		t, err := c.value(a)
		if err != nil {
			return t, err
		}
		ts = append(ts, t)
	}
	if e.name == "strlen" {
		if !ts[0].is(String, None) {
			return ts[0], c.errorAt(e.args[0].Span, "strlen() expects a string (%s provided)", ts[0]).hint("str(POINTER) reads one")
		}
		return typeUint, nil
	}
	if e.name == "str" && len(ts) == 1 && ts[0].Kind == String {
		*e = *e.args[0] // it already is one
		return ts[0], nil
	}
	if e.name == "buf" && ts[0].is(String, Array) {
		ts[0] = typeUint
	}
	for i, t := range ts {
		if t.Kind != None && !t.isInt() {
			return t, c.errorAt(e.args[i].Span, "%s() only supports number arguments (%s provided)", e.name, t)
		}
	}
	switch e.name {
	case "str":
		e.site = c.addSite(readAt(c.points, e))
		return c.typeOfRead(e, String)
	case "buf":
		e.site = c.addSite(readAt(c.points, e))
		return c.typeOfRead(e, Buffer)
	case "strerror":
		return Type{Kind: Errno, Size: 8}, nil
	case "signal_name":
		return Type{Kind: Signal, Size: 8}, nil
	case "syscall_name":
		return Type{Kind: Syscall, Size: 8}, nil
	}
	return Type{Kind: KSym, Size: 8}, nil
}

// typeOfRead is the type of data read from memory: of constant length, or of the
// configured one.
func (c callChecker) typeOfRead(e *expr, k Kind) (Type, error) {
	most := c.config.maxString
	if len(e.args) == 2 {
		if n, ok := c.constant(e.args[1]); ok {
			if n < 1 || n > maxStrlen {
				return Type{}, c.errorAt(e.args[1].Span, "%s() length: want 1 to %d", e.name, maxStrlen)
			}
			if most = int(n); k == String && most > c.config.maxString {
				most = c.config.maxString
				c.warnOnce(e.args[1].Span, "length param (%d) is too long and will be shortened to %d bytes (see BPFTRACE_MAX_STRLEN)", n, most)
			}
		}
	}
	if a := e.args[0].typ; a.Kind == Array { // all of it, or less
		if len(e.args) == 1 {
			most = maxStrlen
		}
		most = max(min(most, a.Size), 1)
	}
	return Type{Kind: k, Size: most}, nil
}

// paramText is the text of a positional parameter.
func (c *script) paramText(e *expr) string {
	if e.num == 0 || int(e.num) > len(c.params) {
		return ""
	}
	return c.params[e.num-1][:min(len(c.params[e.num-1]), maxName)]
}

// paramFrom is the text of a positional parameter, or for $1 + N its text without the
// first N bytes.
func (c callChecker) paramFrom(e *expr) (string, bool) {
	if e.kind == exParam {
		return c.paramText(e), true
	}
	if e.kind != exBinary || e.name != "+" || e.args[0].kind != exParam {
		return "", false
	}
	text := c.paramText(e.args[0])
	n, ok := c.constant(e.args[1])
	if _, isNumber := c.constant(e.args[0]); isNumber || !ok || n < 0 || n > int64(len(text)) {
		return "", false
	}
	return text[n:], true
}

// element checks a call on one element of a map: (@map, key), or the old (@map[key]).
func (c callChecker) element(e *expr) (Type, error) {
	a := e.args[0]
	if a.kind != exMap {
		return Type{}, c.errorAt(a.Span, "%s() expects a map to be provided", e.name)
	}
	m := c.byName[a.name]
	if m.isHist() && e.name == "has_key" {
		return typeBool, c.errorAt(a.Span, "has_key() of a histogram is not supported").hint("count calls by the same key in a map of its own")
	}
	if len(e.args) == 1 {
		_, err := c.mapKey(a)
		switch {
		case err == nil && len(a.args) == 0 && e.name == "has_key":
			err = c.errorAt(a.Span, "has_key() expects a map with explicit keys (non-scalar map)")
		}
		return typeBool, err
	}
	if len(a.args) > 0 {
		return typeBool, c.errorAt(a.Span, "%s() takes either a map and a key, or one element", e.name)
	}
	if m.keyed == 1 {
		return typeBool, c.errorAt(a.Span, "%s() expects a map with explicit keys (non-scalar map)", e.name)
	}
	if m.keyed == 0 {
		m.keyed, c.changed = 2, true
	}
	// It becomes the same tree as @map[key].
	a.args = e.args[1:]
	e.args = e.args[:1]
	if a.args[0].isTuple() {
		a.args = a.args[0].args
	}
	return typeBool, c.keyTypes(a, m, a.args)
}

// checkNamed checks calls with a name as argument: kaddr and reg.
func (c callChecker) checkNamed(e *expr) (Type, error) {
	a := e.args[0]
	if _, err := c.value(a); err != nil {
		return typeUint, err
	}
	if a.kind != exString {
		return typeUint, c.errorAt(a.Span, "%s() expects a string literal", e.name)
	}
	if e.name == "uaddr" {
		if t, done, err := c.fileVariable(e, a); done {
			return t, err
		}
	}
	if e.name != "reg" {
		addr, ok, _ := c.target.Lookup(a.text)
		if !ok {
			return typeUint, c.errorAt(a.Span, "Failed to resolve %s symbol: %s", map[string]string{"kaddr": "kernel", "uaddr": "user"}[e.name], a.text)
		}
		e.num = addr
		return typeUint, nil
	}
	for _, p := range c.points {
		if !p.hasGuest() {
			return typeUint, c.errorAt(e.Span, "reg() can not be used with '%s' probes", p.provider)
		}
	}
	name := a.text
	if name == "pc" { // bpftrace's name on all machines
		name = "ip"
	}
	i, ok := x86.FindPtReg(name)
	if !ok {
		return typeUint, c.errorAt(a.Span, "'%s' is not a valid register on this architecture (x86_64)", a.text)
	}
	e.num = uint64(8 * i)
	return typeUint, nil
}

// aggregation checks the value of a map that aggregates values.
func (c callChecker) aggregation(e *expr, k Kind) (Type, error) {
	if c.stored != e {
		return Type{}, c.errorAt(e.Span, "%s() must be assigned directly to a map", e.name).hint("@ = %s(...)", e.name)
	}
	t := Type{Kind: k, Size: 8, Signed: true}
	if k == Count {
		return t, nil
	}
	v, err := c.value(e.args[0])
	if err != nil {
		return t, err
	}
	if v.Kind != None && !v.isInt() {
		return t, c.errorAt(e.Span, "%s() only supports integer arguments (%s provided)", e.name, v)
	}
	t.Signed = v.Signed
	if k == TSeries {
		return c.series(e, t)
	}
	var ns []int64
	for _, a := range e.args[1:] {
		n, ok := c.constant(a)
		if !ok {
			return t, c.errorAt(a.Span, "%s() expects a number that is known before", e.name)
		}
		ns = append(ns, n)
	}
	switch k {
	case Hist:
		t.Size, t.Signed = 0, true
		if len(ns) > 0 {
			t.Size = int(ns[0])
		}
		if t.Size < 0 || t.Size > 5 {
			return t, c.errorAt(e.Span, "hist: bits %d must be 0..5", t.Size)
		}
	case LHist:
		t.Low, t.High, t.Step, t.Signed = ns[0], ns[1], ns[2], true
		switch {
		case t.Step < 1:
			return t, c.errorAt(e.args[3].Span, "lhist() step must be >= 1 (%d provided)", t.Step)
		case t.High <= t.Low:
			return t, c.errorAt(e.Span, "lhist() min must be less than max (provided min %d and max %d)", t.Low, t.High)
		case uint64(t.High-t.Low)/uint64(t.Step) > maxBuckets:
			return t, c.errorAt(e.Span, "lhist() too many buckets, must be <= %d (would need %d)", maxBuckets, uint64(t.High-t.Low)/uint64(t.Step))
		}
		t.High -= (t.High - t.Low) % t.Step // the last bucket begins where a whole one would
	}
	return t, nil
}
