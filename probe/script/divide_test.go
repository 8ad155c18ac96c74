package script

import (
	"strings"
	"testing"
)

// TestDivideByZero has / and % by 0 be 1, with a warning for each place that has its count.
func TestDivideByZero(t *testing.T) {
	const warning = "WARNING: Divide or modulo by 0 detected. This can lead to unexpected results. 1 is being used as the result."
	for _, c := range []struct{ script, want, warnings string }{
		{`BEGIN { $z = 0; print((5 / $z, 5 % $z, -5 / $z, -5 % $z)); }`, "(1, 1, 1, 1)", "1:24-30 1:32-38 1:40-47 1:49-56"},
		{`BEGIN { $u = (uint64)0; print(((uint64)5 / $u, (uint64)5 % $u, (uint8)5 / (uint8)$u)); }`, "(1, 1, 1)", "1:32-46 1:48-62 1:64-84"},
		{`BEGIN { @z = 0; $x = 7; $x /= @z; @y = 7; @y %= @z; @m[1] = 9; @m[1] /= @none; print(($x, @y, @m[1])); @none = 0; } END { clear(@z); clear(@y); clear(@m); clear(@none); }`, "(1, 1, 1)", "1:25-33 1:43-51 1:64-78"},
		{`BEGIN { for ($i : 0..5) { @s += 10 / ($i & 1); } print((@s, 0)); clear(@s); }`, "(23, 0)", "1:33-46(3 times)"},
		{`BEGIN { $x = 5; print(($x / 0, $x % 0)); }`, "(1, 1)", "1:24-30 1:32-38"},
		{`BEGIN { $a = -9223372036854775808; $b = -1; print(($a / $b, $a % $b, $a / -1, $a % -1)); }`, "(-9223372036854775808, 0, -9223372036854775808, 0)", ""},
		{`BEGIN { $a = 10; print(($a / 3, $a % 3, -$a / 3, -$a % 3)); if ($a / 5 == 2) { print("yes"); } }`, "(3, 1, -3, -1)\nyes", ""},
		{`BEGIN { $z = 0; print(1 ? 2 : 3 / $z); print(0 && 3 / $z); }`, "2\nfalse", ""},
		{`BEGIN { @a = avg(1); clear(@a); print((int64)@a); clear(@a); }`, "1", ""},
	} {
		r, err := runScript(t, c.script, nil, false, 0)
		if err != nil {
			t.Errorf("%s: %v", c.script, err)
			continue
		}
		var places []string
		for line := range strings.Lines(r.warnings) {
			if at, rest, ok := strings.Cut(line, ": "+warning); ok {
				places = append(places, strings.TrimPrefix(at, "stdin:")+strings.TrimSpace(rest))
			}
		}
		if got := strings.TrimSpace(r.out); got != c.want || strings.Join(places, " ") != c.warnings {
			t.Errorf("%s\nprints\n%s\nwant\n%s\nwarnings %q\n%s", c.script, got, c.want, places, r.warnings)
		}
	}
	for _, script := range []string{`BEGIN { print(5 / 0); }`, `BEGIN { print(5 % 0); }`, `BEGIN { print(-5 / 0); }`, `BEGIN { print(2 + 3 / (1 - 1)); }`, `BEGIN { unroll(1 / 0) { } }`} {
		if _, err := runScript(t, script, nil, false, 0); err == nil {
			t.Errorf("%s is compiled", script)
		}
	}
}
