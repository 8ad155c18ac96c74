package guest

import (
	"path"
	"strings"
	"testing"
)

func TestGlob(t *testing.T) {
	tests := []struct {
		pattern, name string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"a", "", false}, {"*", "", true}, {"**", "abc", true},
		{"a*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "abcd", false}, {"*b*", "abc", true},
		{"a?c", "abc", true}, {"a?c", "ac", false}, {"*ab", "aab", true}, {"*a*b*c", "xaybzc", true},
		{"[abc]x", "bx", true}, {"[abc]x", "dx", false}, {"[!abc]x", "dx", true}, {"[^abc]x", "ax", true}, {"[^abc]x", "dx", false},
		{"[a-c]", "b", true}, {"[a-c]", "d", false}, {"[c-a]", "b", false}, {"[]]", "]", true}, {"[!]]", "a", true},
		{"[a-]", "-", true}, {"[-a]", "-", true}, {"[", "[", true}, {"[abc", "[abc", true}, {"[abc", "a", false},
		{"[!", "[!", true}, {`\*`, "*", true}, {`\*`, "a", false}, {`\`, `\`, true}, {`a\?b`, "a?b", true},
		{"*aab", "aaab", true}, {`a\`, `a\`, true}, {"foo.*", "foo.isra.0", true}, {"*[0-9]", "f7", true},
	}
	for _, tt := range tests {
		if got := Glob(tt.pattern, tt.name); got != tt.want {
			t.Errorf("Glob(%q, %q) = %v", tt.pattern, tt.name, got)
		}
	}
}

// TestGlobTime: with a search that tries everything this would not end.
func TestGlobTime(t *testing.T) {
	if Glob(strings.Repeat("*a", 1000)+"b", strings.Repeat("a", 20000)) {
		t.Error("matched")
	}
}

// FuzzGlob compares with the standard library where the two languages are
// the same: no brackets, no backslash, no slash.
func FuzzGlob(f *testing.F) {
	f.Add("a*b?c", "axxbyc")
	f.Add("[a-z!]*]", "q")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		got := Glob(pattern, name)
		ascii := func(s string) bool { return strings.IndexFunc(s, func(r rune) bool { return r >= 0x80 }) < 0 }
		if strings.ContainsAny(pattern, `[]\/`) || strings.Contains(name, "/") || !ascii(pattern) || !ascii(name) {
			return
		}
		want, err := path.Match(pattern, name)
		if err != nil || got != want {
			t.Errorf("Glob(%q, %q) = %v, want %v (%v)", pattern, name, got, want, err)
		}
	})
}
