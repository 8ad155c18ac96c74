package script

import (
	"strings"
	"testing"
)

// TestTypeArguments: macros of one name are chosen by their parameters, types are arguments of macros, and typeinfo names types.
func TestTypeArguments(t *testing.T) {
	wantOutputs(t, [][2]string{
		// By the number and the kinds of parameters; the one that takes an argument as what it is goes first.
		{`macro what(x) { "value" } macro what($x) { "variable" } macro what(@x) { "map" } macro what(x, y) { "two" } begin { $a = 1; @m = 1; print((what(1), what($a), what(@m), what($a, 2))); clear(@m); }`, "(value, variable, map, two)"},
		{`macro pick($x, y) { $x - y } macro pick(x, $y) { x * $y } begin { $a = 7; print((pick($a, 2), pick(3, $a))); }`, "(5, 21)"},
		{`macro none() { 1 } macro none(x) { x + 1 } begin { print((none, none(1))); }`, "(1, 2)"},
		// A type.
		{`macro size(t) { sizeof(t) } macro ref(t) { sizeof(t *) } macro four(t) { sizeof(t[4]) } begin { print((size(typeof(uint16)), ref(typeof(uint16)), four(typeof(uint16)), size(1 == 1))); }`, "(2, 8, 8, 1)"},
		{`macro low(t, x) { (t)x } macro first(t, p) { sizeof(*(t *)p) } begin { print(low(typeof(uint8), 0x1ff)); print(first(typeof(uint32), 4096)); }`, "255\n4"},
		{`macro low(t, x) { (typeof(t))x } macro zero(t) { let $v: t = 0; sizeof($v) } begin { print((low(typeof(int8), 0xff), zero(typeof(uint16)))); }`, "(-1, 2)"},
		{`struct pair { int a; long b; } macro at(t, f) { offsetof(t, f) } macro inside(t) { at(typeof(t), b) } begin { print((at(typeof(struct pair), b), inside(typeof(struct pair)))); }`, "(8, 8)"},
		{`struct pair { int a; long b; } macro size(t) { sizeof(struct t) } begin { print(size(typeof(pair))); }`, "16"},
		{`macro size(t) { sizeof(t) } macro twice(t) { 2 * size(t) } begin { $a = (uint32)1; print((twice(typeof($a)), twice(typeof(uint16 *)))); }`, "(8, 16)"},
		{`begin { print((sizeof(int32 *[4]), sizeof((int32[4] *)0))); }`, "(32, 8)"},
		{`struct pair { int a; struct { int x; int y; } b; } macro at(t, f) { offsetof(t, f) } begin { print((at(typeof(struct pair), b.y), at(typeof(struct pair), a))); }`, "(8, 0)"},
		// Of a map with keys it is the key's.
		{`begin { @a["hi", 2] = 1; let $x: typeof(@a) = ("hello", (int16)1); @a["hello", (int32)2] = 2; print($x); clear(@a); }`, "(hello, 1)"},
		{`begin { let $a: int8; $a = (typeof(@x))2; @x[(int8)2] = (uint32)10; print((sizeof(typeof(@x)), typeinfo(@x).full_type, sizeof(@x[(int8)1]))); clear(@x); }`, "(1, int8, 4)"},
		{`begin { if comptime (typeinfo(@a).full_type == "uint32") { @a[(uint32)2] = 2; } @a[(uint32)1] = 1; }`, "@a[1]: 1\n@a[2]: 2"},
		{`begin { let $a: typeof(@x); @x = 1; $a = 2; print($a); clear(@x); }`, "2"},
		{`begin { $a = "hi"; let $x: typeof($a); $a = "a longer text"; $x = $a; print($x); }`, "a longer text"},
		// typeinfo.
		{`begin { $a = (uint16)1; @m[1] = "abc"; print((typeinfo($a).full_type, typeinfo(@m[1]).base_type, typeinfo((1, "a")).full_type)); clear(@m); }`, "(uint16, string, (int64,string[2]))"},
		{`begin { $a = "x"; if comptime (typeinfo($a).base_type == "string") { print(strlen($a)); } else { print($a + 1); } }`, "1"},
		{`macro show(x) { if comptime (typeinfo(x) == typeinfo("abc")) { print(strlen(x)); } else { print(1 + 1); } } begin { show("abc"); show((uint8)1); }`, "3\n2"},
		{`struct pair { int a; long b; } macro name(t) { typeinfo(t).full_type } begin { print((name(typeof(struct pair)), name(typeof(uint8 *)), typeinfo((a=1)).base_type)); }`, "(struct pair, uint8 *, record)"},
		{`begin { @c = count(); print(typeinfo(@c).full_type); print(typeinfo(1)); clear(@c); }`, "count_t\n{ .btf_id = 0, .base_type = int, .full_type = int64 }"},
		{`begin { print(comptime (5, 2 + 1).1); }`, "3"},
		// What ends the compilation.
		{`macro only(x) { fail("no %s", typeinfo(x).full_type) } macro only($x) { $x } begin { $a = 3; print(only($a)); if ($# > 2) { fail("%d parameters", $#); } else { print($#); } }`, "3\n0"},
		{`begin { $a = (uint16)1; static_assert(sizeof($a) == 2, "wrong"); assert_str("a"); 1 ? print(1) : fail("never"); }`, "1"},
	})
	for _, c := range [][2]string{
		{`macro f($x) { $x } macro f(@x) { @x } begin { print(f(1)); }`, "1:55-56: ERROR: Mismatched arg. f() expects a variable for arg $x but got an expression"},
		{`macro f(x) { x } macro f(x, y) { x + y } begin { print(f(1, 2, 3)); }`, "wrong number of arguments. Expected: 2 but got 3"},
		{`macro f(pid) { 1 } begin { print(f(1)); }`, "1:9-12: ERROR: builtin 'pid' can't be used as a macro argument"},
		{`macro f($x) { let $x = 1; $x } begin { $y = 1; print(f($y)); }`, "Variable declaration shadows macro arg $x"},
		{`macro f(x) { x + 1 } begin { print(f(typeof(uint8))); }`, "When used as a call argument, `typeof` builtin only valid"},
		{`begin { print(strlen(typeof(uint8))); }`, "When used as a call argument, `typeof` builtin only valid"},
		{`macro f(t) { sizeof(t *) } begin { print(f(1)); }`, "1:21-24: ERROR: Invalid replacement for macro 'f' type parameter 't' in the type 't'"},
		{`macro f(t) { sizeof(struct t) } begin { print(f(typeof(uint8))); }`, "in the type 'struct t'"},
		{`macro f(t) { sizeof(struct t) } begin { print(f(typeof(nosuch))); }`, `Cannot resolve unknown type "struct nosuch"`},
		{`macro f(t) { sizeof(t[70000]) } begin { print(f(typeof(uint8))); }`, "0 to 65536 elements"},
		{`begin { print(typeinfo(1).nosuch); }`, "Record does not contain a field named 'nosuch'"},
		{`begin { if ($1 < 2) { fail("%s: %04d of %x%%", "few", $1, 255); } }`, "1:23-63: ERROR: few: 0000 of ff%"},
		{`begin { $a = 1; if ($a) { fail("reached"); } }`, "1:27-42: ERROR: reached"},
		{`begin { fail("%d"); }`, "fewer arguments than its format"},
		{`begin { fail("%d", "x"); }`, "%d wants a number"},
		{`begin { fail("x", 1); }`, "more arguments than its format"},
		{`begin { $a = nsecs; fail("%d", $a); }`, "only accepts literals"},
		{`begin { static_assert(sizeof(uint16) == 4, "the size"); }`, "1:9-55: ERROR: the size"},
		{`begin { static_assert(nsecs == 4, "x"); }`, "Unable to resolve comptime expression"},
		{`begin { assert_str(1); }`, "string-like values must be"},
		{`begin { print(config.nosuch); }`, "Record does not contain a field named 'nosuch'"},
		{`config = { license = "none" } begin { }`, "1:22-28: ERROR: Invalid value for license. Found: none"},
		{`begin { print(1_); }`, `invalid number "1_"`},
		{`begin { print(1lul); }`, `invalid number "1lul"`},
	} {
		if _, err := runScript(t, c[0], nil, false, 0, readFile()...); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s\nerror %v\nwant %s", c[0], err, c[1])
		}
	}
}

// TestUnreachable warns of each statement after exit, return, break and continue.
func TestUnreachable(t *testing.T) {
	for text, want := range map[string]string{
		`begin { exit(); print(1); }`:                                        "1:17-25: WARNING: Unreachable statement",
		`begin { $i = 0; while ($i < 3) { $i++; continue; print(1); } }`:     "1:50-58: WARNING: Unreachable statement",
		`begin { $i = 0; while ($i < 3) { $i++; if (1) { break; } $i++; } }`: "",
		`begin { if (1) { return; } print(1); }`:                             "",
	} {
		r, err := runScript(t, text, nil, false, 0, readFile()...)
		if err != nil || want == "" && r.warnings != "" || !strings.Contains(r.warnings, want) {
			t.Errorf("%s: %v, warnings %q, want %q", text, err, r.warnings, want)
		}
	}
}
