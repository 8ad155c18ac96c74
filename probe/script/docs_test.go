package script

import (
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDocument: docs/scripts.md has every name of the language, and none that is not there.
func TestDocument(t *testing.T) {
	b, err := os.ReadFile("../../docs/scripts.md")
	if err != nil {
		t.Fatal(err)
	}
	text, absentText, ok := strings.Cut(string(b), "Not here, and refused")
	if !ok {
		t.Fatal("the document does not say what is not there")
	}
	rows := map[string]string{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (.*) \\|$").FindAllStringSubmatch(absentText, -1) {
		rows[m[1]] = m[2]
	}
	has := func(text, name string) bool {
		return regexp.MustCompile("`[^`\n]*\\b" + regexp.QuoteMeta(name) + "\\b[^`\n]*`").MatchString(text)
	}
	names := knownNames()
	for _, s := range settings {
		names = append(names, s)
	}
	for p := range providers {
		names = append(names, p)
	}
	for _, n := range names {
		if !has(text, n) && !regexp.MustCompile("^arg[1-8]$").MatchString(n) {
			t.Errorf("the document does not have %s", n)
		}
	}
	want := maps.Clone(absent)
	maps.Copy(want, elsewhere)
	for n, advice := range want {
		if rows[n] != advice {
			t.Errorf("the document has the advice %q for %s, which is not there, want %q", rows[n], n, advice)
		}
	}
	for n := range rows {
		if _, ok := want[n]; !ok {
			t.Errorf("the document says that %s is not there, and the compiler does not", n)
		}
	}
}
