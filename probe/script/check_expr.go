package script

import (
	"fmt"
	"math"
	"slices"

	"github.com/cilium/ebpf/btf"

	"github.com/guestprobe/guestprobe/guest/types"
)

// maxTuple is the largest tuple, in bytes.
const maxTuple = 4096

// expr finds the type of an expression. None is what is not known yet.
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
		return typeInt, nil
	case exString:
		return typeString(len(e.text) + 1), nil
	case exParam:
		if _, ok := c.constant(e); !ok {
			return Type{}, c.at(e.Span, "$%d is %q, which is not a number", e.num, c.params[e.num-1]).hint("str($%d) is its text", e.num)
		}
		return typeInt, nil
	case exVar:
		v := c.find(e.name)
		if v == nil {
			return Type{}, c.undefined(e)
		}
		if v.typ.Kind == None && c.final {
			return Type{}, c.at(e.Span, "Undefined or undeclared variable: %s", e.name).hint("it is declared, and nothing is ever assigned to it: write let %s = VALUE, or let %s: TYPE", e.name, e.name)
		}
		e.decl = v
		return v.typ, nil
	case exMap:
		m, err := c.mapKey(e)
		if err == nil && m.value.Kind == None && c.final {
			err = c.undefinedMap(e.Span, e.name)
		}
		return m.value, err
	case exBuiltin:
		return c.builtin(e)
	case exCall:
		return c.call(e)
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
			return t, c.at(e.Span, "a tuple of %d bytes: at most %d", n, maxTuple)
		}
		return t, nil
	case exField:
		t, err := c.field(e)
		if _, reference := types.Reference(e.c); reference && err == nil && e.isArgument() && !e.followed {
			// The value of a reference is that of what it refers to.
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
		return c.namedType(e.cast)
	case exIncDec:
		return c.incDecType(e)
	}
	panic("BUG: no such expression")
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
	if !t.is(Int, Pointer) {
		return t, c.at(e.Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
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
	}
	t, err := c.value(e.args[0])
	if err != nil || t.Kind == None {
		return t, err
	}
	switch {
	case t.Kind == Pointer && e.name != "!":
		return t, c.at(e.Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
	case !t.isInt():
		return t, c.at(e.Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
	case e.name == "!":
		return typeBool, nil
	case e.name == "-":
		return typeInt, nil
	}
	return Type{Kind: Int, Size: 8, Signed: !t.unsigned() || t.Size < 8}, nil
}

// isLiteral reports whether an operand is a number that is written out and fits either
// sign.
func isLiteral(e *expr) bool {
	return (e.kind == exInt || e.kind == exParam) && e.num <= math.MaxInt64
}

// signedness is whether two operands have a sign together. As in C (ISO C, 6.3.1.8) they
// have none where one is of 64 bits and has none, or both have none; literals take the
// other's.
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

// divides reports whether an operator has no result for a second operand of 0.
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
	case isComparison(e.name) && at.is(String, Tuple, Array, Struct) && at.Kind == bt.Kind:
		return c.comparison(e, at, bt)
	case isComparison(e.name), e.name == "&&", e.name == "||":
		if at.Kind == None || bt.Kind == None {
			return typeBool, nil
		}
	}
	for i, t := range []Type{at, bt} {
		if t.Kind != None && !t.isInt() {
			if at.Kind != bt.Kind && bt.Kind != None && at.Kind != None {
				return t, c.at(e.Span, "Type mismatch for '%s': comparing or combining '%s' with '%s'", e.name, at, bt)
			}
			return t, c.at(e.args[i].Span, "The %s operator can not be used on a value of type '%s'", e.name, t)
		}
	}
	if divides(e.name) {
		if err := c.division(e); err != nil {
			return at, err
		}
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

// division checks the divisor of / or %: a constant that is not 0 needs no site, and of two constants it is refused,
// as by bpftrace, which calculates them when it compiles.
func (c *checker) division(e *expr) error {
	n, known := c.constant(e.args[1])
	if known && n != 0 {
		return nil
	}
	if _, both := c.constant(e.args[0]); known && both {
		return c.at(e.Span, "Divide or modulo by 0").hint("the result of constants is calculated when the script is compiled, and there is none")
	}
	c.addSite(e.Span, siteDivide)
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
		return t, c.at(e.Span, "Ternary return type mismatch: have '%s' and '%s'", at, bt)
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
			e.member()
			return c.typeOf(e)
		}
		if _, isCall := calls[e.name]; isCall {
			return Type{}, c.at(e.Span, "%s is a function: %s(...)", e.name, e.name)
		}
		return Type{}, c.unknown(e, "identifier")
	}
	for _, p := range c.points {
		switch {
		case b.where != anywhere && !p.atFunction():
			return b.typ, c.at(e.Span, "The %s builtin can not be used with '%s' probes", e.name, p.provider)
		case b.where == atReturns && !p.atReturn():
			return b.typ, c.at(e.Span, "The %s builtin can only be used with 'kretprobe' probes", e.name)
		case len(e.name) == 4 && e.name[:3] == "arg" && e.name[3] > '5' && p.atReturn():
			return b.typ, c.at(e.Span, "The %s builtin can not be used with 'kretprobe' probes", e.name).hint("of a call that returns arg0 to arg5 are known")
		}
	}
	if err := c.taskKnown(e); err != nil {
		return b.typ, err
	}
	t := b.typ
	switch e.name {
	case "args":
		return t, c.at(e.Span, "args has no value of its own").hint("write a parameter's name, as args.count")
	case "retval":
		return c.returned(), nil
	case "curtask":
		return c.taskType(), nil
	case "kstack", "ustack", "dw_ustack":
		return c.stack(e)
	case "jiffies":
		if e.num, ok, _ = c.target.Lookup("jiffies_64"); !ok {
			return t, c.at(e.Span, "the guest's kernel has no symbol jiffies_64").hint("write nsecs")
		}
		e.site = c.addSite(e.Span, "")
	case "probe", "func", "probetype":
		for _, p := range c.points {
			t.Size = max(t.Size, len(c.constantText(e.name, p))+1)
		}
		t.Size = max(t.Size, 1)
	case "arg6", "arg7", "arg8", "arg9":
		e.site = c.addSite(e.Span, "")
	}
	return t, nil
}

// taskKnown says of a builtin that is about the guest's task that it has no value in this guest: with strict it is
// refused, and else warned of, once for each part of a task.
func (c *checker) taskKnown(e *expr) error {
	part, ok := ofTask[e.name]
	if !ok || !slices.ContainsFunc(c.points, func(p *point) bool { return p.hasGuest() }) {
		return nil
	}
	why, cure := c.target.Lacks(part)
	if why == "" {
		return nil
	}
	err := c.at(e.Span, "%s is not known in this guest: %s", e.name, why).hint("%s", cure)
	if c.config.strict {
		return err
	}
	if c.final && !c.lacking[part] {
		c.lacking[part] = true
		err.Message = fmt.Sprintf("%s, and what else is of the task, is always 0 or empty in this guest: %s", e.name, why)
		err.AtRunTime = true
		c.warnings = append(c.warnings, err)
	}
	return nil
}

// maxName bounds names in strings, which are part of keys.
const maxName = 255

// constantText is what the builtins probe and func are at a place.
func (c *checker) constantText(name string, p *point) string {
	text := p.probe
	if p.provider == "begin" || p.provider == "end" {
		text = p.provider // however it is written
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
