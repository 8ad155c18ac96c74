package script

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
)

// TestEffort compiles scripts of the largest size that are made to cost much. Each is refused, or compiled, for a bounded
// number of bytes of memory.
func TestEffort(t *testing.T) {
	const most = 96 << 20
	long := func(head, part, tail string) string {
		return head + strings.Repeat(part, (MaxSource-len(head)-len(tail))/len(part)) + tail
	}
	chain := func(format string) (text string) { // each uses the one before it twice
		for i := 1; i < 60; i++ {
			text += fmt.Sprintf(format, i, i-1)
		}
		return text
	}
	for name, text := range map[string]string{
		"statements":  long("BEGIN { ", "@a=1;", "}"),
		"operands":    long("BEGIN { @a = 0", "+1", ";}"),
		"parentheses": long("BEGIN { @a = ", "(", ";}"),
		"clauses":     long("", "BEGIN{@=1;}", ""),
		"messages":    long("BEGIN {", "print(\"a\");", "}"),
		"formats":     long("BEGIN {", "printf(\"%d\",1);", "}"),
		"nested":      long("BEGIN {", "if(1){", "}"),
		"variables":   long("BEGIN { $b = 1;", "$a=$b;", "}"),
		"members":     long("struct a { ", "int a;", "}; BEGIN {}"),
		"places":      long("kprobe:vfs_read", ",kprobe:vfs_read", "{}"),
		"patterns":    long("kprobe:*", ",kprobe:*", "{ @[comm, pid, arg0] = count(); }"),
		"string":      long("BEGIN { @=\"", "a", "\"}"),
		"strings":     long("BEGIN { @[\"a", "a", "\"] = \"b\"; }"),
		"keys":        long("BEGIN { @[1", ",1", "]=1}"),
		"maps":        long("BEGIN {", "@a[1,2,3,\"abc\"]=count();", "}"),
		"unrolled":    "BEGIN { unroll(100) { unroll(100) { unroll(100) { unroll(100) { @a += 1; } } } } }",
		"empty loops": "BEGIN { unroll(100) { unroll(100) { unroll(100) { unroll(100) { } } } } }",
		"macros":      "macro m0() { 1 }" + chain("macro m%d() { m%[2]d() + m%[2]d() }") + "BEGIN { @ = m59(); }",
		"definitions": "#define D0 1\n" + chain("#define D%d D%[2]d + D%[2]d\n") + "BEGIN { @ = D59; }",
		"structures":  "struct s0 { int a[1000]; };" + chain("struct s%d { struct s%[2]d a; struct s%[2]d b; };") + "BEGIN { @ = sizeof(struct s59); }",
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Compile(text, target, Options{CPUs: 2})
		runtime.ReadMemStats(&after)
		n := after.TotalAlloc - before.TotalAlloc
		if n > most {
			t.Errorf("%s: %d MB were allocated: %.100v", name, n>>20, err)
		}
		t.Logf("%-12s %3d MB: %.100v", name, n>>20, err)
	}
}

// TestStop: the caller's error ends a compilation, while it parses, checks and generates.
func TestStop(t *testing.T) {
	enough := errors.New("enough")
	text := "BEGIN { unroll(100) {" + strings.Repeat("@a[1]=1;", 500) + "} }"
	for after := range 5 {
		calls := 0
		_, err := Compile(text, target, Options{CPUs: 2, Stop: func() error {
			if calls++; calls > after {
				return enough
			}
			return nil
		}})
		if !errors.Is(err, enough) || calls != after+1 {
			t.Errorf("stopped at call %d of %d: %v", after+1, calls, err)
		}
	}
}
