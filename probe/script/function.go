package script

import (
	"strings"

	"golang.org/x/sys/unix"
)

// taiOffset is the difference from UTC to TAI, in nanoseconds (since 2017).
const taiOffset = 37_000_000_000

// maxConcat bounds the result of str_concat of strings that are made by it.
const maxConcat = 1024

// function checks calls with arguments that are not simply numbers; done is false for
// other calls.
func (c callChecker) function(e *expr) (t Type, done bool, err error) {
	switch e.name {
	case "pid", "tid":
		if a := e.args[0]; a.kind != exBuiltin || a.name != "init" && a.name != "curr_ns" {
			return t, true, c.errorAt(a.Span, "%s() expects init or curr_ns", e.name).hint("write %s", e.name)
		}
		return builtins[e.name].typ, true, c.taskKnown(e)
	case "nsecs":
		if a := e.args[0]; a.kind != exBuiltin || !strings.Contains(" monotonic boot tai sw_tai ", " "+a.name+" ") {
			return t, true, c.errorAt(a.Span, "Invalid timestamp mode: want monotonic, boot, tai or sw_tai")
		}
		return typeUint, true, nil
	case "strftime":
		return c.strftime(e)
	case "strncmp", "memcmp":
		n, ok := c.constant(e.args[2])
		if !ok || n < 0 || n > 1024 {
			return t, true, c.errorAt(e.args[2].Span, "%s() expects a number from 0 to 1024 that is known before", e.name)
		}
		e.num = uint64(n)
		return typeInt, true, c.strings(e, e.args[:2])
	case "strcontains":
		return typeBool, true, c.strings(e, e.args)
	case "strstr":
		return typeInt, true, c.strings(e, e.args)
	case "strcap":
		err = c.strings(e, e.args)
		e.num = uint64(e.args[0].typ.Size)
		return typeInt, true, err
	case "str_concat":
		if err = c.strings(e, e.args); err != nil {
			return t, true, err
		}
		n := max(e.args[0].typ.Size+e.args[1].typ.Size-1, 1)
		if n < maxConcat {
			n++ // the first one may have no final zero, if it was truncated
		}
		if n > maxConcat && c.passes > growing { // it is made from itself, and truncated to its size
			n = maxConcat
		}
		if n == maxConcat {
			c.addSite(failureAt(e.Span, siteCut))
		}
		if n > maxStrlen {
			return t, true, c.errorAt(e.Span, "a string of %d bytes: at most %d", n, maxStrlen)
		}
		return typeString(n), true, nil
	case "ntop":
		return c.ntop(e)
	case "macaddr":
		return c.macaddr(e)
	case "ppid", "pcomm", "leader_tid", "leader_comm":
		e.member()
		t, err = c.typeOf(e)
		return t, true, err
	case "bswap":
		t, err = c.number(e, e.args[0])
		return typeUintOf(max(t.Size, 1)), true, err
	case "is_err":
		_, err = c.number(e, e.args[0])
		return typeBool, true, err
	case "kptr", "uptr":
		t, err = c.number(e, e.args[0])
		return t, true, err
	case "is_ptr", "is_str", "is_integer", "is_unsigned_integer", "is_literal", "is_array":
		return c.question(e)
	}
	return t, false, nil
}

// number checks a numeric argument.
func (c callChecker) number(e, a *expr) (Type, error) {
	t, err := c.value(a)
	if err == nil && t.Kind != None && !t.isInt() {
		err = c.errorAt(a.Span, "%s() only supports number arguments (%s provided)", e.name, t)
	}
	return t, err
}

// strings checks arguments that are strings.
func (c callChecker) strings(e *expr, args []*expr) error {
	for _, a := range args {
		t, err := c.value(a)
		if err != nil {
			return err
		}
		if !t.is(String, None) {
			return c.errorAt(a.Span, "%s() expects a string (%s provided)", e.name, t).hint("str(POINTER) reads one")
		}
	}
	return nil
}

