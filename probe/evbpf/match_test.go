package evbpf

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/event"
)

// matcher runs one filter on texts.
type matcher struct {
	r *rig
	h *hit
}

func newMatcher(t testing.TB, filter string) *matcher {
	t.Helper()
	m := &matcher{newRig(t, compile(t, "p vfs_read s=+0(%di):string", event.Options{}), filter), &hit{mem: memory{}, regs: &probe.Regs{RDI: uint64(mapped)}}}
	m.r.open(t, Closed) // the answer is enough
	return m
}

func (m *matcher) matches(t testing.TB, text string) bool {
	t.Helper()
	m.h.mem.set(mapped, []byte(text+"\x00"))
	answer, _ := m.r.run(t, m.h)
	return answer == Unwanted
}

func TestPatterns(t *testing.T) {
	for _, tt := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "abc", true}, {"**", "ab", true}, {"a*b", "ab", true}, {"a*b", "axxb", true}, {"a*b", "axxbc", false},
		{"a*a", "a", false}, {"a*a", "aa", true}, {"?", "", false}, {"?", "a", true}, {"?", "ab", false}, {"*a*b*c", "xaybzc", true}, {"*a*b*c", "xaybz", false},
		{"*ab", "aab", true}, {"*aab", "aaab", true}, {"*t*t*", "at", false}, {"*t*t*", "tat", true}, {"*ab*b*", "ab", false}, {"*ab*b*", "abb", true},
		{"[abc]", "b", true}, {"[a-c]x", "bx", true}, {"[a-c]x", "dx", false}, {"[!a-c]", "b", false}, {"[!a-c]", "d", true}, {"[!a-c]", "", false},
		{"[]a]", "]", true}, {"[]a]", "a", true}, {"[a-]", "-", true}, {"[a-]", "b", false}, {"[z-a]", "b", false},
		{"[z-a]*", "", false}, {"[!z-a]", "b", true}, {"[a-cx-z]", "y", true}, {"[a-cx-z]", "d", false}, {"[a-c]", "c", true}, {"[a-c]", "a", true},
		{`\*`, "*", true}, {`\*`, "a", false}, {`a\`, `a\`, true}, {`\[a]`, "[a]", true}, {`\\`, `\`, true}, {"?*", "", false}, {"?*", "x", true},
		{"*12345678901234567*", "a12345678901234567b", true}, {"123456789*", "12345678", false}, {"*" + strings.Repeat("x", 254), strings.Repeat("x", 255), true},
		{strings.Repeat("*a", 20) + "b", strings.Repeat("a", 4000), false}, {strings.Repeat("*a", 20) + "b", strings.Repeat("a", 4000) + "b", true},
	} {
		if got := newMatcher(t, fmt.Sprintf("s ~ '%s'", tt.pattern)).matches(t, tt.text); got != tt.want {
			t.Errorf("%q on %.20q: %v, want %v", tt.pattern, tt.text, got, tt.want)
		}
	}
}

// TestRandomPatterns compares patterns over few letters, where much matches, with
// regular expressions.
func TestRandomPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	word := func(n int, pieces ...string) (s string) {
		for range n {
			s += pieces[r.IntN(len(pieces))]
		}
		return s
	}
	matched, all := 0, 0
	for range 400 {
		pattern := word(r.IntN(7), "a", "b", "ab", "*", "?", "[ab]", "[!a]", "[b-c]", "*")
		m, want := newMatcher(t, fmt.Sprintf(`s ~ "%s"`, pattern)), globRegexp(pattern)
		for range 30 {
			text := word(r.IntN(9), "a", "b", "c")
			got := m.matches(t, text)
			if got != want.MatchString(text) {
				t.Fatalf("%q on %q: %v", pattern, text, got)
			}
			if all++; got {
				matched++
			}
		}
	}
	if matched < all/10 || matched > all*9/10 {
		t.Errorf("%d of %d matched: the test says little", matched, all)
	}
}

// TestOddPatterns compares patterns of much that is special with guest.Glob.
func TestOddPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	bytes := func(n int, of string) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = of[r.IntN(len(of))]
		}
		return string(b)
	}
	for range 1500 {
		pattern := bytes(r.IntN(9), `[[]]!-ab*?\`)
		glob, not := strings.CutPrefix(pattern, "!")
		if glob != "" && guest.CheckGlob(glob) != nil {
			continue
		}
		m := newMatcher(t, fmt.Sprintf(`s ~ "%s"`, pattern))
		for range 12 {
			text := bytes(r.IntN(5), `[]!-ab\*`)
			if got := m.matches(t, text); got != (guest.Glob(glob, text) != not) {
				t.Fatalf("%q on %q: %v", pattern, text, got)
			}
		}
	}
}

// TestFilterTable is a table of what passes.
func TestFilterTable(t *testing.T) {
	l := compile(t, `p:e vfs_read u=%di:u64 s=%si:s32 b=%dx x=%cx:u8 f=%r8:b3@2/8 name=+0(%r9):string lit=\"lit" arr=+0(%r9):u8[2] far=+0(%bx):u32 sym=%di:symstr gone=+0(%bx):string`, event.Options{Tasks: true})
	h := &hit{mem: memory{}, regs: &probe.Regs{
		RDI: 1 << 63, RSI: 0xffffffff, RDX: 0x1234, RCX: 0x1ff, R8: 0x14, R9: uint64(mapped), RBX: 8, RFLAGS: 2, R15: 1<<40 | 2,
	}}
	h.mem.set(mapped, []byte("/etc/passwd\x00"))
	for filter, want := range map[string]bool{
		"u == 0x8000000000000000": true, "u > 9223372036854775807": true, "u < 1": false, "u >= 9223372036854775808": true,
		"u <= 9223372036854775807": false, "u != 0": true, "s == -1": true, "s < 0": true, "s > -2": true, "s & 4": true,
		"s >= 0": false, "b & 0x30": true, "b & 0x8": false, "x == 255": true, "x == 0377": true, "f == 5": true,
		`name == "/etc/passwd"`: true, `name == '/etc/passwd'`: true, `name == "/etc"`: false, `name != "/etc"`: true,
		`name ~ "/etc/*"`: true, `name ~ "*passwd"`: true, `name ~ "*c/p*"`: true, `name ~ "/???/passw[a-e]"`: true,
		`name ~ "passwd"`: false, `lit == "lit"`: true, `lit ~ "l?t"`: true, `lit != "lit"`: false, "far == 0": false, "far != 0": false, "!(far == 0)": true,
		`gone == ""`: false, `gone != "x"`: false, `gone ~ "*"`: false, `gone ~ "!x"`: false, `name ~ "!/etc/*"`: false, `name ~ "!*shadow"`: true, "cpu == 1": true, "CPU < 1": false, "common_pid == 1": true,
		`comm == "task3"`: true, `comm ~ "tas*"`: true, `comm ~ "!tas*"`: false, `comm ~ "!x*"`: true, `comm ~ "!!x"`: true, `comm ~ "\\!x"`: false, `!(comm ~ "!tas*")`: true,
		"common_preempt_count\t==\t0 && !(common_preempt_count > 0)": true, "\tcomm\t~ '!\t*'": true, `COMM != "task3"`: false, "common_flags & 1": true,
		"__probe_ip == 0xffffffff81001000": true, "sym == 0x8000000000000000": true,
		"u == 0 || s == -1 && x == 0": false, "(u == 0 || s == -1) && x == 255": true, "!u == 0": true, "!!u == 0": false,
		"x==255&&f==5": true, "  x  ==  255  ": true, "u == 0 && far == 0 || x == 255": true,
	} {
		if answer, _ := newRig(t, l, filter).run(t, h); (answer == Recorded) != want {
			t.Errorf("%s: answer %d, want %v", filter, answer, want)
		}
	}
}
