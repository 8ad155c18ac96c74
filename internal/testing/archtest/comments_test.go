package archtest

import (
	"go/ast"
	"regexp"
	"strings"
	"testing"
)

// identifierWord is a first word of a comment that can only be a name of Go's: it has an upper case letter inside.
var identifierWord = regexp.MustCompile(`^[a-z]+[A-Z]\w*$`)

// TestCommentsBeginWithNames: the doc comment of a function, a type or a single variable begins with its name, if it begins with a name at all.
func TestCommentsBeginWithNames(t *testing.T) {
	checked := 0
	check := func(f *goFile, doc *ast.CommentGroup, name string) {
		if doc == nil {
			return
		}
		checked++
		first, _, _ := strings.Cut(doc.Text(), " ")
		first = strings.TrimRight(first, ",.:;\n")
		if first != name && (identifierWord.MatchString(first) || strings.EqualFold(first, name)) {
			t.Errorf("%s: the comment of %s begins with %q", f.path, name, first)
		}
	}
	for _, f := range load(t) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				check(f, d.Doc, d.Name.Name)
			case *ast.GenDecl:
				if len(d.Specs) != 1 {
					continue
				}
				switch s := d.Specs[0].(type) {
				case *ast.TypeSpec:
					check(f, d.Doc, s.Name.Name)
				case *ast.ValueSpec:
					if len(s.Names) == 1 {
						check(f, d.Doc, s.Names[0].Name)
					}
				}
			}
		}
	}
	if checked < 5000 {
		t.Errorf("only %d comments", checked)
	}
}