func (c callChecker) strftime(e *expr) (t Type, done bool, err error) {
	format, at := e.args[0], e.args[1]
	if format.kind != exString {
		return t, true, c.errorAt(format.Span, "strftime() expects a string literal as its first argument")
	}
	if n, ok := c.constant(at); ok && n < 0 {
		return t, true, c.errorAt(at.Span, "strftime() can not take a negative timestamp")
	}
	_, err = c.number(e, at)
	return Type{Kind: Timestamp, Size: 8, Format: format.text}, true, err
}

func (c callChecker) ntop(e *expr) (t Type, done bool, err error) {
	addr := e.args[len(e.args)-1]
	of, err := c.value(addr)
	switch n := addr.octets(); {
	case err != nil:
		return t, true, err
	case of.isInt(), of.Kind == None, n == 4:
		e.num = unix.AF_INET
	case n == 16:
		e.num = unix.AF_INET6
	default:
		return t, true, c.errorAt(addr.Span, "ntop() expects a number or an array of 4 or 16 bytes (%s provided)", of)
	}
	e.site = c.addSite(readAt(c.points, e))
	if len(e.args) == 2 {
		n, known := headers[e.args[0].name]
		if v, ok := c.constant(e.args[0]); ok {
			n, known = uint64(v), true
		}
		switch {
		case known && n != e.num:
			return t, true, c.errorAt(e.args[0].Span, "ntop() of a value of type '%s' is of the other family", of).hint("write ntop(ADDRESS)")
		case !known: // its value is not known: only the size counts
			if _, err = c.number(e, e.args[0]); err != nil {
				return t, true, err
			}
		}
	}
	return Type{Kind: Inet, Size: 24}, true, nil
}

// octets is the number of bytes of a value that is an array of bytes, or 0; a place
// in memory may have a string type instead.
func (e *expr) octets() int {
	t := e.typ
	switch {
	case t.Kind == Array && t.Elems[0].sizeInC() == 1, t.Kind == String && e.isPlace():
		return t.sizeInC()
	}
	return 0
}

func (c callChecker) macaddr(e *expr) (t Type, done bool, err error) {
	a := e.args[0]
	of, err := c.value(a)
	if err == nil && !of.isInt() && of.Kind != None && a.octets() != 6 {
		err = c.errorAt(a.Span, "macaddr() expects an array of 6 bytes, or where they are (%s provided)", of)
	}
	e.site = c.addSite(readAt(c.points, e))
	return Type{Kind: MAC, Size: 8}, true, err
}

// members are the builtins that are members of the current task's structure.
var members = map[string][]string{
	"ppid": {"real_parent", "pid"}, "pcomm": {"real_parent", "comm"}, "leader_tid": {"group_leader", "pid"}, "leader_comm": {"group_leader", "comm"},
}

// member replaces such a builtin by the member, of the current task or of another
// one.
func (e *expr) member() {
	path, of := members[e.name], &expr{kind: exBuiltin, name: "curtask", Span: e.Span}
	if len(e.args) == 1 {
		of = e.args[0]
	}
	*e = expr{kind: exField, Span: e.Span, name: path[1], args: []*expr{{kind: exField, Span: e.Span, name: path[0], args: []*expr{of}}}}
}

// question evaluates calls that ask about a type.
func (c callChecker) question(e *expr) (Type, bool, error) {
	a := e.args[0]
	t, err := c.value(a)
	yes := false
	switch e.name {
	case "is_ptr":
		yes = t.Kind == Pointer
	case "is_array":
		yes = t.Kind == Array
	case "is_str":
		yes = t.Kind == String
	case "is_integer":
		yes = t.Kind == Int
	case "is_unsigned_integer":
		yes = t.Kind == Int && !t.Signed
	case "is_literal":
		_, number := c.constant(a)
		yes = number || a.kind == exString
	}
	e.num = uint64(signIndex(yes))
	return typeBool, true, err
}
