package script

import (
	"slices"
	"strings"
	"testing"
)

// TestTuning: settings for bpftrace's own programs are accepted without effect, and a note names them with their places.
func TestTuning(t *testing.T) {
	s, err := Compile(`config = { license="Dual BSD/GPL"; on_stack_limit=0; BPFTRACE_CACHE_USER_SYMBOLS=PER_PID; unstable_import=enable; max_map_keys=3 } BEGIN { print(1); }`, target, Options{CPUs: 1})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"stdin:1:12: license has no effect here", "stdin:1:36: on_stack_limit has no effect here",
		"stdin:1:54: BPFTRACE_CACHE_USER_SYMBOLS has no effect here", "stdin:1:91: unstable_import has no effect here"}
	if !slices.Equal(s.Notes, want) {
		t.Errorf("notes %q, want %q", s.Notes, want)
	}
}

// TestUnchanged: scripts written for bpftrace run unchanged, with the same output.
func TestUnchanged(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		// bpftrace's own macros use names with __builtin_.
		{`macro cpu() { "mine" } BEGIN { print(cpu()); print(__builtin_cpu); print(__builtin_comm == comm() && __builtin_comm == comm); print(__builtin_strlen("abc")); }`, "mine\n0\ntrue\n3"},
		// Lines that continue.
		{"struct s { int a; } \\\n BEGIN { print(sizeof(struct s)); }", "4"},
		// Values that are intentionally unused.
		{`BEGIN { _ = 1; _ = { print(1); "text" }; @a[1] = 2; _ = delete(@a, 1); _ = (1, @x++); print(@x); clear(@x); }`, "1\n@x: 1"},
		// if as an expression.
		{`BEGIN { $x = if 1 == 1 { 5 } else { 6 }; print($x); print(if ($x > 5) { "a" } else if ($x == 5) { print("in it"); "bcd" } else { "c" }); }`, "5\nin it\nbcd"},
		{`BEGIN { let $x=0; print(if (!$x) { if ($x) { 1 } else { $x = 3; $x } } else { 0 }); }`, "3"},
		{`macro pick(x) { if x { "yes" } else { "no" } } BEGIN { print(pick(0)); print({ $a = 1; if $a { 7 } else { 8 } }); }`, "no\n7"},
		{`BEGIN { $x = 3; $x > 2 ? printf("more\n") : exit(); $x > 4 ? print(1) : print((2, $x)); }`, "more\n(2, 3)"},
		// Structures without padding.
		{`struct __attribute__((packed)) foo { char x; int y; } BEGIN { print(sizeof(struct foo)); }`, "5"},
		{`struct foo { char x; int y; } __attribute__((packed, aligned(4))) struct bar { char a; struct foo b; }; struct __attribute__((__aligned__)) baz { char c; } struct end { char a; struct baz b; } BEGIN { print((sizeof(struct foo), offsetof(struct foo, y), offsetof(struct bar, b), sizeof(struct bar), sizeof(struct baz), offsetof(struct end, b), sizeof(struct end))); }`, "(8, 1, 4, 12, 16, 16, 32)"},
		{`struct foo { int x; } __attribute__((preserve_access_index)) __attribute__((aligned(1), deprecated("no"))) union u { char a[5]; } __attribute__((aligned(2 * 4))) BEGIN { print((sizeof(struct foo), sizeof(union u))); }`, "(4, 8)"},
		{`BEGIN { let $s: string[16] = "ab"; if comptime (sizeof($s) > 4) { print("long"); } $s = "abcdefghij"; print(comptime (sizeof($s) + 1)); let $a: uint8 = 255 >> 1; print($a); }`, "long\n17\n127"},
		{`struct foo { int x; char y; int z; } __attribute__((packed)) struct bar { char x; struct foo y; } struct baz __attribute__((packed)) { char a; uint64 b : 60, c : 4; } BEGIN { print((sizeof(struct foo), sizeof(struct bar), sizeof(struct baz), offsetof(struct foo, z))); }`, "(9, 10, 9, 5)"},
		{`struct foo { int x; char y; int z; } __attribute__((__packed__)) __attribute__((packed)) kprobe:vfs_read { print(((struct foo *)arg0)->z); }`, "67305985"},
		// Constants of C's headers.
		{`BEGIN { print(strerror(EPERM)); print((AF_INET, AF_INET6, O_CREAT, ENOENT, SIGKILL, S_IFMT, EAGAIN)); printf("%s\n", signal_name(SIGTERM)); }`, "Operation not permitted\n(2, 10, 64, 2, 9, 61440, 11)\nTerminated"},
		// String literals.
		{`BEGIN { print("ab" + "cd" + "e"); print(("a" < "b", "b" < "a", "a" <= "a", "" > "a", "b" >= "a", "a" + "" == "a")); if "x" { print(1); } print("" ? 1 : 2); }`, "abcde\n(true, false, true, false, true, true)\n1\n2"},
		{`BEGIN { print(((bool)"str", (bool)"", (bool)comm)); $s = "x"; $b = (bool)$s; print($b); } kprobe:vfs_read { print((bool)str(arg0)); }`, "(true, false, true)\ntrue\ntrue"},
		// Constants at their bounds.
		{`BEGIN { print((0xfffffffffffffffe + 1, -0x8000000000000000, 0 - 9223372036854775808, 0x4000000000000000 * 2, (uint64)0xffffffffffffffff + 1)); let $a: int8 = -128; let $b: uint8 = 255; print(($a, $b)); }`,
			"(18446744073709551615, -9223372036854775808, -9223372036854775808, 9223372036854775808, 0)\n(-128, 255)"},
		// Addresses.
		{`BEGIN { $a = pton("127.0.0.1"); print($a); printf("%x %s %s\n", (uint32)$a, ntop(2, $a), ntop(pton("::1"))); print(pton("2001:db8::ff00:42:8329")[15]); print(sizeof(pton("::1"))); print($a == pton("127.0.0.1")); }`,
			"[127,0,0,1]\n100007f 127.0.0.1 ::1\n41\n16\ntrue"},
		// find
		{`BEGIN { let $v; @a[1] = 10; $k = 2; print(find(@a, 1, $v)); print($v); if find(@a, $k, $v) { print("wrong"); } print($v); @a[2] = 20; if !find(@a, $k, $v) { print("wrong"); } print($v); clear(@a); }`, "true\n10\n10\n20"},
		{`BEGIN { $s = "hello"; @b["longerstr"] = "bye"; print((find(@b, "short", $s), $s)); print(find(@b, "longerstr", $s)); print(($s, $s == "bye")); clear(@b); }`, "(false, hello)\ntrue\n(bye, true)"},
		{`BEGIN { let $t; @c[1, ("hello", (int8)5)] = (1, "bye"); if find(@c, (1, ("hello", 5)), $t) { print($t); } $x = find(@c, (2, ("hello", 5)), $t) ? 1 : 0; print($x); clear(@c); }`, "(1, bye)\n0"},
		{`BEGIN { let $y; @a[1] = 5; @a[2] = 6; print((find(@a[2], $y), $y)); debugf("at %d %s\n", $y, comm); clear(@a); }`, "(true, 6)\nat 6 guestprobe"},
		{`BEGIN { @x = 1; @y[1] = 1; print((is_scalar(@x), is_scalar(@y))); clear(@x); clear(@y); }`, "(true, false)"},
		// Buffers as keys, and compared.
		{`BEGIN { @[buf("ok_key", 6)] = 1; @[buf("ok_key!", 6)] = 2; @[buf("ok", 2)] = 3; print(@[buf("ok_key", 6)]); print(len(@)); print(@); clear(@); }`, "2\n2\n@[ok_key]: 2\n@[ok]: 3"},
		{`BEGIN { $a = buf("hi", 2); $b = buf("bye", 3); $n = 2; print(($a == $a, $a != $b, $a == buf("hi there", $n), buf("abcdefghijkl", 9) == buf("abcdefghixyz", 9), buf("ab", 1) == buf("ab", 2))); $b = buf("hi", 2); print($a == $b); }`, "(true, true, true, true, false)\ntrue"},
		{`kprobe:vfs_read { $n = 3; @[buf(arg0, $n), 1] = count(); @[buf(arg0, 3), 1] = count(); @h[buf(str(arg0), $n)] = hist(2); $s = "abcdefgh"; @[buf($s, $n + 0), 1] = count(); } END { print(len(@)); clear(@h); }`, "1\n\n\n@[abc, 1]: 3"},
		// Records in any order.
		{`BEGIN { $a = (a=1, b="hello"); $a = (b="greeting", a=2); print($a); print(($a.b, $a == (b="greeting", a=2), (a=1, b=2) != (b=2, a=1))); $c = (b="x", a=7); $a = $c; print($a); }`,
			"{ .a = 2, .b = greeting }\n(greeting, true, false)\n{ .a = 7, .b = x }"},
		{`BEGIN { @v = (3, (a=((x=1, y=true)), b="hello")); @v = (4, (b="bye", a=((y=false, x=2)))); print(@v.1.a.x); @k[(a=1, b="one")] = 1; @k[(b="one", a=1)] = 2; print(len(@k)); $n = 1; $r = $n > 0 ? (b="p", a=3) : (a=4, b="q"); print($r); }`,
			"2\n1\n{ .b = p, .a = 3 }\n\n\n@k[{ .a = 1, .b = one }]: 2\n@v: (4, { .a = { .x = 2, .y = false }, .b = bye })"},
		{`BEGIN { $a = (foo={ printf("hello"); 1 }, bar={ printf("world"); 2 }); $a = (bar={ printf("hello"); 1 }, foo={ printf("world\n"); 2 }); print($a); }`, "helloworldhelloworld\n{ .foo = 2, .bar = 1 }"},
		// Conditions known at compile time; the other branch of an if need not even
		// be valid.
		{`BEGIN { @a[1] = 1; @b = 2; if comptime is_scalar(@a) { @a = 1; } else { print("keys"); } if (comptime !is_scalar(@b)) { @b[1] = 1; } if comptime (is_str(comm) && sizeof(uint32) == 4) { print("yes"); } clear(@a); clear(@b); }`, "keys\nyes"},
		{`macro show(x) { if comptime is_str(x) { printf("text %s\n", x); } else if comptime (is_ptr(x) || is_array(x)) { printf("place\n"); } else { printf("number %d\n", x); } } BEGIN { show("a"); show(5); show((int8 *)1); }`, "text a\nnumber 5\nplace"},
		{`BEGIN { print(comptime (1 + 1)); print(comptime sizeof(uint16)); print(comptime ("a" == "b")); $x = comptime 3; $x = (int64)4; print($x); if (comptime "") { nothing(); } }`, "2\n2\nfalse\n4"},
		// The unused value of a return, and an unused map.
		{`BEGIN { print(1); if (1) { return { print(2); 3 }; } print(4); } END { return 1; }`, "1\n2"},
		// Casts of strings.
		{`BEGIN { $a = (string[10])"hello"; print(($a, sizeof($a), (string)comm)); $a = "123456789"; print($a); }`, "(hello, 10, guestprobe)\n123456789"},
		// Fields of stats.
		{`BEGIN { @s = stats(4); @s = stats(-10); @k[1] = stats(7); print((@s.count, @s.average, @s.total, @k[1].count, @k[2].average)); if (@s.count > 1) { print("more"); } clear(@s); clear(@k); }`, "(2, -3, -6, 1, 0)\nmore"},
		// Tuples have the sizes of structures.
		{`BEGIN { print((sizeof(((int8)1, (int16)1, (int32)1)), sizeof(((int32)1, (int16)1, (int8)1)), sizeof(((int8)1, "abcdef", (int64)2)), sizeof((true, ((int16)1, "a"))))); }`, "(8, 8, 16, 6)"},
		// args alone.
		{`kprobe:get_dentry { print(sizeof(args) > 0); $a = args; print($a.letter); @ = args; } END { print(@.k); clear(@); }`, "0"},
		{`kprobe:vfs_read { print(args); $a = (1, args); print($a.1.count); @[args] = 1; }`, "{ .file = 0x1000, .buf = 0x0, .count = 0, .pos = 0x0 }\n0\n\n\n@[{ .file = 0x1000, .buf = 0x0, .count = 0, .pos = 0x0 }]: 1"},
	} {
		r, err := runScript(t, c.script, nil, false, 0, hit{fn: "vfs_read", args: [6]uint64{0x1000}, memory: map[uint64]string{0x1000: "abcde\x01\x02\x03\x04"}})
		if err != nil {
			t.Errorf("%s: %v", c.script, err)
			continue
		}
		if got := strings.TrimSpace(r.out); got != c.want || r.warnings != "" {
			t.Errorf("%s: %q, want %q; warnings %q", c.script, got, c.want, r.warnings)
		}
	}
}

