package script

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// everyKind are maps of all kinds that can be added.
const everyKind = `kprobe:vfs_read {
	@c = count(); @s = sum(arg2); @neg = sum((int64)0 - (int64)arg2); @a = avg((int64)arg2 - 50000); @u = avg(arg2); @lo = min((int64)arg2 - 5000); @hi = max(arg2); @st = stats(arg2); @sn = stats((int64)arg2 - 50000);
	@h = hist(arg2); @h3 = hist((int64)arg2 - 100, 3); @l = lhist(arg2, 0, 100000, 10000);
	@kc[comm, arg2 % 5] = count(); @ks[(int64)arg2 % 3 - 1] = sum(arg2); @ka[arg2 % 3, (comm, arg0)] = avg(arg2); @klo[func] = min(arg2); @khi[str(arg1)] = max(arg2); @kst[cpu] = stats(arg2);
	@kh[arg2 % 4] = hist(arg2); @kl[arg0] = lhist(arg2, 0, 100, 7); @never[1] = count(); delete(@never, 1); } BEGIN { @zero = count(); clear(@zero); @none = min(1); clear(@none); }`

// TestSumsAreExact: what several guests have counted adds up to what one had that has seen all of it, as text and as
// JSON, in whatever order it comes.
func TestSumsAreExact(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 18))
	for round := range 20 {
		var hits []hit
		for range 1 + r.IntN(60) {
			h := read4()[r.IntN(4)]
			h.args[2], h.args[0], h.cpu = r.Uint64N(1<<uint(1+r.IntN(30))), uint64(r.IntN(3)), r.IntN(testCPUs)
			hits = append(hits, h)
		}
		parts := make([][]hit, 1+r.IntN(5))
		for _, h := range hits {
			i := r.IntN(len(parts))
			parts[i] = append(parts[i], h)
		}
		for _, asJSON := range []bool{false, true} {
			all, err := runScript(t, everyKind, nil, asJSON, 0, hits...)
			if err != nil {
				t.Fatal(err)
			}
			var total Total
			for _, i := range r.Perm(len(parts)) {
				part, err := runScript(t, everyKind, nil, asJSON, 0, parts[i]...)
				if err != nil {
					t.Fatal(err)
				}
				b, err := json.Marshal(part.states)
				if err != nil {
					t.Fatal(err)
				}
				var states []MapState
				if err := json.Unmarshal(b, &states); err != nil {
					t.Fatal(err)
				}
				if problems := total.Add("vm", states); problems != nil {
					t.Fatal(problems)
				}
			}
			var got strings.Builder
			total.Print(asJSON, func(text string) { got.WriteString(text) })
			want := strings.TrimPrefix(all.out, "\n\n")
			if i := strings.Index(want, `{"type": "helper_error"`); i >= 0 { // guests have their own
				want = want[:i]
			}
			if d := cmp.Diff(want, got.String()); d != "" {
				t.Fatalf("round %d of %d hits in %d guests (-one guest +sum):\n%s", round, len(hits), len(parts), d)
			}
		}
	}
}

// TestSumsOfOthers: values that cannot be added are kept apart, and invalid states
// are reported.
func TestSumsOfOthers(t *testing.T) {
	var total Total
	add := func(who, text string, hits ...hit) []string {
		t.Helper()
		r, err := runScript(t, text, nil, false, 0, hits...)
		if err != nil {
			t.Fatal(err)
		}
		return total.Add(who, r.states)
	}
	for _, who := range []string{"vm2", "vm10"} {
		if p := add(who, `BEGIN { @x = 7; @s["a, b", 1] = "text"; @t = (1, "z"); @n[5] = count(); }`); p != nil {
			t.Error(p)
		}
	}
	if p := add("odd", `BEGIN { @n[5] = hist(3); }`); len(p) != 1 || p[0] != "@n is a map of hist there, and of count elsewhere: it is not in the sums" {
		t.Error(p)
	}
	for _, bad := range []string{
		`[{"name":"@b","kind":"nothing"}]`, `[{"name":"@b","kind":"lhist","low":0,"high":9223372036854775807,"step":1}]`, `[{"name":"@b","kind":"hist","bits":60}]`,
		`[{"name":"@n","keyed":true,"kind":"count","elements":[{"words":[]}]}]`, `[{"name":"@b","kind":"tseries","step":1,"high":1000000000}]`,
		`[{"name":"@c","kind":"hist","elements":[{"counts":{"-1":5}}]}]`, `[{"name":"@d","kind":"int","elements":[{}]}]`,
	} {
		var states []MapState
		if err := json.Unmarshal([]byte(bad), &states); err != nil {
			t.Fatal(err)
		}
		if p := total.Add("hostile", states); len(p) != 1 {
			t.Errorf("%s: %q", bad, p)
		}
	}
	var got strings.Builder
	total.Print(false, func(text string) { got.WriteString(text) })
	want := "@n[5]: 2\n@s[vm10, a, b, 1]: text\n@s[vm2, a, b, 1]: text\n@t[vm10]: (1, z)\n@t[vm2]: (1, z)\n@x[vm10]: 7\n@x[vm2]: 7\n"
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Error(d)
	}
	got.Reset()
	total.Print(true, func(text string) { got.WriteString(text) })
	if !strings.Contains(got.String(), `{"type": "map", "data": {"@x": {"vm10": 7, "vm2": 7}}}`) {
		t.Error(got.String())
	}
}
