package script

import (
	"strings"
	"testing"
)

// textHit is a call of vfs_read with texts at its first two arguments.
func textHit(a, b string) []hit {
	return []hit{{fn: "vfs_read", args: [6]uint64{0x10000, 0x20000}, memory: map[uint64]string{0x10000: a + "\x00", 0x20000: b + "\x00"}}}
}

// TestTruncatedStrings compares strings that fill their type with bpftrace's.
func TestTruncatedStrings(t *testing.T) {
	const eight = "config = { max_strlen = 8 } "
	for _, c := range []struct {
		name, script string
		text         string // at arg0
		want         string
		warning      string
		json         bool
	}{
		{name: "longer", script: `config = { max_strlen = 5 } k:vfs_read { printf("P: %s\n", str(arg0)); }`, text: "/proc/self", want: "P: /proc.."},
		{name: "shorter", script: `config = { max_strlen = 5 } k:vfs_read { print(str(arg0)); }`, text: "/pro", want: "/pro"},
		{name: "exactly the length", script: `config = { max_strlen = 5 } k:vfs_read { print(str(arg0)); }`, text: "/proc", want: "/proc.."},
		{name: "one byte", script: `config = { max_strlen = 1 } k:vfs_read { print(str(arg0)); }`, text: "/proc", want: "/.."},
		{name: "trailer", script: `config = { max_strlen = 5; str_trunc_trailer = "_xxx" } k:vfs_read { print(str(arg0)); print(config.str_trunc_trailer); }`, text: "/proc/self", want: "/proc_xxx\n_xxx"},
		{name: "no trailer", script: `config = { max_strlen = 5; str_trunc_trailer = "" } k:vfs_read { print(str(arg0)); }`, text: "/proc/self", want: "/proc"},
		{name: "default", script: `k:vfs_read { print(str(arg0)); print(config.str_trunc_trailer); }`, text: strings.Repeat("x", 70), want: strings.Repeat("x", 64) + "..\n.."},
		{name: "length", script: eight + `k:vfs_read { print(str(arg0, 5)); }`, text: "zztest", want: "zzte"},
		{name: "length of a variable", script: eight + `k:vfs_read { $a = (uint16)5; print(str(arg0, $a)); print(str(arg0, $a - 1)); }`, text: "zztest", want: "zzte\nzzt"},
		{name: "length of an expression", script: eight + `k:vfs_read { $a = 1; print(str(arg0, $a + 4)); }`, text: "zztest", want: "zzte"},
		{name: "length that is the most", script: eight + `k:vfs_read { $a = 8; print(str(arg0, $a)); print(str(arg0, 8)); }`, text: "123456789", want: "1234567\n1234567"},
		{name: "length above the most", script: eight + `k:vfs_read { $a = 9; print(str(arg0, $a)); print(str(arg0, 9)); }`, text: "123456789", want: "12345678..\n12345678..",
			warning: "length param (9) is too long and will be shortened to 8 bytes (see BPFTRACE_MAX_STRLEN)"},
		{name: "bytes", script: eight + `k:vfs_read { $s = str(arg0); print(strlen($s)); print($s == "12345678"); print($s == "1234567"); print($s == "123456789"); print($s == str(arg0)); print(strcontains($s, "78")); print(str_concat($s, "x")); }`,
			text: "123456789", want: "8\ntrue\nfalse\nfalse\ntrue\ntrue\n12345678x"},
		{name: "places", script: eight + `k:vfs_read { $s = str(arg0); print($s); print((1, $s)); print((a=$s, b=2)); @k[$s] = 1; @v = $s; print(@v); clear(@v); @k[str(arg0)]++; printf("%.3s|%12s\n", $s, $s); }`,
			text: "123456789", want: "12345678..\n(1, 12345678..)\n{ .a = 12345678.., .b = 2 }\n@v: 12345678..\n123|  12345678..\n\n\n@k[12345678..]: 2"},
		{name: "JSON", script: eight + `k:vfs_read { print((str(arg0), "x")); @k[str(arg0)] = str(arg0); }`, json: true, text: "123456789",
			want: `{"type": "value", "data": ["12345678..","x"]}` + "\n" + `{"type": "map", "data": {"@k": {"12345678..": "12345678.."}}}`},
		{name: "arrays of characters", script: `struct s { char c[4]; } ` + eight + `k:vfs_read { print(((struct s *)arg0)->c); print(str(((struct s *)arg0)->c)); }`, text: "1234", want: "1234\n1234"},
		{name: "end of memory", script: eight + `k:vfs_read { print(str(arg0 + 248)); }`, text: strings.Repeat("x", 255) + strings.Repeat("\x00", 256), want: "xxxxxxx"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := runScript(t, c.script, nil, c.json, 0, textHit(c.text, "")...)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(r.out); got != c.want {
				t.Errorf("printed\n%s\nwant\n%s", got, c.want)
			}
			if got := r.warnings; (got == "") != (c.warning == "") || !strings.Contains(got, c.warning) {
				t.Errorf("warnings %q, want %q", got, c.warning)
			}
		})
	}
}

