package script

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
)

// words are consecutive numbers as in memory.
func words(v ...uint64) string {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, x)
	}
	return string(b)
}

// readFile is a call of vfs_read with a struct file of kerneltest.Types, and its return.
func readFile() []hit {
	at := func(off int, s string) string { return strings.Repeat("\x00", off) + s }
	file := []byte(at(0x80, ""))
	put := func(off int, s string) { copy(file[off:], s) }
	put(0x8, "\x1d\x80\x0a\x00")
	put(0x40, words(0x9000, 0x20000))
	put(0x50, words(^uint64(6)))
	put(0x58, "\x01\x00\x00\x00\x01")
	put(0x60, "\xb5\x81\xc0\x80\xff\xff\xff\x0f") // three 5, low -10, byte 0x81; the rest are of across and wide
	put(0x68, words(0xf800000000000005))
	put(0x7c, "\xfe\xff\x01A")
	h := hit{fn: "vfs_read", pid: 7, comm: "cat", args: [6]uint64{0x10000, 0x7000, 100, 0x60000}, memory: map[uint64]string{
		0x10000: string(file),
		0x20000: at(0x18, words(0x20000)) + words(0x600000001, 0x30000) + words(0) + "passwd\x00garbage",
		0x30000: "passwd\x00", 0x60000: words(42), 0x7000: "text\x00",
	}}
	h.memory[0x20000] = at(0x18, words(0x20000)) + words(0x600000001, 0x30000) + at(8, "passwd\x00garbage")
	r := h
	r.ret, r.retval = true, ^uint64(8)
	return []hit{h, r}
}

// nestStructs are structures without bytes, each of many of the one before.
func nestStructs(n int) string {
	s, names := "struct s0 { char a[0]; }; ", ""
	for i := range 1000 {
		names += fmt.Sprintf(", a%d", i)
	}
	for i := 1; i < n; i++ {
		s += fmt.Sprintf("struct s%d { struct s%d a%s; }; ", i, i-1, names)
	}
	return s
}

