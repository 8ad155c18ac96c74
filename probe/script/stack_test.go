package script

import (
	"strings"
	"testing"
)

// TestStacks prints stacks in each mode and of some depths, as keys and as values, and asks
// how long they are.
func TestStacks(t *testing.T) {
	hits := func() (hs []hit) {
		for i := range 3 {
			h := read4()[i]
			if i == 2 {
				h.stack = append([]uint64{}, h.stack[:2]...)
			}
			h.user = []uint64{target["main"] + 5, 0x7fff12345678}
			hs = append(hs, h)
		}
		return hs
	}
	const three, two = "\n        vfs_read+0\n        ksys_read+107\n        do_syscall_64+88\n", "\n        vfs_read+0\n        ksys_read+107\n"
	for _, c := range [][2]string{
		{`@[kstack] = count();`, "\n\n@[" + two + "]: 1\n@[" + three + "]: 2\n"},
		{`@[kstack(2)] = count();`, "\n\n@[" + two + "]: 3\n"},
		{`@[kstack(perf, 2), 1] = count();`, "\n\n@[\n\tffffffff81310000 vfs_read+0\n\tffffffff8133006b ksys_read+107\n, 1]: 3\n"},
		{`@[kstack(1, raw)] = count();`, "\n\n@[\nffffffff81310000\n]: 3\n"},
		{`@[kstack(unwind, raw, 1)] = count();`, "\n\n@[\nffffffff81310000\n]: 3\n"},
		{`@[ustack] = count();`, "\n\n@[\n        main+5\n        0x7fff12345678\n]: 3\n"},
		{`@[dw_ustack(bpftrace, 1), kstack(1)] = count();`, "\n\n@[\n        main+5\n, \n        vfs_read+0\n]: 3\n"},
		{`if (arg2 == 0) { $s = kstack(2); @s = ustack(perf); printf("%s|%s|%d %d %d %d\n", $s, ustack(1), len($s), len(kstack), len(@s), len(kstack(1))); clear(@s); }`,
			two + "|\n        main+5\n|2 3 2 1\n\n\n"},
		{`@m[len(kstack)] = count(); @k[arg2] = kstack; if (arg2 == 100) { print(len(@k)); print(len(@k[100])); print(len(@k[7])); clear(@k); }`, "3\n2\n0\n\n\n@m[2]: 1\n@m[3]: 2\n"},
	} {
		r, err := runScript(t, "kprobe:vfs_read { "+c[0]+" }", nil, false, 0, hits()...)
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		if r.out != c[1] || r.warnings != "" {
			t.Errorf("%s prints\n%q\nwant\n%q\nwarnings %s", c[0], r.out, c[1], r.warnings)
		}
	}
	r, err := runScript(t, `config = { stack_mode = raw } kprobe:vfs_read { print((kstack(1), kstack(bpftrace, 1))); }`, nil, true, 0, hits()[0])
	if want := `{"type": "value", "data": ["\nffffffff81310000\n","\n        vfs_read+0\n"]}` + "\n"; err != nil || r.out != want {
		t.Errorf("%q, %v, want %q", r.out, err, want)
	}
	const inlines = "        [inlined] inner@/src/in.h:7\n        [inlined] outer\n"
	file := hits()[0]
	file.user, file.args[0] = []uint64{mapped, 0x7fff12345678}, mapped
	if r, err = runScript(t, `kprobe:vfs_read { print(ustack); print((usym(arg0), ksym(arg0))); }`, nil, false, 0, file); err != nil || r.out != "\n"+inlines+"        main+7@/src/a.c:12\n        0x7fff12345678\n\n(main, 0x7f8000001007)\n\n\n" {
		t.Errorf("code of a file: %q, %v", r.out, err)
	}
	if r, err = runScript(t, `kprobe:vfs_read { print((ustack(perf), ustack(raw))); }`, nil, true, 0, file); err != nil || r.out != `{"type": "value", "data": ["\n\t1007 inner (inlined)\n\t1007 outer (inlined)\n\t1007 main+7 (/bin/prog)\n\t7fff12345678 0x7fff12345678 ([unknown])\n","\n7f8000001007\n7fff12345678\n"]}`+"\n" {
		t.Errorf("code of a file by its addresses: %q, %v", r.out, err)
	}
	for _, off := range []string{"0", "false"} {
		if r, err = runScript(t, `config = { show_debug_info = `+off+` } kprobe:vfs_read { print(ustack(1)); print(ustack(perf, 1)); print(config.show_debug_info); }`, nil, false, 0, file); err != nil ||
			r.out != "\n        main+7\n\n\n\t1007 main+7 (/bin/prog)\n\nfalse\n\n\n" {
			t.Errorf("without debug information: %q, %v", r.out, err)
		}
	}
	file.user, file.args[0] = []uint64{nameless}, nameless
	if r, err = runScript(t, `config = { show_debug_info = 1 } kprobe:vfs_read { print((ustack, ustack(perf), usym(arg0))); print(config.show_debug_info); }`, nil, true, 0, file); err != nil ||
		!strings.HasPrefix(r.out, `{"type": "value", "data": ["\n        /bin/prog:0x2000@/src/a.c:20\n","\n\t2000 0x2000 (/bin/prog)\n","/bin/prog:0x2000"]}`+"\n"+`{"type": "value", "data": true}`) {
		t.Errorf("code without a name: %q, %v", r.out, err)
	}
	file.user, file.args[0] = []uint64{mapped, unbuilt, 0x7fff12345678}, mapped
	if r, err = runScript(t, `kprobe:vfs_read { print(ustack(build_id)); @[ustack(build_id, 1)] = count(); print(ustack); }`, nil, false, 0, file); err != nil ||
		r.out != "\n00ff 0x1007\n7f9000000010\n7fff12345678\n\n\n"+inlines+"        main+7@/src/a.c:12\n        [inlined] inner@/src/in.h:8\n        vfs_write+0\n        0x7fff12345678\n\n\n\n@[\n00ff 0x1007\n]: 1\n" {
		t.Errorf("code by build IDs: %q, %v", r.out, err)
	}
	if r, err = runScript(t, `config = { stack_mode = build_id } kprobe:vfs_read { print((kstack(bpftrace, 1), ustack(1))); print(kstack()); }`, nil, false, 0, file); err != nil ||
		!strings.HasPrefix(r.out, "(\n        vfs_read+0\n, \n00ff 0x1007\n)\n\nffffffff81310000\n") || strings.Count(r.warnings, "'build_id' stack mode can only be used for ustack") != 1 {
		t.Errorf("build IDs by configuration: %q, %v, %q", r.out, err, r.warnings)
	}
	none := hits()[0]
	none.stack = nil
	if r, err = runScript(t, `kprobe:vfs_read { print(len(kstack)); print(kstack); }`, nil, false, 0, none); err != nil || r.out != "0\n\n\n\n\n" || strings.Count(r.warnings, "Stack could not be kept") != 2 {
		t.Errorf("no stack: %q, %v, %q", r.out, err, r.warnings)
	}
	for _, c := range [][2]string{
		{`}; config = { show_debug_info = 2 } kprobe:vfs_read {`, "show_debug_info: want a number from 0 to 1"},
		{`print(kstack(build_id));`, "'build_id' stack mode can only be used for ustack"},
		{`print(kstack(foo, 1));`, "Invalid stack mode: 'foo'\n"}, {`print(ustack(0));`, "ustack() depth: want 1 to 127\n"}, {`print(kstack(128));`, "kstack() depth: want 1 to 127\n"},
		{`print(len(1));`, "len() expects a map or stack to be provided (int64 provided)"}, {`@x = kstack; @x = ustack;`, "Type mismatch for @x"},
		{`print(kstack + 1);`, "Type mismatch for '+': comparing or combining 'kstack' with 'int64'"},
	} {
		if _, err := Compile("kprobe:vfs_read { "+c[0]+" }", target, Options{CPUs: 1}); err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s: error %v, want %s", c[0], err, c[1])
		}
	}
}
