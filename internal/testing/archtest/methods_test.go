package archtest

import (
	"go/ast"
	"testing"
)

// maxMethods is the most methods that a type may have outside tests. Promoted methods do not count: a type with more gives parts of it
// names and state of their own and embeds them, as server in internal/server/http does.
const maxMethods = 70

func TestMethodsOfTypes(t *testing.T) {
	counts := map[string]int{}
	for _, f := range load(t) {
		if f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			if fd, ok := d.(*ast.FuncDecl); ok && fd.Recv != nil {
				counts[f.pkg+"."+receiverType(fd.Recv.List[0].Type)]++
			}
		}
	}
	for name, n := range counts {
		if n > maxMethods {
			t.Errorf("%s has %d methods: at most %d", name, n, maxMethods)
		}
	}
}

// receiverType returns the name of a receiver's type, without its pointer and type parameters.
func receiverType(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.StarExpr:
		return receiverType(x.X)
	case *ast.IndexExpr:
		return receiverType(x.X)
	case *ast.IndexListExpr:
		return receiverType(x.X)
	case *ast.Ident:
		return x.Name
	}
	return ""
}
