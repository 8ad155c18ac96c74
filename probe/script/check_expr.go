package script

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// maxWhole is the largest structure or array that is a value, in bytes.
const maxWhole = 4096

// maxTuple is the largest tuple, in bytes.
const maxTuple = maxStrlen + maxWhole

// expr determines the type of an expression. It returns None if the type is not known yet.
func (c *checker) expr(e *expr) (Type, error) {
	t, err := c.typeOf(e)
	if e.raw && t.Kind == String && e.c != nil {
		if a, ok := types.Strip(e.c).(*btf.Array); ok {
			t = arrayOf(typeUintOf(1), int(a.Nelems))
		}
	}
	e.typ = t
	return t, err
}

func (c *checker) typeOf(e *expr) (Type, error) {
	switch e.kind {
	case exInt:
		switch {
		case e.c != nil:
			return Type{Kind: Int, Size: 8, Signed: e.num <= math.MaxInt64 || e.below, C: e.c}, nil
		case e.num > math.MaxInt64 && !e.below:
			return typeUint, nil
		}
		return literalType(int64(e.num)), nil
	case exString:
		return typeString(len(e.text) + 1), nil
	case exParam:
		if _, ok := c.constant(e); !ok {
			if n, ok := parseNumber(c.paramText(e)); ok { // a number without a sign
				*e = expr{kind: exInt, Span: e.Span, num: n}
				return c.typeOf(e)
			}
			*e = expr{kind: exString, Span: e.Span, text: c.paramText(e)}
			return c.typeOf(e)
		}
		return typeInt, nil
	case exVar:
		v := c.find(e.name)
		if v == nil {
			return Type{}, c.unknownNameError(e)
		}
		if v.typ.Kind == None && c.final {
			return Type{}, c.errorAt(e.Span, "Undefined or undeclared variable: %s", e.name).hint("it is declared, and nothing is ever assigned to it: write let %s = VALUE, or let %s: TYPE", e.name, e.name)
		}
		e.decl = v
		return v.typ, nil
	case exMap:
		m, err := c.mapKey(e)
		if err == nil && m.value.Kind == None && c.final {
			err = c.undefinedMapError(e.Span, e.name)
		}
		return m.value, err
	case exBuiltin:
		return c.builtin(e)
	case exCall:
		return c.calls().call(e)
	case exUnary:
		return c.unaryType(e)
	case exBinary:
		return c.binaryType(e)
	case exCond:
		return c.condType(e)
	case exCast:
		return c.castType(e)
	case exTuple:
		t := Type{Kind: Tuple, Names: e.names}
		for _, a := range e.args {
			et, err := c.value(a)
			if err != nil {
				return t, err
			}
			t.Elems = append(t.Elems, et)
		}
		if n := t.bytes(); n > maxTuple {
			return t, c.errorAt(e.Span, "a tuple of %d bytes: at most %d", n, maxTuple)
		}
		return t, nil
	case exField:
		t, err := c.field(e)
		if _, reference := types.Reference(e.c); reference && err == nil && e.isArgument() && !e.followed {
			// A reference has the value of its target.
			of := *e
			of.followed = true
			*e = expr{kind: exUnary, name: "*", Span: e.Span, raw: e.raw, args: []*expr{&of}}
			return c.unaryType(e)
		}
		return t, err
	case exIndex:
		return c.index(e)
	case exBlock:
		return c.block(e, false)
	case exType:
		return Type{}, c.errorAt(e.Span, "%s", onlyTypeArg)
	case exIncDec:
		return c.incDecType(e)
	}
	panic("BUG: no such expression")
}

// literalType is the type of a literal: a number of 64 bits, of which sizeof says how
// many a value needs, as in bpftrace.
func literalType(n int64) Type {
	t := typeInt
	t.Least = 8
	switch {
	case n == int64(int8(n)):
		t.Least = 1
	case n == int64(int16(n)):
		t.Least = 2
	case n == int64(int32(n)):
		t.Least = 4
	}
	return t
}