// TestTypes: scripts read what the guest's types say where the memory has it.
func TestTypes(t *testing.T) {
	const enter, leave = `kprobe:vfs_read { `, `kretprobe:vfs_read { `
	for _, c := range []struct{ script, want, warning string }{
		{enter + `printf("%s %d\n", str(args.file->f_path.dentry->d_name.name), args.count); }`, "passwd 100", ""},
		{enter + `printf("%s %d\n", str(args->file.f_path.dentry.d_name.name), args->count); }`, "passwd 100", ""},
		{enter + `$f = (struct file *)arg0; print(($f->f_mode, $f->f_pos, $f->short, $f->ok, $f->letter)); }`, "(688157, -7, -2, true, 65)", ""},
		{enter + `$f = args.file; print(($f->three, $f->low, $f->byte, $f->flag, $f->wide)); }`, "(5, -10, 129, true, 2233785415175766016)", ""},
		{enter + `print(args.file->f_path.dentry->d_name.len); print(args.file->f_path.dentry->d_name.hash_len); }`, "6\n25769803777", ""},
		{enter + `$d = args.file->f_path.dentry; print($d->d_iname); @[$d->d_iname] = 1; print($d->d_iname == "passwd"); print(strlen($d->d_iname)); print($d->d_iname[1]); clear(@); }`, "passwd\ntrue\n6\n97", ""},
		{enter + `print(args.file->f_path); $p = args.file->f_path; print($p.dentry->d_name.len); @p = $p; print(@p.mnt); }`, "{ .mnt = 0x9000, .dentry = 0x20000 }\n6\n0x9000\n\n\n@p: { .mnt = 0x9000, .dentry = 0x20000 }", ""},
		{enter + `print((args.file->kind, args.file->small, (enum kind)1, SOME, (enum kind)2)); printf("%d %s\n", args.file->kind, args.file->kind); }`, "(SOME, LITTLE, SOME, SOME, 2)\n1 SOME", ""},
		{enter + `if (args.file->kind == SOME) { print(*args.pos); print(args.pos[0]); print(args.file); } }`, "42\n42\n0x10000", ""},
		{enter + `print(((struct pair *)(arg0 + 0x40))->b); print(*(struct pair *)(arg0 + 0x40)); print(((struct pair *)(arg0 + 0x30) + 1)->a); }`, "131072\n{ .a = 36864, .b = 131072 }\n36864", ""},
		{enter + `print((sizeof(struct file), sizeof(struct dentry *), sizeof(unsigned long), sizeof(args.file->short), sizeof(args.file->f_path.dentry->d_iname), offsetof(struct file, f_path.dentry), offsetof(struct dentry, d_name.len))); }`,
			"(128, 8, 8, 2, 40, 72, 36)", ""},
		{enter + `print(((struct dentry *)0)->d_flags); }`, "0", `WARNING: Bad address`},
		{enter + `print(((struct file *)0x666000)->f_path.dentry->d_iname); print(*(struct pair *)0x666000); }`, "\n{ .a = 0, .b = 0 }", `WARNING: Bad address`},
		{leave + `if (retval < 0) { printf("%d %d\n", retval, args.count); } @ = hist(retval); clear(@); }`, "-9 100", ""},
		{`kprobe:get_dentry { print((args.k, args.s, args.ok, args.letter, args.short_one)); }`, "(SOME, LITTLE, true, 65, -2)", ""},
		{`kretprobe:get_dentry { print(retval->d_flags); print(retval); }`, "0\n0x20000", ""},
		// Pointers, as tests of bpftrace have them.
		{`BEGIN { @=(int8*) 0x32; @+=1; }`, "@: 0x33", ""},
		{`BEGIN { @=(int16*) 0x32; @+=1; }`, "@: 0x34", ""},
		{`BEGIN { @=(int64*) 0x32; @++; }`, "@: 0x3a", ""},
		{`BEGIN { @=(int32*) 0x32; @-=1; }`, "@: 0x2e", ""},
		{`BEGIN { @=(int32*) 0x32; --@; }`, "@: 0x2e", ""},
		{`BEGIN { $p=(int32*) 0x32; $p++; $q = $p--; print(($p, $q)); }`, "(0x32, 0x36)", ""},
		{`BEGIN { @dec = 4; @=(int32*) 0x32; @-=@dec; clear(@dec); }`, "@: 0x22", ""},
		{`struct A {int32_t a; int32_t b; char c[28] }; BEGIN { $a=(struct A*) 1024; printf("%lu - 5 x %lu = %lu\n", $a, sizeof(struct A), $a-5);  }`, "1024 - 5 x 36 = 844", ""},
		{`BEGIN { $a = (int64*) 0x32; $a++; if (0x32 < $a && $a > 0x32) { print("SUCCESS"); } print(2 + $a); }`, "SUCCESS\n0x4a", ""},
		{enter + `$p = (uint8 **)(arg0 + 0x40); print(**($p + 1)); print(*($p[1] + 1)); }`, "0\n0", ""},
		// Arrays.
		{`struct A { int x[4]; } ` + enter + `$a = (struct A *)(arg0 + 0x40); @x = $a.x[2]; @y[1] = $a->x; @k[$a->x, 42] = 1; @t = (1, $a.x); $l = $a.x; $i = 2; print(($l[2], $l[$i], @y[1][2], $a->x == $l)); }`,
			"(131072, 131072, 131072, true)\n\n\n@k[[36864,0,131072,0], 42]: 1\n@t: (1, [36864,0,131072,0])\n@x: 131072\n@y[1]: [36864,0,131072,0]", ""},
		{`struct B { uint16_t y[2][2]; } ` + enter + `$b = ((struct B *)(arg0 + 0x7c)).y; print($b); print(($b[0][0], ((struct B *)(arg0 + 0x7c))->y[0][1])); @b[0] = $b; print(@b[0][0][1]); clear(@b); }`,
			"[[65534,16641],[0,0]]\n(65534, 16641)\n16641", ""},
		{`struct A { int x[4]; } ` + enter + `$y = (uint64)100; $a = (struct A *)arg0; print($a.x[$y]); }`, "0", `Array access out of bounds`},
		{`struct D { int x; int y[0]; } ` + enter + `$a = (struct D *)(arg0 + 0x4c); print(($a.y[0], $a.y[1])); }`, "(-7, -1)", ""},
		{`BEGIN { printf("%x %x\n", ((int8[8])12345)[0], ((int8[])12345)[1]); print((int8[])"hello"); print((uint16[2])(uint32)0x20001); print((uint32)(uint8[4])(uint32)0xddccbbaa); @a = (bool[2])(uint16)1; }`,
			"39 30\n[104,101,108,108,111,0]\n[1,2]\n3721182122\n\n\n@a: [true,false]", ""},
		// What the script defines.
		{`struct in { unsigned a:3, b:5; int:0; char c; union { short s; uint8_t raw[4]; }; struct { int deep; } sub; void (*fn)(int, void *); enum { ONE = 1, TEN = 10, MORE } e; };
		  typedef struct in in_t; BEGIN { print((sizeof(struct in), sizeof(in_t *), offsetof(struct in, c), offsetof(in_t, s), offsetof(struct in, sub.deep), offsetof(struct in, fn), offsetof(struct in, e), MORE)); }`,
			"(32, 8, 4, 6, 12, 16, 24, MORE)", ""},
		{`struct odd { unsigned long a:61; int b:7; char name[5]; } ` + enter + `$o = (struct odd *)(arg0 + 0x68); print(($o->a, $o->b)); print(*$o); }`, "(1729382256910270469, 0)\n{ .a = 1729382256910270469, .b = 0, .name =  }", ""},
		{`struct s { char name[4]; }; kprobe:vfs_read { print(((struct s *)args.file->f_path.dentry->d_name.name)->name); }`, "pass", ""},
		{nestStructs(7) + ` BEGIN { print((sizeof(struct s6), offsetof(struct s6, a))); }`, "(0, 0)", ""},
		{enter + `$d = args.file->f_path.dentry; print(container_of(&$d->d_name, struct dentry, d_name) == $d); print(&args.file->f_path.dentry); print((&$d->d_name)->len); print(&$d->d_iname); print(container_of(args.file, struct file, f_path)); print(&$d->d_iname[1]); }`,
			"true\n0x10048\n6\n0x20038\n0xffc0\n0x20039", ""},
		{`struct A { uint8_t m[6]; uint16_t h[2]; } ` + enter + `$a = (struct A *)(arg0 + 0x40); print(buf($a->m)); print(buf($a->m, 3)); $l = $a->h; print(buf($l)); $d = args.file->f_path.dentry; print(buf($d->d_iname, 9)); print(buf(&$d->d_iname, 2)); }`,
			`\x00\x90\x00\x00\x00\x00` + "\n" + `\x00\x90\x00` + "\n" + `\x00\x00\x00\x00` + "\n" + `passwd\x00ga` + "\n" + `pa`, ""},
		// Pointers to text.
		{enter + `$n = args.file->f_path.dentry->d_name.name; print(*(string *)$n); print((*(string[3] *)$n, sizeof((string[3] *)$n))); $p = (string[4] *)$n; print(*($p + 1)); }`, "passwd\n(pas, 8)\nwd", ""},
		{leave + `print(args); $x = args; print($x.count); }`, "{ .file = 0x10000, .buf = 0x7000, .count = 100, .pos = 0x60000 }\n100", ""},
		// Records.
		{`begin { $v = 99; $t = (a=0, b=1, c="str", d=(5, 6), e=$v); printf("%d %d %s %d %d %d\n", $t.a, $t.b, $t.c, $t.d.0, $t.d.1, $t.e);  }`, "0 1 str 5 6 99", ""},
		{`begin { $v = (x=1, y=2); $t = (a=0, b=1, c="str", d=(5, 6), e=$v); print($t);  }`, "{ .a = 0, .b = 1, .c = str, .d = (5, 6), .e = { .x = 1, .y = 2 } }", ""},
		{enter + `@[(n=comm, c=args.count)] = count(); @m[1, (z=2)] = (one=1, f=*(struct pair *)(arg0 + 0x40)); print(@m[1, (z=2)].f.a); $r = (a="x",); $r = (a="longer"); print($r == (a="longer")); }`,
			"36864\ntrue\n\n\n@[{ .n = cat, .c = 100 }]: 1\n@m[1, { .z = 2 }]: { .one = 1, .f = { .a = 36864, .b = 131072 } }", ""},
		// Tuples.
		{`BEGIN { $t = (1, ("a", -2)); print(($t == (1, ("a", -2)), $t != (1, ("b", -2)), $t.1.1, $t[0])); let $n = 65537; let $x: uint16 = $n; print($x); let $y: int8; $n = 200; $y = $n; print($y); $y -= 100; print($y); let $p: struct file *; print($p); }`, "(true, true, -2, 1)\n1\n-56\n100\n0x0", ""},
	} {
		hits := readFile()
		hits = append(hits, hit{fn: "get_dentry", args: [6]uint64{0xf00000001, 0x701, 0x101, 0x341, 0xfffe}, memory: hits[0].memory})
		hits = append(hits, hit{fn: "get_dentry", ret: true, retval: 0x20000, memory: hits[0].memory})
		r, err := runScript(t, c.script, nil, false, 0, hits...)
		if err != nil {
			t.Errorf("%s\n%v", c.script, err)
			continue
		}
		if got := strings.Trim(r.out, "\n"); got != strings.Trim(c.want, "\n") {
			t.Errorf("%s\noutput\n%s\nwant\n%s", c.script, got, c.want)
		}
		if (c.warning == "") != (r.warnings == "") || !strings.Contains(r.warnings, c.warning) {
			t.Errorf("%s\nwarnings %q, want %q", c.script, r.warnings, c.warning)
		}
	}
}
