package archtest

import (
	"fmt"
	"go/ast"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestDocsNameCases: each rule of docs/compatibility.md names a test that exists, as
// a Test function or as a case of the suites of probe and probe/session.
func TestDocsNameCases(t *testing.T) {
	top := root(t)
	var src strings.Builder
	for _, f := range load(t) {
		if f.test || f.pkg == "internal/testing/probetest" || f.pkg == "internal/testing/sessiontest" {
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

// documents returns the text of each page, by its path below top: the pages of docs and docs/start,
// the API's description, and the pages at the top of the repository.
func documents(t *testing.T, top string) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"docs/*.md", "docs/start/*.md", "docs/openapi.yaml", "*.md"} {
		paths, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: no such page (%v)", pattern, err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(top, path)
			texts[filepath.ToSlash(rel)] = string(b)
		}
	}
	return texts
}

// TestDocsNameRealTests: each test, fuzz target and benchmark that a page names
// exists. A name in backticks is exact; another one may be the beginning of several.
func TestDocsNameRealTests(t *testing.T) {
	var have []string
	for _, f := range load(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				have = append(have, fn.Name.Name)
			}
		}
	}
	name := regexp.MustCompile("(`?)\\b((?:Test|Fuzz|Benchmark)[A-Z]\\w*)\\b(`?)")
	exact, begun := 0, 0
	for page, text := range documents(t, root(t)) {
		for n, line := range strings.Split(text, "\n") {
			for _, m := range name.FindAllStringSubmatch(line, -1) {
				if slices.Contains(have, m[2]) {
					exact++
					continue
				}
				if m[1] != "" && m[3] != "" || !slices.ContainsFunc(have, func(s string) bool { return strings.HasPrefix(s, m[2]) }) {
					t.Errorf("%s:%d: there is no test %s", page, n+1, m[2])
				}
				begun++
			}
		}
	}
	if exact < 300 {
		t.Errorf("found only %d names of tests (and %d beginnings): the pages are not read", exact, begun)
	}
}

// TestArchitectureIsShort: docs/architecture.md is read before all else.
func TestArchitectureIsShort(t *testing.T) {
	const most = 180
	if n := strings.Count(documents(t, root(t))["docs/architecture.md"], "\n"); n > most {
		t.Errorf("docs/architecture.md has %d lines: at most %d; the pages that it names take more", n, most)
	}
}

// TestDocsListPackages: docs/architecture.md has a row for each package, and no row for others.
func TestDocsListPackages(t *testing.T) {
	var want, got []string
	for _, f := range load(t) {
		if !strings.HasPrefix(f.pkg, "cmd/") && !slices.Contains(want, f.pkg) {
			want = append(want, f.pkg)
		}
	}
	doc := documents(t, root(t))["docs/architecture.md"]
	_, table, _ := strings.Cut(doc, "| package | contents |\n|---|---|\n")
	name := regexp.MustCompile("`([a-z0-9/]+)`")
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			break
		}
		for _, m := range name.FindAllStringSubmatch(cells[1], -1) {
			got = append(got, m[1])
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("docs/architecture.md has other packages than there are (-there +page):\n%s", d)
	}
}

// TestLinksResolve: what a page links to inside the repository exists, and so does
// the heading that a link into a page means.
func TestLinksResolve(t *testing.T) {
	top := root(t)
	link := regexp.MustCompile(`\]\(([^)#:\s]*)(?:#([^)\s]*))?\)`)
	pages := documents(t, top)
	anchors := map[string][]string{}
	for page, text := range pages {
		anchors[page] = headings(text)
	}
	found, into := 0, 0
	for page, text := range pages {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			to := page
			if m[1] != "" {
				to = path.Join(path.Dir(page), m[1])
			}
			found++
			if _, err := os.Stat(filepath.Join(top, filepath.FromSlash(to))); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
				continue
			}
			if m[2] == "" {
				continue
			}
			into++
			if !slices.Contains(anchors[to], m[2]) {
				t.Errorf("%s links to %s#%s, and %s has no such heading", page, m[1], m[2], to)
			}
		}
	}
	if found < 100 || into < 20 {
		t.Errorf("found only %d links, %d of them to a heading: the documents are not read", found, into)
	}
}

// headings returns the names by which links mean the headings of a page, as GitHub makes them.
func headings(text string) (out []string) {
	fenced := false
	heading, dropped := regexp.MustCompile(`^#+ +(.+?) *$`), regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	for line := range strings.SplitSeq(text, "\n") {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if m := heading.FindStringSubmatch(line); m != nil && !fenced {
			name := strings.ReplaceAll(dropped.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
			for n, first := 1, name; slices.Contains(out, name); n++ {
				name = fmt.Sprintf("%s-%d", first, n)
			}
			out = append(out, name)
		}
	}
	return out
}
