package script

import (
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// FuzzScript compiles random text, and runs it if it compiles: neither panics, errors
// point into the script, and the output is bounded.
func FuzzScript(f *testing.F) {
	for _, s := range []string{
		`BEGIN { printf("%5d|%-5s|%#x\n", 42, "ab", 255); }`,
		`kprobe:vfs_* /comm == "cat" && cpu == 0/ { @[probe, func, kstack(2)] = count(); }`,
		"struct p { char a; int b; } __attribute__((packed)) BEGIN { $x = if 1 { 2 } else { 3 };\n_ = find(@f, 1, $x); @f[1] = 2; @a[buf(\"ab\", $x), (b=1, a=pton(\"::1\"))] = stats(-0x8000000000000000);\nif comptime is_scalar(@a) { } $x ? exit() : debugf(\"%d\", EPERM); }",
		"kprobe:*:vfs_* { @ = args; print(@.count); @s[$1] = stats((bool)comm);\nprint((@s[$1].average, (string[20])\"a\", \"b\" < \"c\" + \"d\", __builtin_cpu)); } BEGIN { return 1 << 62; }",
		`config = { max_map_keys = 3; } BEGIN { @a[1, ("x", 2)] = hist(9, 2); for ($i : 0..5) { @l = lhist($i, 0, 4, 1); } clear(@a); }`,
		`begin { let $x = (1, "a"); if ($x.0 == 1) { print($x) } else if (1) { $y = 2 } while ($x.0 < 0) { break; } unroll(2) { @++ } }`,
		`BEGIN { @x = min(-4); @y = stats((uint8)300); delete(@z[1]); @z[2] += 3; print(@z, 1, 2); exit(1 ? 2 : 3); }`,
		"struct p { char a; } __attribute__((packed, aligned(4))) let @l = lruhash(3);\n#define SOME SOME\n*point:sched:*, [kr]*:sys_* { $e = (); let $t: typeof(@k) = (\"a\", SOME); @k[$t] = ($e, 1); @l[*(string[4] *)5] = getopt(\"n\", 2); print(offsetof(struct p, a)); }",
		`interval:s:1 { printf("%r %s", buf("A\0", 2), str($1)); } END { @s = "x"; zero(@x); @x = 1 }`,
		`kretprobe:vfs_read /(int64)retval < 0/ { @[strerror(-retval), ksym(reg("ip"))] = sum(*(uint32 *)(arg0 + 8)); }`,
		`kprobe:vfs_read { $d = args.file->f_path.dentry; @[$d->d_iname, args.count] = $d->d_name; print(*$d); $p = (int16 *)arg0; $p++; print(($p[1], *$p, $p - 2)); }`,
		`struct a { int x:3, y; union { char s[4]; long l[2][3]; }; struct a *next; }; enum { ONE = 1, TWO }; typedef struct a a_t; kretprobe:vfs_read { $a = (a_t *)retval; $i = TWO; @[$a->l[1][$i]] = offsetof(a_t, s) + sizeof($a->next->s); }`,
		`macro inc($x, y) { $x += y; $x } macro all(@m) { for ($kv : @m) { inc($kv.1, 2); } } macro two { 2 } BEGIN { $a = 1; print(inc($a, { $a++; $a })); @k[inc($a, two)] = 1; all(@k); let $t: typeof($a) = 5; }`,
		"#ifndef BPFTRACE_HAVE_BTF\n#include <a.h>\n#else\n#define TWO (ONE + 1) // x\n#endif\n#define ONE 1\n#if !defined(X)\nlet @m = lruhash(5); BEGIN { @m[TWO] = ONE; }\n#endif",
		`BEGIN { $r = (a=1, b=(c="x", d=(2, 3))); @m[$r] = $r.b; print(@m[$r].c); print($r == (a=1, b=(c="longer", d=(4, 5)))); }`,
		`struct A { uint8_t m[6]; } kprobe:vfs_read { $a = (struct A *)arg0; print((buf($a->m), macaddr(&$a->m), &$a->m[1], container_of(&$a->m, struct A, m)->m)); print(buf(args.file->f_path.dentry->d_iname, 50)); }`,
		`BEGIN { let $x: uint16 = 70000; $t = ((int8[8])$x, (uint8[])"abc"); if ($t.0 == (int8[8])5 && $t == $t) { print($t[1]); } print((uint32)(bool[2])(uint16)3, (enum kind)1); }`,
		`kprobe:vfs_read { @c = count(); @a[comm] = avg(arg2); for ($kv : @a) { if ($kv.1 > 3 && @c != 2) { print((@c, $kv)); } } delete(@c); @t[1] = tseries(arg2, 1ms, 5, "max"); print(@t); }`,
		`kprobe:vfs_read { $s = str_concat(str(arg0), "x"); if (strcontains($s, "e") && strncmp($s, comm, 3) == 0) { printf("%s %s %d", strftime("%H:%f", nsecs(tai)), ntop(arg1), strstr($s, "l")); } time("%T"); }`,
		`kprobe:vfs_read { @[ustack(perf, 2), len(kstack)] = max(bswap((uint16)arg0)); assert(is_err(arg1), "e"); warnf("%s", macaddr(arg0)); print((ppid, is_ptr(1), memcmp("a", "b", 1))); }`,
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Compile(text, target, Options{CPUs: 1, Params: []string{"7", "vm"}})
		var wrong *Error
		if err != nil {
			outside := errors.As(err, &wrong) && (wrong.Col > len(wrong.Source)+1 || !strings.Contains(text, wrong.Source))
			if outside && strings.Contains(wrong.Source, cut) { // a part of a long line
				outside = wrong.Mark+wrong.Width > len(wrong.Source)
			}
			if wrong == nil || outside || wrong.Line < 1 || wrong.Col < 1 || wrong.Message == "" {
				t.Fatalf("%q: error %+v", text, err)
			}
			return
		}
		total := 0
		for _, m := range s.Object.Maps {
			total += int(m.MaxEntries) * int(m.ValueSize+m.KeySize+8)
		}
		if total > 8<<20 {
			return // a machine that is fuzzed has little memory
		}
		col, err := s.Object.Load(1, bpf.Heap{}, 1<<12)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		defer col.Close()
		discard := func(text string) { io.WriteString(io.Discard, text) }
		p := s.NewPrinter(func(name string) *bpf.Map { return col.Maps[name] }, target, len(text)%2 == 1, holdNothing, discard, discard)
		var ctx [bpf.ReturnSize]byte
		for _, lp := range col.Programs {
			_, err := bpf.NewVM(lp.Program, 0).Run(ctx[:lp.Kind().ContextSize()], bpf.NoEnv{})
			var fault *bpf.Fault
			if errors.As(err, &fault) && fault.Code != bpf.FaultBudget {
				t.Fatalf("%q: program %s: %v", text, lp.Name(), err)
			}
		}
		if m := col.Maps[mapOutput]; m != nil {
			if _, err := p.drain(m); err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
		p.PrintMaps()
		p.Problems(true)
	})
}
