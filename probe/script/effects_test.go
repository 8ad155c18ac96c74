package script

import (
	"fmt"
	"strings"
	"testing"
)

// TestNestedWriters runs scripts of which an expression writes, leaves the program, or changes what the expressions around it have.
func TestNestedWriters(t *testing.T) {
	for _, c := range []struct{ script, want string }{
		{`BEGIN { print({ print("bob"); 1 }); }`, "bob\n1"},
		{`BEGIN { print({ print({ print("a"); "b" }); "c" }); }`, "a\nb\nc"},
		{`macro m($x) { printf("in %d\n", $x); $x + 1 } BEGIN { $a = 1; printf("%d %s %d\n", m($a), "out", m($a)); }`, "in 1\nin 1\n2 out 2"},
		{`macro m(x) { print(x); x } BEGIN { print((m("t"), { print(m(3)); 4 }, 5)); }`, "t\n3\n3\n(t, 4, 5)"},
		{`BEGIN { printf("%s %s\n", { print((1, "x")); "first" }, { printf("%s\n", "nested"); "second" }); }`, "(1, x)\nnested\nfirst second"},
		{`BEGIN { print(1 ? { print("y"); 2 } : { print("n"); 3 }); }`, "y\n2"},
		{`BEGIN { print({ print("once"); 7 } ?: 8); print({ print("zero"); 0 } ?: 8); $i = 0; print($i++ ?: 9); print($i); }`, "once\n7\nzero\n8\n9\n1"},
		{`BEGIN { @m[{ print("key"); 1 }] = { print("value"); 2 }; print(@m[1]); clear(@m); }`, "value\nkey\n2"},
		{`BEGIN { @m[{ print("key"); 1 }, "s"] *= { print("value"); 2 }; @m[{ print("k2"); 1 }, "s"] += { print("v2"); 5 }; print(@m[1, "s"]); clear(@m); }`, "key\nvalue\nk2\nv2\n5"},
		{`BEGIN { $i = 0; @m[$i++] -= 3; @m[$i++] |= 4; print(($i, @m[0], @m[1])); clear(@m); }`, "(2, -3, 4)"},
		{`BEGIN { @h[{ print("key"); 1 }] = hist({ print("value"); 2 }); @c[{ print((1, 2)); "k" }] = count(); } END { clear(@h); clear(@c); }`, "value\nkey\n(1, 2)"},
		{`BEGIN { $s = "abc"; print(($s, { $s = "def"; $s }, $s)); }`, "(abc, def, def)"},
		{`BEGIN { $s = "abc"; print($s == { $s = "def"; "abc" }); $s = "abc"; print(strncmp($s, { $s = "xyz"; "abc" }, 3)); $s = "abc"; print(strstr($s, { $s = "xyz"; "c" })); }`, "true\n0\n2"},
		{`BEGIN { $s = "abc"; print(buf($s, { $s = "xyz"; 2 })); print(str_concat($s, { print($s); $s = "1"; $s })); }`, "ab\nxyz\nxyz1"},
		{`BEGIN { $x = 3; print($x + { $x = 10; 1 }); print({ $x = 20; 1 } + $x); $x -= { $x = 100; 1 }; print($x); }`, "4\n21\n19"},
		{`BEGIN { @x = 3; @x += { @x = 10; 1 }; print((@x, 1)); @x -= { @x = 50; 1 }; print((@x, 2)); clear(@x); }`, "(4, 1)\n(3, 2)"},
		{`BEGIN { print(({ print("a"); (1, 2) }).1 + { print("b"); 3 }); }`, "a\nb\n5"},
		{`BEGIN { print((int8[4])(uint32)0x04030201); $t = (int8[4])(uint32)0x04030201; print($t[{ print("i"); 2 }]); }`, "[1,2,3,4]\ni\n3"},
		{`BEGIN { print({ print("seen"); return; 1 }); print("never"); }`, "seen"},
		{`BEGIN { printf("%d %d\n", { print("seen"); 1 }, { exit(); 2 }); print("never"); } END { print("end"); }`, "seen\nend"},
		{`BEGIN { for ($i : 0..2) { printf("%d\n", { if ($i == 1) { return; } $i }); } }`, "0"},
		{`BEGIN { @a[1] = 2; print({ for ($kv : @a) { print($kv); } len(@a) }); clear(@a); }`, "(1, 2)\n1"},
		{`BEGIN { errorf("%d %s", { print("inner"); 1 }, { warnf("w%d", 2); "x" }); }`, "inner\nstdin:1:50-65: WARNING: w2\nstdin:1:9-73: ERROR: 1 x"},
		{`BEGIN { print(strftime("%s", { print("t"); 0 })); exit({ print("st"); 0 }); }`, "t\n951782400\nst"},
		{`BEGIN /{ print("p"); 1 }/ { print("b"); }`, "p\nb"},
		{`BEGIN { print(ntop({ print("family"); 2 }, 0x0100007f)); print(macaddr({ print("mac"); 0 })); }`, "family\n127.0.0.1\nmac\n00:00:00:00:00:00"},
		{`BEGIN { $i = 0; while ({ print($i); $i < 2 }) { $i++; } for ($j : { print("lo"); 0 }..{ print("hi"); 1 }) { print("body"); } }`, "0\n1\n2\nlo\nhi\nbody"},
		{`BEGIN { @m["a"] = 1; print((has_key(@m, { print("h"); "a" }), delete(@m, { print("d"); "a" }))); }`, "h\nd\n(true, true)"},
		{`BEGIN { print({ @n++; 1 } && { @n++; 0 } || { @n++; 0 }); print((@n, 1)); clear(@n); }`, "false\n(3, 1)"},
		{`BEGIN { $a = (1, "abcdefghijklmnopqrstuvwxyz"); print(($a, { print($a); $a = (2, "b"); $a.0 }, $a)); }`, "(1, abcdefghijklmnopqrstuvwxyz)\n((1, abcdefghijklmnopqrstuvwxyz), 2, (2, b))"},
	} {
		r, err := runScript(t, c.script, nil, false, 0)
		if err != nil {
			t.Errorf("%s: %v", c.script, err)
			continue
		}
		if got := strings.TrimSpace(r.out); got != c.want {
			t.Errorf("%s\nprints\n%s\nwant\n%s\n%s", c.script, got, c.want, r.warnings)
		}
	}
}

