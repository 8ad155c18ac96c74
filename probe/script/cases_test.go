package script

import (
	"regexp"
	"strings"
	"testing"
)

// TestCases runs scripts, of which each prints what bpftrace would print.
func TestCases(t *testing.T) {
	for _, c := range []struct {
		name, script string
		want         string // trimmed; of errors and warnings a regular expression
		params       []string
		hits         []hit
		ticks        int
		json         bool
		fails        bool
		status       int64
		warning      string
	}{
		{name: "getopt", script: `BEGIN { print((getopt("aa", 10), getopt("bb", "hello", "a text"), getopt("cc"), getopt("dd", false), getopt("ee", true), getopt("n", 1), $1, $#)); }`,
			params: []string{"--cc", "--bb=bye", "7", "--ee=0", "--n=-3"}, want: "(10, bye, true, false, false, -3, 7, 1)"},
		{name: "cast_to_its_own_type", script: `BEGIN { $a = (uint8[4])pton("127.0.0.1"); $b = (int16[2])(uint32)0x20001; @x = (int16[2])$b; print(($a[3], $b[1], @x)); clear(@x); }`, want: "(1, 2, [1,2])"},
		{name: "getopt_unknown", script: `BEGIN { print(getopt("aa", 10)); }`, params: []string{"--ab=1"}, fails: true, want: `--ab: the script has no such option(.|\n)*it has --aa`},
		{name: "getopt_wrong", script: `BEGIN { print(getopt("aa", 10)); }`, params: []string{"--aa=x"}, fails: true, want: `--aa: want a number \("x" provided\)`},
		{name: "no_getopt", script: `BEGIN { print(str($1)); }`, params: []string{"--aa"}, want: "--aa"},
		{name: "join", script: `kprobe:vfs_read { printf("%d ", arg2); join(arg0); join((char **)arg0, ","); join(arg1); }`, want: "1 ls -l /tmp\nls,-l,/tmp", hits: []hit{{fn: "vfs_read", args: [6]uint64{0x9000, 0x9020, 1},
			memory: map[uint64]string{0x9000: "\x00\x50\x00\x00\x00\x00\x00\x00\x00\x60\x00\x00\x00\x00\x00\x00\x00\x70\x00\x00\x00\x00\x00\x00", 0x5000: "ls", 0x6000: "-l", 0x7000: "/tmp"}}}},
		{name: "join_json", json: true, script: `kprobe:vfs_read { join((char **)arg0, ","); join(arg1); printf("x\n"); }`, want: `{"type": "join", "data": "ls,\n"}` + "\n" + `{"type": "join", "data": ""}` + "\n" + `{"type": "printf", "data": "x\n"}`, hits: []hit{{fn: "vfs_read", args: [6]uint64{0x9000, 0x9020, 1},
			memory: map[uint64]string{0x9000: "\x00\x50\x00\x00\x00\x00\x00\x00\x00\x60\x00\x00\x00\x00\x00\x00", 0x5000: "ls", 0x6000: "\n"}}}},
		{name: "join_own", script: `macro join(a) { print(a); } BEGIN { join(3); }`, want: "3"},
		{name: "join_wrong", script: `BEGIN { join(1, 2, 3); }`, fails: true, want: `join\(\) has the wrong number of arguments. Expected: 2 but got 3`},
		{name: "begin_end_order", script: `BEGIN { printf("start\n"); } END { printf("stop\n"); }`, want: "start\nstop"},
		{name: "lower_case_begin", script: `begin { print("b"); } end { print("e"); }`, want: "b\ne"},
		{name: "precedence_arith", script: `BEGIN { print(1 + 2 * 3 - 8 / 4 % 3); }`, want: "5"},
		{name: "precedence_bits", script: `BEGIN { printf("%d %d %x\n", 6 & 3 | 8, 1 << 4 ^ 1, ~0 & 0xff); }`, want: "10 17 ff"},
		{name: "empty_tuple", script: `BEGIN { $a = (); print($a); print((1, (), 2)); print(() == $a); @c[1, ()] = 2; }`, want: "()\n(1, (), 2)\ntrue\n\n\n@c[1, ()]: 2"},
		{name: "negated_minimum", script: `BEGIN { $x = -(-0x8000000000000000); print(($x, $x > 5)); }`, want: "(9223372036854775808, true)"},
		{name: "getopt_again", script: `BEGIN { print((getopt("a", 1), getopt("a", 1, "x"), getopt("a", 1), getopt("b"), getopt("b", false))); }`, want: "(1, 1, 1, false, false)"},
		{name: "literals", script: `BEGIN { print((1_000, 0x10, 010, 2e3, 5us)); }`, want: "(1000, 16, 8, 2000, 5000)"},
		{name: "macro_at_run_time", script: `macro bad() { errorf("Something bad"); } BEGIN { bad(); print(1); }`,
			want: "stdin:1:15-38: ERROR: Something bad\nstdin:1:50-55: ERROR: expanded from\nmacro bad() { errorf(\"Something bad\"); } BEGIN { bad(); print(1); }\n                                                 ~~~~~\n1"},
		{name: "sizes_of_literals", script: `BEGIN { $x = 1; $y = -129; $y = 5; $z = 1; $z = (uint16)2; $i = 1; $i++; @m = 70000; print((sizeof(1), sizeof($x), sizeof($y), sizeof($z), sizeof($i), sizeof(@m), sizeof(0x7fffffffffffffff), sizeof(1 + 1))); clear(@m); }`, want: "(1, 1, 2, 8, 8, 4, 8, 8)"},
		{name: "size_of_tuple_of_literals", script: `BEGIN { $a = ((int8)-100, (int8)100, "abcdef", 3, (int32)1, (int64)-10, (int8)10, (int16)-555, "abc"); print(sizeof($a)); print($a); }`, want: "32\n(-100, 100, abcdef, 3, 1, -10, 10, -555, abc)"},
		{name: "config_of_names", script: `config = { cpp_demangle = false } BEGIN { print(config.cpp_demangle); }`, want: "false"},
		{name: "gfp_flags", script: `BEGIN { printf("%gr|%gr|%gr|%gr %8gr|%-8gr|\n", 1, 0xcc0, 0x2dc0, 0x40000a00, 0, 2); }`, want: "GFP_DMA|GFP_KERNEL|GFP_KERNEL|__GFP_ZERO|__GFP_NOWARN|GFP_NOWAIT|0x40000200        0|__GFP_HIGHMEM|"},
		{name: "gfp_text", script: `BEGIN { printf("%gr\n", "x"); }`, fails: true, want: `unsupported format specifier for type 'string\[2\]': gr`},
		{name: "syscall_numbers", script: `BEGIN { print((__NR_read, __NR_nanosleep)); }`, want: "(0, 35)"},
		{name: "no_syscall_number", script: `BEGIN { print(__NR_nosuch); }`, fails: true, want: `Unknown identifier: '__NR_nosuch'`},
		{name: "getopt_spelling", script: `BEGIN { print((getopt("aa", true), getopt("bb", false))); }`, params: []string{"--aa=False", "--bb=TRUE"}, want: "(false, true)"},
		{name: "format_by_macro", script: `macro hi() { "hi %d\n" } BEGIN { printf(hi(), 5); }`, want: "hi 5"},
		{name: "aggregation_in_a_block", script: `BEGIN { @ = { let $a = 100; avg($a) }; @k[1, "x"] = { count() }; }`, want: "@: 100\n@k[1, x]: 1"},
		{name: "address_of_variables", script: `BEGIN { $n = (uint8)200; $p = &$n; print(*$p); $i = (int32)-5; $q = &$i; $qq = &$q; print((*$q, **$qq, $qq == &$q)); $n = 7; print(*$p); }`, want: "200\n(-5, -5, true)\n7"},
		{name: "address_of_tuple", script: `BEGIN { $t = (1, "hello", (x=2, y="z")); $p = &$t; print(*$p); print((*$p).1); print((*(&$t)).2.y); $u = (1, "longer than", (x=2, y="zz")); $u = *$p; print($u); @m = *$p; @k[*$p] = 1; clear(@m); clear(@k); }`, want: "(1, hello, { .x = 2, .y = z })\nhello\nz\n(1, hello, { .x = 2, .y = z })"},
		{name: "address_of_string", script: `BEGIN { $s = "hello"; $c = (int8 *)&$s; printf("%c %c %s %s\n", *$c, *++$c, str($c), *(&$s)); print(buf($c, 2)); print($c[1]); }`, want: "h e ello hello\nel\n108"},
		{name: "address_of_struct", script: `struct foo { unsigned long long a:1; unsigned long long b:1; unsigned long long c:2; } BEGIN { $v = (uint64)0x1e; $f = *(struct foo *)(&$v); print($f); print(((struct foo *)&$v)->c); }`, want: "{ .a = 0, .b = 1, .c = 3 }\n3"},
		{name: "address_of_member", script: `struct in { int a; char b[4]; } BEGIN { $v = (uint64)0x6261_00000007; $s = *(struct in *)(&$v); print(*(&$s.a)); print(str(&$s.b)); }`, want: "7\nab"},
		{name: "address_of_map", script: `BEGIN { @a = 1; @b[1] = 2; $x = &@a; $y = &@b; print($x == &@a); print($x == $y); clear(@a); clear(@b); }`, want: "true\nfalse"},
		{name: "address_of_nothing", script: `BEGIN { $n = 5; $p = &$n; $p += 1000000; print(*$p); }`, want: "0", warning: "Bad address"},
		{name: "signed_compare", script: `BEGIN { $a = -5; print($a < 3 ? "neg" : "pos"); }`, want: "neg"},
		{name: "sub_is_signed", script: `BEGIN { $x = (uint64)3 - (uint64)5; printf("%ld\n", $x); }`, want: "-2"},
		{name: "incdec_value", script: `BEGIN { $x = 5; $y = $x++; $z = --$x; print(($x, $y, $z)); }`, want: "(5, 5, 5)"},
		{name: "if_else_chain", script: `BEGIN { $n = 7; if ($n < 5) { print("a"); } else if ($n < 9) { print("b"); } else { print("c"); } }`, want: "b"},
		{name: "unroll", script: `BEGIN { $i = 0; unroll(3) { $i++; printf("%d;", $i); } }`, want: "1;2;3;"},
		{name: "unroll_limit", script: `BEGIN { unroll(101) { print(1); } }`, fails: true, want: `ERROR: unroll maximum value is 100`},
		{name: "while_break_continue", script: `BEGIN { $i = 0; while ($i < 10) { $i++; if ($i == 2) { continue; } if ($i > 4) { break; } printf("%d,", $i); } }`, want: "1,3,4,"},
		{name: "for_range", script: `BEGIN { $s = 0; for ($i : 1..5) { $s += $i; } print($s); }`, want: "10"},
		{name: "tuple_nested", script: `BEGIN { $t = (7, ("x", 9)); printf("%d %s %d\n", $t.0, $t.1.0, $t.1.1); print($t); }`, want: "7 x 9\n(7, (x, 9))"},
		{name: "block_scope", script: `BEGIN { if (1) { $x = 1; } print($x); }`, fails: true, want: `ERROR: Undefined or undeclared variable: \$x\n.*\n *~~\nHINT: `},
		{name: "type_mismatch", script: `BEGIN { @x = 0; @x = "a"; }`, fails: true, want: `Type mismatch for @x`},
		{name: "printf_pad", script: `BEGIN { printf("[%5s|%-5s|%05d|%#x|%c|%%]\n", "ab", "cd", 42, 255, 65); }`, want: "[   ab|cd   |00042|0xff|A|%]"},
		{name: "printf_lengths", script: `BEGIN { $x = 0x12345678abcdef; printf("%hhx %hx %x %lx\n", $x, $x, $x, $x); }`, want: "ef cdef 78abcdef 12345678abcdef"},
		{name: "printf_arity", script: `BEGIN { printf("%d %d\n", 1); }`, fails: true, want: `not enough arguments for format string \(1 supplied, 2 expected\)`},
		{name: "buf_formats", script: `BEGIN { printf("%r %rx %rh\n", buf("A\0", 2), buf("A\0", 2), buf("A\0", 2)); }`, want: `A\x00 \x41\x00 41 00`},
		{name: "positional", params: []string{"7", "vm0"}, script: `BEGIN { printf("%d %s %d\n", $1, str($2), $#); }`, want: "7 vm0 2"},
		{name: "exit_code", script: `BEGIN { if (1) { exit(3); } print("no"); }`, status: 3},
		{name: "map_scalar", script: `BEGIN { @a = 5; }`, want: "@a: 5"},
		{name: "map_sorted_by_value", script: `BEGIN { @["b"] = 3; @["a"] = 9; @["c"] = 1; }`, want: "@[c]: 1\n@[b]: 3\n@[a]: 9"},
		{name: "map_tuple_key", script: `BEGIN { @a[(int16)-1, (2, 3)] = 10; }`, want: "@a[-1, (2, 3)]: 10"},
		{name: "for_map", script: `BEGIN { @map[16] = 32; for ($kv : @map) { print($kv); } clear(@map); }`, want: "(16, 32)"},
		{name: "map_delete_len", script: `BEGIN { @[1, "x"] = 2; print(len(@)); delete(@, (1, "x")); print(len(@)); print(has_key(@, (1, "x"))); }`, want: "1\n0\nfalse"},
		{name: "for_map_control", script: `BEGIN { for ($i : 0..6) { @a[$i, "k"] = $i * 10; } $sum = 0; $n = 0;
			for ($kv : @a) { if ($kv.0.0 == 3) { continue; } $sum += $kv.1; $n++; for ($in : @a) { if ($in.1 > 20) { break; } @seen++; } }
			print(($sum, $n)); for ($kv : @a) { if ($kv.1 == 20) { print($kv); return; } } print("never"); } END { clear(@a); clear(@seen); }`, want: "(120, 5)\n((2, k), 20)"},
		{name: "for_map_keys_later", script: `BEGIN { for ($kv : @map) { print(@map[$kv.0]); } @map[3] = 1; clear(@map); }`, want: ""},
		{name: "for_map_exit", script: `BEGIN { @a[1] = 1; for ($kv : @a) { exit(7); } print("never"); } END { clear(@a); }`, status: 7},
		{name: "for_map_guest", script: `kprobe:vfs_read { @a[arg2]++; } interval:s:1 { $n = 0; for ($kv : @a) { $n += $kv.1; } printf("%d of %d\n", $n, len(@a)); } END { clear(@a); }`, hits: read4(), ticks: 1, want: "4 of 4"},
		{name: "map_delete", script: `BEGIN { @[1, "x"] = 2; print(has_key(@, (1, "x"))); delete(@, (1, "x")); print(has_key(@, (1, "x"))); }`, want: "true\nfalse"},
		{name: "map_full", script: `config = { max_map_keys=1 } BEGIN { @[1] = 1; @[2] = 2; }`, want: "@[1]: 1", warning: `WARNING: Map full`},
		{name: "map_declared_twice", script: `let @a = lruhash(1); let @a = hash(9); BEGIN { @a[1] = 2; @a[2] = 3; }`, want: "@a[2]: 3"},
		{name: "map_unused", script: `let @a = hash(2); let @b = lruhash(3); BEGIN { @b[1] = 2; }`, want: "@b[1]: 2", warning: `stdin:1:5-7: WARNING: Unused map: @a`},
		{name: "print_top_div", script: `BEGIN { @["a"] = 10; @["b"] = 20; @["c"] = 30; @["d"] = 40; print(@, 2, 10); clear(@); }`, want: "@[c]: 3\n@[d]: 4"},
		{name: "aggregates", script: `BEGIN { @c = count(); @c = count(); @s = sum(3); @s = sum(9); @lo = min(4); @lo = min(-2); @hi = max(4); @hi = max(7); @av = avg(1); @av = avg(2); @av = avg(6); }`,
			want: "@av: 3\n@c: 2\n@hi: 7\n@lo: -2\n@s: 12"},
		{name: "avg_truncates", script: `BEGIN { @ = avg(-1); @ = avg(-1); @ = avg(-10); }`, want: "@: -4"},
		{name: "stats_record", script: `BEGIN { @ = stats(1); @ = stats(2); @ = stats(3); }`, want: "@: { .count = 3, .average = 2, .total = 6 }"},
		{name: "hist_k2", script: `BEGIN { @ = hist(9, 2); @ = hist(17, 2); }`, want: "@:\n" +
			"[8, 10)                1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n" +
			"[10, 12)               0 |                                                    |\n" +
			"[12, 14)               0 |                                                    |\n" +
			"[14, 16)               0 |                                                    |\n" +
			"[16, 20)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|"},
		{name: "lhist_edges", script: `kprobe:vfs_read { @ = lhist(arg2, 0, 4096, 1024); }`, hits: read4(), want: "@:\n" +
			"[0, 1K)                3 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n" +
			"[1K, 2K)               0 |                                                    |\n" +
			"[2K, 3K)               0 |                                                    |\n" +
			"[3K, 4K)               0 |                                                    |\n" +
			"[4K, ...)              1 |@@@@@@@@@@@@@@@@@                                   |"},
		{name: "json_shapes", json: true, script: `BEGIN { @n = 5; @big = 9007199254740993; @h = hist(2); print((1, "s")); }`, want: `{"type": "value", "data": [1,"s"]}` + "\n" +
			`{"type": "map", "data": {"@big": "9007199254740993"}}` + "\n" + `{"type": "hist", "data": {"@h": [{"min": 2, "max": 3, "count": 1}]}}` + "\n" + `{"type": "map", "data": {"@n": 5}}`},
		{name: "json_types", json: true, script: `BEGIN { print((a=1, b="x", c=(1, 2))); print((int8[2])(uint16)258); print((enum kind)1); print(*(struct pair *)0); @[(k=1)] = 2; }`,
			want: `{"type": "value", "data": {"a": 1, "b": "x", "c": [1,2]}}` + "\n" + `{"type": "value", "data": [2,1]}` + "\n" + `{"type": "value", "data": 1}` + "\n" + `{"type": "value", "data": {"a": 0, "b": 0}}` + "\n" + `{"type": "map", "data": {"@": {"{.k=1}": 2}}}` + "\n" +
				`{"type": "helper_error", "msg": "Bad address", "helper": "probe_read_kernel", "retcode": -14, "filename": "stdin", "line": 1, "col": 96}`},
		{name: "kprobe_args", script: `kprobe:do_sys_openat2 { printf("%s %d %s\n", comm, arg0, str(arg1)); }`, hits: open3(), want: "cat -100 /etc/passwd\nls -100 /tmp\ncat -100 /nope"},
		{name: "predicate", script: `kprobe:do_sys_openat2 /comm == "cat" && cpu == 0/ { @++; }`, hits: open3(), want: "@: 2"},
		{name: "kretprobe_errno", script: `kretprobe:do_sys_openat2 /(int64)retval < 0/ { @err[strerror(-(int64)retval)] = count(); }`, hits: open3(), want: "@err[No such file or directory]: 1"},
		{name: "latency_hist", script: `kprobe:do_sys_openat2 { @t[tid] = nsecs; } kretprobe:do_sys_openat2 /has_key(@t, tid)/ { @ns = hist(nsecs - @t[tid]); delete(@t, tid); }`, hits: open3(), want: "@ns:\n" +
			"[512, 1K)              1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n" +
			"[1K, 2K)               0 |                                                    |\n" +
			"[2K, 4K)               0 |                                                    |\n" +
			"[4K, 8K)               1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|\n" +
			"[8K, 16K)              1 |@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@|"},
		{name: "kstack_key", script: `kprobe:vfs_read { @[kstack(2)] = count(); }`, hits: read4(), want: "@[\n        vfs_read+0\n        ksys_read+107\n]: 4"},
		{name: "wildcard_probe", script: `kprobe:vfs_re* { @[probe] = count(); }`, hits: read4(), want: "@[kprobe:vfs_read]: 4"},
		{name: "attach_errors", script: `kprobe:nonsense { }`, fails: true, want: `No matches for kprobe nonsense`},
		{name: "tick_and_exit", script: `interval:s:1 { @++; if (@ == 2) { exit(); } }`, ticks: 3, want: "@: 2"},
		{name: "bad_pointer", script: `kprobe:vfs_read { print(strlen(str(0xdead000000000000))); exit(); }`, hits: read4(), want: "0", warning: `stdin:1:\d+-\d+: WARNING: .*Bad address`},

		{name: "map_of_strings", script: `BEGIN { @a[1] = "one"; @a[2] = "three and more"; @b = "x"; print(@a[1]); }`, want: "one\n\n\n@a[1]: one\n@a[2]: three and more\n@b: x"},
		{name: "swap", script: `BEGIN { $t = (1, "ab"); $t = ($t.0 + 1, $t.1); print($t); }`, want: "(2, ab)"},
		{name: "string_variables", script: `kprobe:do_sys_openat2 { $f = str(arg1); if ($f != "/tmp" && $f == str(arg1)) { @[$f, pid] = count(); } }`, hits: open3(), want: "@[/etc/passwd, 101]: 1\n@[/nope, 101]: 1"},
		{name: "compound", script: `BEGIN { @x = 6; @x *= 7; @x -= 2; @y[1] += 5; @y[1] <<= 2; $z = 1; $z |= 6; print((@x, @y[1], $z)); clear(@x); clear(@y); }`, want: "(40, 20, 7)"},
		{name: "division", script: `BEGIN { $a = -7; print(($a / 2, $a % 2, (uint64)7 / 2, 5 / ($a + 8))); }`, want: "(-3, -1, 3, 5)"},
		{name: "casts", script: `BEGIN { print(((uint8)300, (int8)200, (uint32)-1, (int16)0x18000, (bool)7)); }`, want: "(44, -56, 4294967295, -32768, true)"},
		{name: "elvis", script: `BEGIN { $a = 0; print($a ?: 5); print(3 ?: 5); }`, want: "5\n3"},
		{name: "logic", script: `BEGIN { print((1 && 0, 0 || 2, !3, 1 == 1, !(1 > 2) && 3 <= 3)); }`, want: "(false, true, false, true, true)"},
		{name: "pointer", script: `kprobe:do_sys_openat2 { printf("%c%c\n", *(uint8 *)arg1, *((uint8 *)arg1 + 1)); }`, hits: open3()[:1], want: "/e"},
		{name: "long_frame", script: `kprobe:do_sys_openat2 { $a = str(arg1); $b = str(arg1); $c = str(arg1); $d = str(arg1); $e = str(arg1); $f = str(arg1); $g = str(arg1); $h = ($a, $b, $c, $d); @[$e, $f] = 1; print(($h.0, $g)); clear(@); }`,
			hits: open3()[:1], want: "(/etc/passwd, /etc/passwd)"},
		{name: "nested_loops", script: `BEGIN { for ($i : 0..3) { for ($j : 0..3) { if ($j == 2) { break; } if ($i == 1) { continue; } printf("%d%d ", $i, $j); } } }`, want: "00 01 20 21"},
		{name: "hist_keys", script: `kprobe:vfs_read { @[comm] = hist(arg2); } END { delete(@["dd"]); print(@); }`, hits: read4()},
		{name: "unused_is_zero", script: `BEGIN { @n = count(); zero(@n); @k[1] = 5; zero(@k); }`, want: "@k[1]: 0\n@n: 0"},
		{name: "endless", script: `BEGIN { while (1) { @++; } }`, warning: `stdin:1:\d+-\d+: WARNING: instruction budget used up`, want: "*"},
		{name: "kaddr_ksym", script: `BEGIN { print(ksym(kaddr("vfs_read") + 5)); printf("%lx\n", kaddr("vfs_read")); }`, want: "vfs_read\nffffffff81310000"},
		{name: "return", script: `kprobe:vfs_read { if (arg2 > 1) { return; } @[arg2]++; }`, hits: read4(), want: "@[0]: 1\n@[1]: 1"},
		{name: "unsigned_wins", script: `BEGIN { $u = (uint64)1; $i = -1; print($i < $u); print($i < 1); }`, want: "false\ntrue"},
		{name: "min_of_unsigned", script: `kprobe:vfs_read { @a = min(arg2); @b = max(arg2); @c[cpu] = min(arg2 + 7); }`, hits: read4(), want: "@a: 0\n@b: 4096\n@c[0]: 7"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := runScript(t, c.script, c.params, c.json, c.ticks, c.hits...)
			if c.fails {
				if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
					t.Fatalf("error %v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(r.out); got != c.want && c.want != "*" {
				t.Errorf("output\n%s\nwant\n%s", got, c.want)
			}
			if r.status != c.status {
				t.Errorf("status %d, want %d", r.status, c.status)
			}
			if (c.warning == "") != (r.warnings == "") || !regexp.MustCompile(c.warning).MatchString(r.warnings) {
				t.Errorf("warnings %q, want %q", r.warnings, c.warning)
			}
		})
	}
}
