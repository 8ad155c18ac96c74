package script

import (
	"regexp"
	"strings"
	"testing"
)

// TestSmallThings holds what an independent check of the language has found.
func TestSmallThings(t *testing.T) {
	read := []hit{{fn: "vfs_read"}}
	for _, c := range []struct {
		name, script, want string // the output, or a pattern for an error
		fails              bool
		hits               []hit
	}{
		{name: "string in a loop", script: `BEGIN { $p = ""; for ($i : 0..3) { $p = str_concat($p, "xy"); } print($p); }`, want: "xyxyxy"},
		{name: "string in a map", script: `BEGIN { @p = "a"; unroll(20) { @p = str_concat(@p, "bcd"); } print((@p, strlen(@p))); clear(@p); }`, want: "(a" + strings.Repeat("bcd", 20) + ", 61)"},
		{name: "string in keyed maps", script: `BEGIN { for ($i : 0..4) { @p[$i % 2] = str_concat(@p[$i % 2], "ab"); } print((@p[0], @p[1])); clear(@p); }`, want: "(abab, abab)"},
		{name: "string that is cut", script: `BEGIN { $p = "x"; for ($i : 0..12) { $p = str_concat($p, $p); } print(strlen($p)); }`, want: "1023"},
		{name: "endless tuple", script: "BEGIN {\n\t$t = (1, 2);\n\t$t = ($t, 1);\n}", want: `stdin:3:2-14: ERROR: Type mismatch for \$t`, fails: true},
		{name: "misspelled map in for", script: `BEGIN { @name[1] = 1; for ($kv : @nam) { print($kv); } }`, want: `stdin:1:34-38: ERROR: Undefined map: @nam\n.*\n *~~~~\nHINT: did you mean @name\?`, fails: true},
		{name: "unknown map in for", script: `BEGIN { for ($kv : @nope) { print($kv.0); } }`, want: `Undefined map: @nope`, fails: true},
		{name: "let without a value", script: "BEGIN {\n\tlet $v;\n\tprint($v);\n}", want: `stdin:3:8-10: ERROR: Undefined or undeclared variable: \$v\n.*\n.*\nHINT: it is declared, and nothing`, fails: true},
		{name: "let that nothing uses", script: `BEGIN { let $v; print(1); }`, want: "1"},
		{name: "let with a type", script: `BEGIN { let $v : uint32; let $s : string; print(($v, $s)); }`, want: "(0, )"},
		{name: "let assigned later", script: `BEGIN { let $v; if (1) { $v = "abc"; } print($v); }`, want: "abc"},
		{name: "let counted", script: `BEGIN { let $v; $v++; print($v); }`, want: "1"},
		{name: "define behind a structure", script: "struct a { int x; }\n#define X 5\nenum { E = 7 }\n#define Y 6\nBEGIN { print((X, Y, E)); }\n#define Z 7\nEND { print(Z); }", want: "(5, 6, E)\n7"},
		{name: "define in a block", script: "BEGIN {\n#define X 5\nprint(X);\n}", want: `stdin:2:1-2: ERROR: syntax error, unexpected "#"`, fails: true},
		{name: "enumerators without a name", script: `enum { ONE = 1, TWO = 2 }; BEGIN { @[ONE] = 11; @t[ONE, TWO] = (ONE, TWO); @v = TWO; $f = ONE; print($f); printf("%d %s\n", TWO, TWO); print((ONE + 1, ONE)); }`,
			want: "ONE\n2 TWO\n(2, ONE)\n\n\n@[ONE]: 11\n@t[ONE, TWO]: (ONE, TWO)\n@v: TWO"},
		{name: "quoted place", script: `kprobe:"vfs_read" { print(probe); }`, want: "kprobe:vfs_read", hits: read},
		{name: "quoted pattern", script: `k:"vfs_rea[d]" , kprobe:"vfs_"write { printf("%s\n", func); }`, want: "vfs_read", hits: read},
		{name: "quoted times", script: `interval:"s":"1" { } BEGIN { print(1); } "BEGIN" { }`, want: `syntax error, unexpected string "BEGIN"`, fails: true},
		{name: "quotation mark without another", script: `kprobe:"vfs_read { print(1); }`, want: "string without end", fails: true},
		{name: "quoted parameter", script: `kprobe:"$1" { print(1); }`, want: `No matches for kprobe \$1`, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := runScript(t, c.script, []string{"vfs_read"}, false, 0, c.hits...)
			if c.fails {
				if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) {
					t.Errorf("%v, want %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.TrimSpace(r.out); got != c.want {
				t.Errorf("printed\n%s\nwant\n%s\n%s", got, c.want, r.warnings)
			}
		})
	}
}