// TestBigStrings runs programs whose strings are copied and compared by loops.
func TestBigStrings(t *testing.T) {
	const config = "config = { max_strlen = 9999 } "
	text := "/" + strings.Repeat("X", 5555)
	other := text[:5554] + "YX"
	for _, c := range []struct{ name, script, want string }{
		{"key", `{ @[str(arg0)] = count(); @[str(arg0)] = count(); @[str(arg1)] = count(); }`, "@[" + other + "]: 1\n@[" + text + "]: 2"},
		{"key and value", `{ @[1, str(arg0)] = str(arg1); @c = @[1, str(arg0)]; clear(@); }`, "@c: " + other},
		{"printf", `{ printf("%s\n", str(arg0)); }`, text},
		{"tuple", `{ print((1, (2, str(arg0)))); }`, "(1, (2, " + text + "))"},
		{"strncmp", `{ print((strncmp(str(arg0), "/XXX", 4), strlen(str(arg0)))); }`, "(0, 5556)"},
		{"empty", `{ @s = str(arg0 + 5556); @ss = @s; print("success"); }`, "success\n\n\n@s: \n@ss:"},
		{"variables", `{ $a = str(arg0); $a = str(arg1); print($a); }`, other},
		{"comparison", `{ print(str(arg0) == str(arg0) ? 1 : 2); }`, "1"},
		{"other text", `{ print(str(arg0) == str(arg1) ? 1 : 2); }`, "2"},
		{"shorter type", `{ print(str(arg0, 5556) == str(arg0) ? 1 : 2); print(str(arg0) == str(arg0, 5556) ? 1 : 2); print(str(arg0) == str(arg0, 5559) ? 1 : 2); }`, "2\n2\n1"},
		{"elements of a loop", `{ @[str(arg0)] = 1; for ($kv : @) { print($kv); } clear(@); }`, "(" + text + ", 1)"},
		{"joined", `{ $s = str_concat(str(arg0), "!"); print((strlen($s), $s)); }`, "(5557, " + text + "!)"},
		{"deleted", `{ @[str(arg0)] = 1; @[str(arg1)] = 2; delete(@, str(arg0)); }`, "@[" + other + "]: 2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := runScript(t, config+"k:vfs_read "+c.script, nil, false, 0, textHit(text, other)...)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(r.out); got != c.want {
				t.Errorf("printed\n%.300s (%d bytes)\nwant\n%.300s (%d bytes)", got, len(got), c.want, len(c.want))
			}
			if r.warnings != "" {
				t.Errorf("warnings %s", r.warnings)
			}
		})
	}
	long := strings.Repeat("z", 20000)
	r, err := runScript(t, `config = { max_strlen = 16384 } k:vfs_read { print(str(arg0)); @[str(arg0)] = 1; }`, nil, false, 0, textHit(long, "")...)
	if want := long[:16384] + "..\n\n\n@[" + long[:16384] + "..]: 1"; err != nil || strings.TrimSpace(r.out) != want {
		t.Errorf("the longest string: %v, %d bytes, want %d", err, len(r.out), len(want))
	}
}
