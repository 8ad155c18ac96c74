package script

import (
	"strings"
	"testing"
)

// TestMacros: macros do what bpftrace's tests of them say.
func TestMacros(t *testing.T) {
	wantOutputs(t, [][2]string{
		{`macro inc($x) { $x += 1; } begin { $a = 1; inc($a); print($a);  }`, "2"},
		{`macro inc($x) { $x += 1; $x } begin { $a = 1; $b = inc($a); print(($a, $b));  }`, "(2, 2)"},
		{`macro set(@x) { @x[1] = 2; } begin { @a[1] = 1; set(@a);  }`, "@a[1]: 2"},
		{`macro set(@x) { @x = 2; } begin { @a = 1; set(@a);  }`, "@a: 2"},
		{`macro add(x) { let $y: typeof(x); if (true) { $y = 1 } x + $y  } begin { print(add(1));  }`, "2"},
		{`macro get(@x) { 1 + @x[1] } begin { @a[1] = 1; print(get(@a)); clear(@a); }`, "2"},
		{`macro print_me($x) { print(("me", $x)); } begin { $a = 1; print_me($a);  }`, "(me, 1)"},
		{`macro early() { exit(); } begin { early(); print(1); }`, ""},
		{`macro add1(x) { x + 1 } macro add2(y) { y + add1(y) } macro add3(z) { z + add2(z) } begin { print(add3(1));  }`, "4"},
		{`macro add1($x) { $x += 1; } macro add2($y) { add1($y); $y += 1; } macro add3($z) { add2($z); $z += 1; } begin { $a = 1; add3($a); print($a);  }`, "4"},
		{`macro add2(x) { x + add1(x) } macro add3(x) { x + add2(x) } macro add1(x) { x + 1 } begin { print(add3(1));  }`, "4"},
		{`macro add_two(x) { x + 2 } macro add_one(x) { add_two(x + 1) + 1 } begin { $a = 1; print(add_one($a + 1));  }`, "6"},
		{`macro add_one(x) { x + 1 } begin { @a = 1; print(add_one(@a + 1)); clear(@a); }`, "3"},
		{`macro loop_map(@a) { let $x = 1; for ($kv : @a) { $x += $kv.1;} $x } begin { @x[1] = 5; @x[2] = 10; print(loop_map(@x)); clear(@x); }`, "16"},
		{`macro add1($x) { $x + 1 } macro add2($x) { $x + 2 } begin { $a = 1; if ($a == 1) { print(add2($a)); } else { print(add1($a)); }  }`, "3"},
		{`macro inc(x) { $y = x + 1; $y } begin { $y = 2; $z = inc(5); print(($y, $z));  }`, "(2, 6)"},
		{`macro inc(x) { let $y = x + 1; $y } begin { $y = 2; $z = inc(5); print(($y, $z));  }`, "(2, 6)"},
		{`macro one() { $x = 1; $x } begin { $a = one; print($a);  }`, "1"},
		{`macro inc(x) { $y = x + 1; $z = x + 2; $y + $z } begin { $y = 2; print(inc({ $y +=1; $y })); }`, "10"},
		{`macro side_effects(x) { x; x; x; } begin { side_effects({ printf("hi") }); }`, "hihihi"},
		{`macro add() { 2 } macro ident(add) { add } begin { print(ident(1)); }`, "1"},
		{`macro first_key(@x) { let $x; for ($k : @x) { $x = $k.0; break; } $x } begin { @a[1] = 0; @b[2] = 0; print((first_key(@a), first_key(@b))); clear(@a); clear(@b); }`, "(1, 2)"},
		{`macro second(a, b) { print((a, b)); } macro first(@b, $x) { second(@b, $x); } begin { @d = 5; $y = 1; first(@d, $y); clear(@d); }`, "(5, 1)"},
		{`macro cpu() { "hi" } begin { print(cpu()); print(cpu); }`, "hi\nhi"},
		{`macro cpu(x) { x } begin { print(cpu("hi")); print(cpu()); }`, "hi\n0"},
		{`macro name(f) { str(f->f_path.dentry->d_name.name) } kprobe:vfs_read { print(name(args.file)); }`, "passwd"},
		{`macro t(x) { (x, { $y = x; "z" }) } begin { print(t(3).1); @k[t("a")] = 1; $a = { let $b = 2; ($b, $b + 1) }; print($a.1); }`, "z\n3\n\n\n@k[a, z]: 1"},
		{`begin { let $p: typeof((struct file *)0); print(sizeof(typeof(*$p))); print(sizeof(typeof(uint16*))); print((typeof($p))5); let $q: typeof(5) = 7; print($q); }`, "128\n8\n0x5\n7"},
		// Lines of C's preprocessor.
		{"#ifndef BPFTRACE_HAVE_BTF\n#include <linux/fs.h>\n#else\n#define TWO 2 // number\n# define NAME \"x\"\n#define ONLY\n#endif\nbegin { print((TWO * 3, NAME)); }", "(6, x)"},
		{"#ifdef BPFTRACE_HAVE_BTF\n#if 0\n#bad\n#else\nbegin { print(1); }\n#endif\n#else\n#include <a>\nnothing\n#endif\n#if !defined(X)\nend { print(2); }\n#endif", "1\n2"},
		{"enum { A = 1, C = 5 }\n#define A A\n#define B C\n#define C B + 1\nbegin { printf(\"%d %d\", A, C); }", "1 6"}, // as in C, a name is not replaced in its own replacement
		{"#define SUM (ONE + 2)\n#define ONE 1\nbegin { print(SUM * 2); }", "6"},
	})
}

// wantOutputs runs each script, without a warning of an error, and compares what it prints.
func wantOutputs(t *testing.T, cases [][2]string) {
	t.Helper()
	for _, c := range cases {
		r, err := runScript(t, c[0], nil, false, 0, readFile()...)
		if err != nil {
			t.Errorf("%s\n%v", c[0], err)
			continue
		}
		if got := strings.Trim(r.out, "\n"); got != c[1] || strings.Contains(r.warnings, "ERROR") {
			t.Errorf("%s\noutput\n%s\nwant\n%s\nwarnings %s", c[0], got, c[1], r.warnings)
		}
	}
}
