package archtest

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// insidePages describe the code itself.
var insidePages = []string{"docs/architecture.md", "docs/engine.md", "docs/board.md", "docs/optimization.md"}

// TestDocsNameCode: a name in backticks like Type.Method or package.Name in a page
// about the code is declared there. A method may be of an embedded type.
func TestDocsNameCode(t *testing.T) {
	scopes, names := map[string]bool{}, map[string]bool{}
	for _, f := range load(t) {
		scopes[f.ast.Name.Name] = true
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				names[n.Name.Name] = true
			case *ast.TypeSpec:
				scopes[n.Name.Name], names[n.Name.Name] = true, true
			case *ast.ValueSpec:
				for _, id := range n.Names {
					names[id.Name] = true
				}
			case *ast.Field:
				for _, id := range n.Names {
					names[id.Name] = true
				}
			}
			return true
		})
	}
	name := regexp.MustCompile("`([A-Za-z][A-Za-z0-9]*(?:\\.[A-Za-z][A-Za-z0-9]*)+)(?:\\(\\))?`")
	files := regexp.MustCompile(`\.(go|md|elf|sh|o|bt|yaml|so|relocs)$`)
	found := 0
	pages := documents(t, root(t))
	for _, page := range insidePages {
		for n, line := range strings.Split(pages[page], "\n") {
			for _, m := range name.FindAllStringSubmatch(line, -1) {
				parts := strings.Split(m[1], ".")
				if files.MatchString(m[1]) || !scopes[parts[0]] && !names[parts[0]] && strings.ToLower(m[1]) == m[1] {
					continue // a file, or something of another program
				}
				found++
				ok := scopes[parts[0]]
				for _, p := range parts[1:] {
					ok = ok && names[p]
				}
				if !ok {
					t.Errorf("%s:%d: there is no %s in the code", page, n+1, m[1])
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("found only %d names: the pages are not read", found)
	}
}

// TestRunsRealTests: what build files, scripts and the plans of nested hosts run by name is
// there: each test in the folder that the line is about, where it names one.
func TestRunsRealTests(t *testing.T) {
	top := root(t)
	have := map[string][]string{} // by package, and all under ""
	for _, f := range load(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && f.test && fn.Recv == nil {
				have[f.pkg] = append(have[f.pkg], fn.Name.Name)
				have[""] = append(have[""], fn.Name.Name)
			}
		}
	}
	name := regexp.MustCompile(`(?:^|[^.\w])((?:Test|Fuzz|Benchmark)[A-Z]\w*)`) // not a field of a template
	pkg := regexp.MustCompile(`(?:\bcd |\./)([a-z0-9]+(?:/[a-z0-9]+)+)\b`)
	found := 0
	for _, file := range pathFiles(t, top) {
		if strings.HasPrefix(file, "docs/") || strings.HasSuffix(file, ".md") {
			continue // see TestDocsNameRealTests
		}
		b, err := os.ReadFile(filepath.Join(top, filepath.FromSlash(file)))
		if err != nil {
			t.Fatal(err)
		}
		for n, line := range strings.Split(string(b), "\n") {
			var in []string
			for _, m := range pkg.FindAllStringSubmatch(line, -1) {
				in = append(in, have[m[1]]...)
			}
			if in == nil {
				in = have[""]
			}
			for _, m := range name.FindAllStringSubmatch(line, -1) {
				found++
				if !slices.ContainsFunc(in, func(s string) bool { return strings.HasPrefix(s, m[1]) }) {
					t.Errorf("%s:%d: there is no %s there", file, n+1, m[1])
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("found only %d names of tests: the files are not read", found)
	}
}