func (c *checker) incDecType(e *expr) (Type, error) {
	of := e.args[0]
	t, err := c.value(of)
	if err != nil {
		return t, err
	}
	if t.Kind == None {
		t = typeInt
	}
	t.Least = 0
	if !t.is(Int, Pointer) {
		return t, c.errorAt(e.Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
	}
	if of.kind == exVar {
		return t, c.widen(e.Span, of, of.decl, t)
	}
	return t, c.mapValue(e.Span, of, t)
}

func (c *checker) unaryType(e *expr) (Type, error) {
	switch e.name {
	case "*":
		return c.dereference(e)
	case "&":
		return c.addressOf(e)
	case "comptime":
		return c.comptimeType(e)
	}
	t, err := c.value(e.args[0])
	if err != nil || t.Kind == None {
		return t, err
	}
	switch {
	case t.Kind == Pointer && e.name != "!":
		return t, c.errorAt(e.Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
	case !t.isInt():
		return t, c.errorAt(e.Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
	case e.name == "!":
		return typeBool, nil
	case e.name == "-":
		if of := e.args[0]; of.kind == exInt && of.c == nil && of.num <= 1<<63 {
			return literalType(-int64(of.num)), nil
		}
		if large, err := c.checkOverflow(e); err != nil || large {
			return typeUint, err
		}
		return typeInt, nil
	}
	return Type{Kind: Int, Size: 8, Signed: !t.unsigned() || t.Size < 8}, nil
}

// isLiteral reports whether an operand is a literal that fits both signed and
// unsigned numbers.
func isLiteral(e *expr) bool {
	return (e.kind == exInt || e.kind == exParam) && e.num <= math.MaxInt64
}

// signedness returns whether the operation on two operands is signed. As in C (ISO C,
// 6.3.1.8) it is unsigned if one operand is an unsigned number of 64 bits, or both
// are unsigned; literals adapt to the other operand.
func signedness(a, b *expr) bool {
	x, y := a.typ.unsigned(), b.typ.unsigned()
	switch {
	case isLiteral(a) && isLiteral(b):
		return true
	case isLiteral(a):
		return !y
	case isLiteral(b):
		return !x
	}
	return !(x && (y || a.typ.Size == 8) || y && b.typ.Size == 8)
}

// divides reports whether an operator is undefined for a second operand of 0.
func divides(op string) bool { return op == "/" || op == "%" }

func isComparison(op string) bool {
	switch op {
	case "==", "!=", "<", "<=", ">", ">=":
		return true
	}
	return false
}

func (c *checker) binaryType(e *expr) (Type, error) {
	a, b := e.args[0], e.args[1]
	at, err := c.value(a)
	if err != nil {
		return at, err
	}
	bt, err := c.value(b)
	switch {
	case err != nil:
		return bt, err
	case e.foldText():
		return c.typeOf(e)
	case isComparison(e.name) && at.is(String, Tuple, Array, Struct, Buffer) && at.Kind == bt.Kind:
		return c.comparison(e, at, bt)
	case isComparison(e.name), e.name == "&&", e.name == "||":
		if at.Kind == None || bt.Kind == None {
			return typeBool, nil
		}
	}
	for i, t := range []Type{at, bt} {
		if t.Kind != None && !t.isInt() {
			if at.Kind != bt.Kind && bt.Kind != None && at.Kind != None {
				return t, c.errorAt(e.Span, "Type mismatch for '%s': comparing or combining '%s' with '%s'", e.name, at, bt)
			}
			return t, c.errorAt(e.args[i].Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
		}
	}
	if divides(e.name) {
		if err := c.division(e); err != nil {
			return at, err
		}
	}
	if large, err := c.checkOverflow(e); err != nil || large {
		return typeUint, err
	}
	switch {
	case isComparison(e.name), e.name == "&&", e.name == "||":
		return typeBool, nil
	case at.Kind == Pointer || bt.Kind == Pointer:
		return c.pointerMath(e, at, bt)
	case e.name == "-":
		return typeInt, nil
	case e.name == "<<", e.name == ">>":
		return Type{Kind: Int, Size: 8, Signed: !at.unsigned()}, nil
	case at.Kind == None:
		return Type{Kind: Int, Size: 8, Signed: !bt.unsigned()}, nil
	case bt.Kind == None:
		return Type{Kind: Int, Size: 8, Signed: !at.unsigned()}, nil
	}
	return Type{Kind: Int, Size: 8, Signed: signedness(a, b)}, nil
}

// isTruth reports whether it is true or false.
func (e *expr) isTruth() bool {
	return e.kind == exCast && e.typ.Kind == Bool && e.args[0].kind == exInt
}

// division checks the divisor of / or %: a constant other than 0 needs no site. A
// division of a constant by constant 0 is rejected, as by bpftrace, which calculates
// constants at compile time.
func (c *checker) division(e *expr) error {
	n, known := c.constant(e.args[1])
	if known && n != 0 {
		return nil
	}
	if _, both := c.constant(e.args[0]); known && both || e.args[0].isTruth() && e.args[1].isTruth() && e.args[1].args[0].num == 0 {
		return c.errorAt(e.Span, "Divide or modulo by 0").hint("the compiler calculates the result of constants, and a division by 0 has no result")
	}
	divideSite(c, e)
	return nil
}

func (c *checker) condType(e *expr) (Type, error) {
	if err := c.condition(e.args[0]); err != nil {
		return Type{}, err
	}
	at, err := c.value(e.args[1])
	if err != nil {
		return at, err
	}
	bt, err := c.value(e.args[2])
	if err != nil {
		return bt, err
	}
	t, ok := unify(at, bt)
	if !ok {
		return t, c.errorAt(e.Span, "Ternary return type mismatch: have '%s' and '%s'", at, bt)
	}
	if t.Kind == Int {
		t = Type{Kind: Int, Size: 8, Signed: signedness(e.args[1], e.args[2])}
	}
	return t, nil
}

// builtin is the type of a name.
func (c *checker) builtin(e *expr) (Type, error) {
	b, ok := builtins[e.name]
	if !ok {
		if c.enumerator(e) {
			return c.typeOf(e)
		}
		if members[e.name] != nil {
			name, of := e.name, members[e.name]
			e.member()
			t, err := c.typeOf(e)
			if err != nil {
				err = c.errorAt(e.Span, "%s is not known of this guest: its tasks have no %s.%s", name, of[0], of[1]).hint("Linux guests whose kernel has types (CONFIG_DEBUG_INFO_BTF) tell it")
			}
			return t, err
		}
		if _, isCall := calls[e.name]; isCall {
			return Type{}, c.errorAt(e.Span, "%s is a function: %s(...)", e.name, e.name)
		}
		err := c.unknownError(e, "identifier")
		for _, p := range c.points {
			f := c.prototype(p)
			if f.FuncProto != nil && slices.ContainsFunc(f.Params, func(x btf.FuncParam) bool { return x.Name == e.name }) {
				return Type{}, err.hint("did you mean args.%s?", e.name)
			}
		}
		return Type{}, err
	}
	for _, p := range c.points {
		switch {
		case b.where != anywhere && !p.atFunction():
			return b.typ, c.errorAt(e.Span, "The %s builtin can not be used with '%s' probes", e.name, p.provider)
		case p.atEvent() && strings.HasPrefix(e.name, "arg") && e.name != "args":
			return b.typ, c.errorAt(e.Span, "The %s builtin can not be used with 'tracepoint' probes", e.name).hint("write args.FIELD; rawtracepoint has the tracepoint's arguments")
		case b.where == atReturns && !p.atReturn():
			return b.typ, c.errorAt(e.Span, "The %s builtin can only be used with 'kretprobe' probes", e.name)
		case len(e.name) == 4 && e.name >= "arg6" && e.name <= "arg9" && p.atReturn():
			return b.typ, c.errorAt(e.Span, "The %s builtin can not be used with 'kretprobe' probes", e.name).hint("of a call that returns arg0 to arg5 are known")
		}
	}
	if err := c.taskKnown(e); err != nil {
		return b.typ, err
	}
	if err := c.checkStaticArg(e); err != nil {
		return b.typ, err
	}
	t := b.typ
	switch e.name {
	case "args":
		return c.recordOfArgs(e)
	case "config":
		return c.calls().configRecord(e)
	case "default_str_length":
		*e = expr{kind: exInt, Span: e.Span, num: uint64(c.config.maxString)}
		return c.typeOf(e)
	case "retval":
		return c.returnType(), nil
	case "curtask":
		return c.taskType(), nil
	case "kstack", "ustack", "dw_ustack":
		return c.calls().stack(e)
	case "jiffies":
		if e.num, ok, _ = c.target.Lookup("jiffies_64"); !ok {
			return t, c.errorAt(e.Span, "the guest's kernel has no symbol jiffies_64").hint("write nsecs")
		}
		e.site = c.addSite(readAt(c.points, e))
	case "probe", "func", "probetype":
		for _, p := range c.points {
			t.Size = max(t.Size, len(constantText(e.name, p))+1)
		}
		t.Size = max(t.Size, 1)
	case "arg5", "arg6", "arg7", "arg8", "arg9":
		if e.name == "arg5" && !slices.ContainsFunc(c.points, func(p *point) bool { return p.atTracepoint() }) {
			break
		}
		e.site = c.addSite(readAt(c.points, e))
	}
	return t, nil
}

// taskKnown reports that a builtin about the guest's task has no value in this guest:
// an error with strict, and otherwise a warning, once for each part of a task.
func (c *checker) taskKnown(e *expr) error {
	part, ok := ofTask[e.name]
	if !ok || !slices.ContainsFunc(c.points, func(p *point) bool { return p.hasGuest() }) {
		return nil
	}
	why, cure := c.target.MissingReason(part)
	if why == "" {
		return nil
	}
	err := c.errorAt(e.Span, "%s is not known in this guest: %s", e.name, why).hint("%s", cure)
	if c.config.strict {
		return err
	}
	if c.final && !c.lacking[part] {
		c.lacking[part] = true
		err.Message = fmt.Sprintf("%s and other data of the task are 0 or empty in this guest: %s", e.name, why)
		err.AtRunTime = true
		c.warnings = append(c.warnings, err)
	}
	return nil
}

// maxName bounds names in strings, which are part of keys.
const maxName = 255

// constantText is the value of the builtins probe and func at a place.
func constantText(name string, p *point) string {
	text := p.probe
	if p.provider == "begin" || p.provider == "end" {
		text = p.provider // in any spelling
	}
	switch {
	case name == "func":
		text = p.fn
	case name == "probetype" && (p.provider == "begin" || p.provider == "end"):
		text = "special"
	case name == "probetype":
		text = p.provider
	}
	return text[:min(len(text), maxName)]
}
