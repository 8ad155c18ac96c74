package script

import (
	"fmt"
	"strings"
	"testing"
)

// doubled are assignments of tuples of which each is twice the one before.
func doubled(n int) string {
	s := strings.Builder{}
	for i := range n {
		fmt.Fprintf(&s, "$%c = ($%c, $%[2]c);", name(i+1), name(i))
	}
	return s.String()
}

// name is a letter for a variable.
func name(i int) rune {
	if i < 26 {
		return rune('a' + i)
	}
	return rune('A' + i - 26)
}

// TestRefused: what is not in the language here is refused by name, most of it with what
// to write instead, and what is wrong with the place.
func TestRefused(t *testing.T) {
	for _, c := range [][2]string{
		{`BEGIN { print(fake); }`, "stdin:1:15-18: ERROR: Unknown identifier: 'fake'\nBEGIN { print(fake); }\n              ~~~~"},
		{"BEGIN {\n\t@x = cout();\n}", "stdin:2:7-12: ERROR: Unknown function: 'cout'\n @x = cout();\n      ~~~~~~\nHINT: did you mean count?"},
		{`kprobe:vfs_red { }`, "HINT: did you mean vfs_read?"},
		{`kprob:vfs_read { }`, "HINT: did you mean kprobe?"},
		{`tracepoint:sched:sched_switch { }`, "probe type 'tracepoint' is not supported"},
		{`uprobe:/bin/sh:main { }`, "HINT: write kprobe:SYMBOL"},
		{`BEGIN { @ = quantize(1); }`, "HINT: that is DTrace's name; write hist(n)"},
		{`BEGIN { system("ls"); }`, "system is not supported"},
		{`BEGIN { $x = ((struct task_struct *)0)->pid; }`, "structs are not supported"},
		{`kprobe:vfs_read { print(args.count); }`, "HINT: write arg0 to arg9"},
		{`BEGIN { print(arg0); }`, "The arg0 builtin can not be used with 'begin' probes"},
		{`kprobe:vfs_read { print(retval); }`, "can only be used with 'kretprobe' probes"},
		{`BEGIN { $x = 1; print($y); }`, "Undefined or undeclared variable: $y"},
		{`BEGIN { print(@x); }`, "Undefined map: @x"},
		{`BEGIN { @x[1] = 1; @x = 2; }`, "previously used with an explicit key"},
		{`BEGIN { @x[1] = 1; @x["a"] = 2; }`, "when map expects arguments"},
		{`BEGIN { $x = 1; $x = "a"; }`, "Type mismatch for $x"},
		{`BEGIN { $x = count(); }`, "count() must be assigned directly to a map"},
		{`BEGIN { @ = lhist(1, 0, 10000, 1); }`, "lhist() too many buckets, must be <= 1000 (would need 10000)"},
		{`BEGIN { printf("%d\n", "x"); }`, "%d specifier expects a value of type integer (string[2] supplied)"},
		{`BEGIN { printf("%q\n", 1); }`, `printf: unknown format "%q"`},
		{`BEGIN { break; }`, "break statement outside of a loop"},
		{`BEGIN { @a[1] = stats(1); for ($kv : @a) { } }`, "for does not support a map of stats()"},
		{`BEGIN { @a[1] = hist(1); print(len(@a)); }`, "len() does not support a map of hist()"},
		{`BEGIN { @a = hist(1); if (@a > 1) { } }`, "a map of hist() has no value for an expression"},
		{`BEGIN { @a[1] = stats(1); print(@a[1]); }`, "Map type stats cannot print the value of individual keys. You must print the whole map."},
		{`BEGIN { @a = count(); @b = @a; }`, "HINT: write @b = (int64)@a for its number"},
		{`BEGIN { @a = stats(1); @b = 1; @b = @a; }`, "a map of stats() has no value for an expression"},
		{`BEGIN { @a = count(); @a++; }`, "trying to assign value of type 'int64' when map already contains a value of type 'count'"},
		{`BEGIN { @a = 1; print(len(@a)); }`, "len() expects a map with explicit keys"},
		{`macro f($x) { $x } BEGIN { }`, "macro is not supported"},
		{`config = { max_map_key=1 } BEGIN { }`, "HINT: did you mean max_map_keys?"},
		{`BEGIN { print("a" < "b"); }`, "The < operator can not be used on strings"},
		{`BEGIN { print(*5); }`, "HINT: say what it points to"},
		{`interval:s:0 { }`, "interval: want a number above 0"},
		{`kprobe:vfs_read+0x { }`, "want FUNCTION+OFFSET"},
		{`BEGIN { print(1) `, "unexpected end of the script"},
		{`BEGIN { "a`, "string without end"},
		{`/* BEGIN { }`, "comment without end"},
		{``, "no probes in the script"},
		{`BEGIN { ` + strings.Repeat("(", 200) + `1` + strings.Repeat(")", 200) + ` }`, "nested too deep"},
		{`BEGIN { $t = (1, 2); print($t.2); }`, "Invalid tuple index: 2. Found 2 elements in tuple."},
		{`BEGIN { @a["` + strings.Repeat("x", 600) + `"] = 1; }`, "the key of @a has 608 bytes: at most 512"},
		// What would take long, or much memory.
		{`BEGIN { unroll(100) { unroll(100) { unroll(100) { unroll(100) { } } } } }`, "the program of this probe has more than 32768 instructions"},
		{`BEGIN { unroll(100) { unroll(100) { @++; @a[1]++; } } }`, "the program of this probe has more than 32768 instructions"},
		{`BEGIN { $a = (1, 2); ` + doubled(40) + ` }`, "a tuple of 8192 bytes: at most 4096"},
		{`config = { max_strlen = 400 } BEGIN { if (` + strings.Repeat(`(@s == @t && @s != "x") || `, 900) + `1) { @s = str(0, 400); @t = str(0, 400); } }`, "the program of this probe has more than 32768 instructions"},
		{strings.Repeat("BEGIN { }\n", 65), "more than 64 of BEGIN, END and intervals"},
	} {
		_, err := Compile(c[0], target, Options{CPUs: 1})
		if err == nil || !strings.Contains(err.Error(), c[1]) {
			t.Errorf("%s\nerror %v\nwant %s", c[0], err, c[1])
		}
	}
	for name := range absent {
		if calls[name].most > 0 || builtins[name].typ.Kind != None {
			t.Errorf("%s is said to be absent, and is there", name)
		}
	}
}
