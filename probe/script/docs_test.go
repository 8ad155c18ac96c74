package script

import (
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
	absentText, _, _ = strings.Cut(absentText, "\n\n")
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
	for n := range absent {
		if !has(absentText, n) {
			t.Errorf("the document does not say that %s is not there", n)
		}
	}
	for _, m := range regexp.MustCompile("`([a-z]+)`").FindAllStringSubmatch(absentText, -1) {
		n := m[1]
		_, isCall := absent[n]
		if _, isProbe := elsewhere[n]; !isCall && !isProbe && n != "for" {
			t.Errorf("the document says that %s is not there, and the compiler does not", n)
		}
	}
}