// TestPointerOrder adds to pointers in the order of the source, by the size of what they point to.
func TestPointerOrder(t *testing.T) {
	h := hit{fn: "vfs_read", args: [6]uint64{0x1000}}
	for script, want := range map[string]string{
		`$p = (uint64 *)arg0; $p += 1; $p -= 2; print((uint64)$p)`:                            "4088",
		`@p = (uint32 *)arg0; @p += 3; print((uint64)@p); clear(@p)`:                          "4108",
		`$p = (uint32 *)arg0; print((uint64)({ print("p"); $p } - { print("n"); 1 }))`:        "p\nn\n4092",
		`$p = (uint32 *)arg0; print((uint64)({ print("n"); 2 } + { print("p"); $p }))`:        "n\np\n4104",
		`print({ print("p"); (uint64 *)arg0 }[{ print("i"); 0 }])`:                            "p\ni\n0",
		`@p[1] = (uint32 *)arg0; @p[1] += { print("n"); 1 }; print((uint64)@p[1]); clear(@p)`: "n\n4100",
	} {
		r, err := runScript(t, "kprobe:vfs_read { "+script+"; }", nil, false, 0, h)
		if err != nil {
			t.Errorf("%s: %v", script, err)
			continue
		}
		if got := strings.TrimSpace(r.out); got != want {
			t.Errorf("%s\nprints\n%s\nwant\n%s\n%s", script, got, want, r.warnings)
		}
	}
}

// TestTooMuchRoom refuses what instructions cannot address, and aggregations that are not the value of a map.
func TestTooMuchRoom(t *testing.T) {
	var b strings.Builder
	b.WriteString("config = { max_strlen = 448 } kprobe:vfs_read { ")
	for i := range 14 {
		fmt.Fprintf(&b, "$a%d = (str(arg0), str(arg0), str(arg0), str(arg0), str(arg0), str(arg0), str(arg0), %d); ", i, i)
	}
	for script, want := range map[string]string{
		b.String() + "}":                  "stdin:1:31-46: ERROR: the variables and values of this probe take more than 32768 bytes",
		`BEGIN { @x = bswap(count()); }`:  "stdin:1:20-27: ERROR: count() must be assigned directly to a map",
		`BEGIN { @x = str(hist(1)); }`:    "stdin:1:18-25: ERROR: hist() must be assigned directly to a map",
		`BEGIN { @x = { { count() } }; }`: "stdin:1:18-25: ERROR: count() must be assigned directly to a map",
	} {
		_, err := runScript(t, script, nil, false, 0)
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60s: %v, want %s", script, err, want)
		}
	}
}