// TestPositional: parameters that are not numbers are texts, also within places.
func TestPositional(t *testing.T) {
	for _, c := range []struct {
		script, want string
		params       []string
	}{
		{`BEGIN { print(($1, $2, $3, $#)); printf("%s %d\n", $1, $2); print($1 == "one"); @[$1] = $2; }`, "(one, 2, 0, 2)\none 2\ntrue\n\n\n@[one]: 2", []string{"one", "2"}},
		{`BEGIN { printf("%s|%s|%s\n", str($1), str($1 + 1), str($1 + 5)); print(strncmp($1, "hel", 3)); print(ksym(kaddr(str($2)))); }`, "hello|ello|\n0\nvfs_read", []string{"hello", "vfs_read"}},
		{`BEGIN { $x = str($1, 5); print(($x, $x == "hell", str($1, 9))); }`, "(hell, true, hello)", []string{"hello"}},
		{`$1 { print(1); }`, "1", []string{"BEGIN"}},
		{`BEGIN { print($1); @[$1] = 1; if ($1) { print("set"); } }`, "18446744073709551615\nset\n\n\n@[18446744073709551615]: 1", []string{"0xffffffffffffffff"}},
		{`kprobe:vfs_$1 { print(func); }`, "vfs_read", []string{"read"}},
		{`kprobe:"vfs"$1"ad" { print(func); }`, "vfs_read", []string{"_re"}},
		{`BEGIN { print(getopt("n", 1)); }`, "18446744073709551615", []string{"--n=0xffffffffffffffff"}},
	} {
		r, err := runScript(t, c.script, c.params, false, 0, hit{fn: "vfs_read"})
		if got := strings.TrimSpace(r.out); err != nil || got != c.want {
			t.Errorf("%s: %q, %v, want %q", c.script, got, err, c.want)
		}
	}
}
