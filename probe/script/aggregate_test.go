package script

import (
	"strings"
	"testing"
)

// busy4 are hits on both vCPUs, two on each.
func busy4() (hs []hit) {
	for i, h := range read4() {
		h.cpu = i % testCPUs
		hs = append(hs, h)
	}
	return hs
}

// TestAggregateValues: expressions have the numbers of aggregations, of all vCPUs together.
func TestAggregateValues(t *testing.T) {
	all := `kprobe:vfs_read { @c = count(); @s = sum(arg2); @a = avg((int64)arg2 - 5000); @lo = min(-(int64)arg2); @hi = max(arg2); @k[comm, arg2 & 1] = count(); @kl[arg2 > 50] = min(arg2); } `
	for _, c := range [][2]string{
		{`{ print((@c, @s, @a, @lo, @hi)); }`, "(4, 4197, -3950, -4096, 4096)"},
		{`{ print((int64)@s); print((uint8)@s); print(@c); }`, "4197\n101\n@c: 4"},
		{`{ if (@c > 3 && @c < 5 && 4 == @c) { print("four"); } }`, "four"},
		{`{ print(@c == @c + 0); print(@lo < (int64)@hi ? @lo : 7); }`, "true\n-4096"},
		{`{ @x = (uint64)@c; @y = 1; @y = @s; $z = @hi; @v[@c] = $z; print((@x, @y)); clear(@x); clear(@y); print(@v); clear(@v); }`, "(4, 4197)\n@v[4]: 4096"},
		{`{ print(@k["dd", 0]); print(@k["dd", 2]); printf("%d %d\n", @k["dd", 1], @kl[1]); }`, "3\n0\n1 100"},
		{`{ for ($kv : @k) { print($kv); @n += $kv.1; } print(@n); print(len(@k)); clear(@n); }`, "((dd, 1), 1)\n((dd, 0), 3)\n@n: 4\n2"},
		{`{ for ($kv : @kl) { if ($kv.1 == 100) { print($kv.0 + 0); } } }`, "1"},
		{`{ delete(@k, ("dd", 0)); print(has_key(@k, ("dd", 0))); print(has_key(@k, ("dd", 1))); print(@k); }`, "false\ntrue\n@k[dd, 1]: 1"},
		{`{ delete(@c); delete(@a); delete(@lo); print((@c, @a, @lo)); }`, "(0, 0, 0)"},
		{`{ zero(@k); @e = max(-7); print(@k); print(@e + 0); clear(@e); }`, "@k[dd, 0]: 0\n@k[dd, 1]: 0\n-7"},
	} {
		r, err := runScript(t, all+"END "+strings.TrimSuffix(c[0], "}")+"clear(@c); clear(@s); clear(@a); clear(@lo); clear(@hi); clear(@k); clear(@kl); }", nil, false, 0, busy4()...)
		if err != nil {
			t.Errorf("%s: %v", c[0], err)
			continue
		}
		if got, _, _ := strings.Cut(r.out, "\n\n\n"); got != c[1] || r.warnings != "" {
			t.Errorf("%s prints\n%s\nwant\n%s\nwarnings %s", c[0], got, c[1], r.warnings)
		}
	}
}

// TestDeleteHist: delete of a histogram without a key takes out all of it, of all vCPUs.
func TestDeleteHist(t *testing.T) {
	r, err := runScript(t, `kprobe:vfs_read { @h = hist(arg2); @l = lhist(arg2, 0, 100, 10); @n = stats(arg2); } END { delete(@h); delete(@l); delete(@n); @h = hist(1); }`, nil, false, 0, busy4()...)
	if err != nil {
		t.Fatal(err)
	}
	want := "\n\n@h:\n[1]                    1 |" + strings.Repeat("@", 52) + "|\n\n"
	if r.out != want {
		t.Errorf("got\n%swant\n%s", r.out, want)
	}
}
