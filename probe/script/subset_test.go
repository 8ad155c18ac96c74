package script

import (
	"regexp"
	"strings"
	"testing"
)

// TestSubset has a script for each form of the language.
func TestSubset(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		// Programs, comments, blanks.
		{"#!/usr/bin/env guestprobe\n// one\n/* two\n */ config = { max_map_keys=10; print_maps_on_exit=false } let @a = hash(3); macro m() { 1 } BEGIN{@a[1]=m();print(@a)}BEGIN{print(2)}", "@a[1]: 1\n2"},
		{"config = { max_strlen = 9, } BEGIN { }", `ERROR: syntax error, unexpected ",", expecting ";"`},
		{"config={BPFTRACE_MAX_MAP_KEYS=1}BEGIN{@[1]=1;@[2]=2;}", "@[1]: 1"},
		{"let @a = lruhash(2); let @b = percpulruhash(2); BEGIN { @a[1] = 1; @a[2] = 2; @a[3] = 3; @b[1] = count(); @b[2] = count(); @b[3] = count(); print((len(@a), len(@b))); clear(@a); clear(@b); }", "(2, 2)"},
		// Attach points and predicates.
		{"BEGIN,END { print(probe); }", "begin\nend"},
		{"kprobe:vfs_read, k:do_sys_openat2 /arg2 == 100 / { print(func) }", "vfs_read"},
		{"kprobe:vfs_read /arg2 / 50 == 2 && (4 / 2) == 2/ { print(1) }", "1"},
		{"kprobe:vfs_read /arg2/ { print(1) } kprobe:vfs_read /!arg2/{ print(2) }", "1"},
		{"kprobe:vmlinux:vfs_read,kprobe:0xffffffff81310000 { print(1) }", "1"},
		{"kprobe:vfs_read,kprobe:0xffffffff81310000 { print(sizeof(func)) }", "9"}, // of both it is the name
		{"kprobe:vfs_read,kprobe:0xffffffff81310000+4 { print((sizeof(func), sizeof(probe))) }", "(9, 28)"},
		{"enum { A = -1, B, C = 5 }; enum e { D = -2 }; BEGIN { print((A, B, A < B, C * A, D < 0, D + 1, (D, 1))); }", "(A, B, true, -5, true, -1, (D, 1))"},
		// Statements.
		{"BEGIN { $x = 1; $x++; ++$x; $x--; --$x; @y++; --@y; @z[1]++; print(($x, @y, @z[1])); clear(@y); clear(@z); }", "(1, 0, 1)"},
		{"BEGIN { let $x; if (1) { $x = 5; } print($x); let $y = $x + 1; print($y); let $z : int64; $z += 2; print($z) }", "5\n6\n2"},
		{"BEGIN { if (0) { print(1); } else if (1) { print(2); } else { print(3); } if 1 { print(4) } else { } if (0) { } else { print(5) } }", "2\n4\n5"},
		{"BEGIN { $i = 0; unroll (2) { $i += 2; if ($i > 3) { break; } print($i); } unroll(1) { print(9) } }", "2\n9"},
		{"BEGIN { $i = 3; while ($i > 0) { $i--; if ($i == 1) { continue; } print($i) } }", "2\n0"},
		{"BEGIN { for ($i : 0..3) { if ($i == 1) { continue } print($i); } $n = 2; for $j : $n..$n + 2 { print($j); $n = 100; } for ($k : 5..2) { print(1) } }", "0\n2\n2\n3"},
		{"BEGIN { @m[1, 2] = 3; for ($kv : @m) { print(($kv.0.1, $kv.1)); @n = $kv.0; } clear(@m); }", "(2, 3)\n\n\n@n: (1, 2)"},
		{"BEGIN { { $x = 1; print($x); } { $x = \"a\"; print($x); } }", "1\na"},
		{"BEGIN { print(1); return; print(2); } END { print(3) }", "1\n3"},
		{"BEGIN { $x = 7; $x -= 1; $x *= 5; $x /= 2; $x %= 8; $x <<= 3; $x >>= 1; $x |= 3; $x &= 29; $x ^= 1; print($x); }", "28"},
		{"BEGIN { @x[\"a\"] = 7; @x[\"a\"] -= 1; @x[\"a\"] *= 5; @x[\"a\"] /= 2; @x[\"a\"] %= 8; @x[\"a\"] <<= 3; @x[\"a\"] >>= 1; @x[\"a\"] |= 3; @x[\"a\"] &= 29; @x[\"a\"] ^= 1; }", "@x[a]: 28"},
		{`BEGIN { let $s: string; print(strlen($s)); $s = "longer"; print($s); let $t: string[3] = "abcdef"; if (1) { $t = "x"; } print(($t, strcap($s))); let $u: string = str($2); print($u); }`, "0\nlonger\n(x, 7)\nb"},
		// A function's name is a symbol where the map has symbols, whichever comes first.
		{`BEGIN { @name[0] = ksym(0); @start[0] = 0; } kprobe:vfs_read { @name[tid] = func; } kretprobe:vfs_read { @us[@name[tid]] = count(); delete(@name, tid); } END { clear(@start); clear(@name); }`, "@us[vfs_read]: 1"},
		{`kprobe:vfs_read { @last = func; } kretprobe:vfs_read { print((@last, 1)); @last = ksym(kaddr("vfs_write")); }`, "(vfs_read, 1)\n\n\n@last: vfs_write"},
		// Operators.
		{"BEGIN { print((1 ? 2 : 3, 0 ? 2 : 0 ? 3 : 4, 0 ?: 5, 1 || 0 && 0, 1 | 2 ^ 2 & 0, 1 == 1 != 0, 1 < 2 == 2 > 1, 1 << 2 + 1, 7 - 2 - 1, 7 / 2 * 2, -7 % 4)); }", "(2, 4, 5, true, 3, true, true, 8, 4, 6, -3)"},
		{"BEGIN { $p = (int16 *)0; print((!1, ~1, - -1, -(1), !!5, +3, (pid)*2, (int8)-1 + 1, (uint8)(1 + 255))); print($p == 0); }", "(false, -2, 1, -1, true, 3, 0, 0, 0)\ntrue"},
		{"BEGIN { $a = 3; print(($a+++2, $a---1, $a >= 3, $a<=2, $a!=3)); }", "(5, 3, true, false, false)"},
		{"BEGIN { @[1] = 1; print(@[1] == 1 && \"a\" == \"a\" || \"b\" != \"b\"); clear(@); }", "true"},
		// Types.
		{"BEGIN { print(((int8)-129, (uint8)-1, (int16)32768, (uint16)65537, (int32)1 << 31, (uint32)-1, (int64)-1, (uint64)-1, (bool)2, (bool)0)); }", "(127, 255, -32768, 1, 2147483648, 4294967295, -1, 18446744073709551615, true, false)"},
		{"BEGIN { print(((unsigned char)256, (short)65535, (unsigned int)-1, (long)5, (char)65, (size_t)7, (u8)257, (s8)255, (unsigned long long)-1)); }", "(0, -1, 4294967295, 5, 65, 7, 1, -1, 18446744073709551615)"},
		{"BEGIN { $u = (uint64)2; $s = -3; print(($u - 3, $u + $s, $s / 2, $s >> 1, (uint64)$s >> 60, $u * $s)); }", "(-1, 18446744073709551615, -1, -2, 15, 18446744073709551610)"},
		{"BEGIN { $t = ((1, \"a\"), (true, (2, 3))); print($t.1.1.0); $t = ((5, \"longer\"), (false, (6, 7))); print($t); @[$t] = $t.0; }", "2\n((5, longer), (false, (6, 7)))\n\n\n@[(5, longer), (false, (6, 7))]: (5, longer)"},
		{"BEGIN { @a = true; @b[false] = (bool)5; print(@a); if (@b[false]) { print(@a == @b[false]); } }", "@a: true\ntrue\n\n\n@a: true\n@b[false]: true"},
		// Literals.
		{`BEGIN { print((1_000_000, 0xff, 0XFF, 017, 1e3, 12UL, 1ns, 2us, 3ms, 4s, 5m, 6h, 1d)); }`, "(1000000, 255, 255, 15, 1000, 12, 1, 2000, 3000000, 4000000000, 300000000000, 21600000000000, 86400000000000)"},
		{`BEGIN { printf("%s|%s|%d\n", "\t\"\\\x41\101", "a\0b", sizeof("abc")); }`, "\t\"\\AA|a|4"},
		{`BEGIN { print(18446744073709551615); print(0xffffffffffffffff); print(-9223372036854775808); }`, "18446744073709551615\n18446744073709551615\n-9223372036854775808"},
		// Builtins with parentheses or without, positional parameters.
		{`BEGIN { print(pid() == pid && tid() == tid && comm() == comm && cpu() == cpu && ncpus() == ncpus); print(comm); print(usermode); }`, "true\nguestprobe\n0"},
		{`kretprobe:vfs_read { print((func, probe, retval, arg2)); }`, "(vfs_read, kretprobe:vfs_read, -9, 100)"},
		{`BEGIN { print(($#, $1, $3, str($2), str($9))); }`, "(2, 7, 0, b, )"},
		// What two spellings have: 0.17 and 0.26.
		{`BEGIN { @a[1] = 2; delete(@a[1]); @a[3] = 4; delete(@a, 3); @a[5] = 6; delete(@a, (5)); print(len(@a)); @b[1,2] = 3; delete(@b[1,2]); @b[1,2] = 3; delete(@b, (1,2)); print(len(@b)); }`, "0\n0"},
		{`begin { print(has_key(@m, 1)); @m[1] = 1; print(has_key(@m, 1)); if (@m[1]) { print("old"); } clear(@m) } end { print("bye") }`, "false\ntrue\nold\nbye"},
	} {
		r, err := runScript(t, c.script, []string{"7", "b"}, false, 0, readFile()...)
		got := strings.Trim(r.out, "\n")
		if err != nil {
			got = regexp.MustCompile(`ERROR: .*`).FindString(err.Error())
		}
		if got != c.want {
			t.Errorf("%s\noutput\n%s\nwant\n%s", c.script, got, c.want)
		}
	}
}
