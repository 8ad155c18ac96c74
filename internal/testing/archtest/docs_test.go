package archtest

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocsNameRealTests: a document that claims to be held by a test names one
// that exists, as a Test function or as a case of the conformance suite.
func TestDocsNameRealTests(t *testing.T) {
	top := root(t)
	var src strings.Builder
	for _, f := range load(t) {
		if f.test || f.pkg == "internal/testing/probetest" {
			b, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(f.path)))
			if err != nil {
				t.Fatal(err)
			}
			src.Write(b)
		}
	}
	code := src.String()
	doc, err := os.ReadFile(filepath.Join(top, "docs", "compatibility.md"))
	if err != nil {
		t.Fatal(err)
	}
	name := regexp.MustCompile("`([A-Za-z0-9_]+)`")
	rows := 0
	for line := range strings.Lines(string(doc)) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		for _, m := range name.FindAllStringSubmatch(cells[len(cells)-2], -1) {
			rows++
			if !strings.Contains(code, `name: "`+m[1]+`"`) && !strings.Contains(code, "func "+m[1]+"(") {
				t.Errorf("docs/compatibility.md names %s, which is neither a conformance case nor a test", m[1])
			}
		}
	}
	if rows < 40 {
		t.Errorf("found only %d names: the table is not read", rows)
	}
}

// TestLinksResolve: what a document links to inside the repository exists.
func TestLinksResolve(t *testing.T) {
	top := root(t)
	docs, err := filepath.Glob(filepath.Join(top, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)#:\s]+)(#[^)\s]*)?\)`)
	found := 0
	for _, path := range append(docs, filepath.Join(top, "README.md"), filepath.Join(top, "CONTRIBUTING.md"), filepath.Join(top, "SECURITY.md")) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			found++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), filepath.FromSlash(m[1]))); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(path), m[1], err)
			}
		}
	}
	if found < 10 {
		t.Errorf("found only %d links: the documents are not read", found)
	}
}
