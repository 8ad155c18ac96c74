package archtest

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// insidePages describe the code itself.
var insidePages = []string{"docs/architecture.md", "docs/engine.md", "docs/board.md", "docs/linux-inside.md", "docs/accounting.md", "docs/optimization.md"}

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
