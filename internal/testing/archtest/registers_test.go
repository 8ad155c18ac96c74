package archtest

import (
	"go/ast"
	"go/token"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// registerTables are the literals outside of guest/x86 that name registers one by one, by file and
// function or variable, with the reason: everything else is derived from x86.Regs, x86.PtRegs, x86.DwarfRegs and
// x86.ArgRegs.
var registerTables = map[string]string{
	"internal/dev/torture/result.go words": "fields of ptrace's registers, which are named otherwise",
}

// registerName is a general register, as a field, a constant, a name or a place in struct pt_regs.
var registerName = regexp.MustCompile(`^(?i)(?:reg|pt|frame)?(?:r?(?:ax|bx|cx|dx|si|di|sp|bp)|r(?:8|9|1[0-5]))$`)

// TestRegistersHaveOneTable: no composite literal and no string outside of guest/x86 names 16 registers or more.
func TestRegistersHaveOneTable(t *testing.T) {
	found := map[string]bool{}
	for _, f := range load(t) {
		if f.test || strings.HasPrefix(f.pkg, "guest/x86") {
			continue
		}
		for _, d := range f.ast.Decls {
			ast.Inspect(d, func(n ast.Node) bool {
				var lit ast.Expr
				switch n := n.(type) {
				case *ast.CompositeLit:
					lit = n
				case *ast.BasicLit:
					lit = n
				default:
					return true
				}
				if names := registersIn(lit); len(names) >= 16 {
					where := f.path + " " + declaredName(d, lit)
					if found[where] = true; registerTables[where] == "" {
						t.Errorf("%s: a table of %d registers: derive it from guest/x86 (regs.go, ptregs.go)", where, len(names))
					}
				}
				return true
			})
		}
	}
	for where := range registerTables {
		if !found[where] {
			t.Errorf("%s has no table of registers any more: remove the exception", where)
		}
	}
}

// registersIn returns the registers that an expression names.
func registersIn(e ast.Expr) map[string]bool {
	names := map[string]bool{}
	add := func(s string) {
		if registerName.MatchString(s) {
			names[strings.ToLower(s)] = true
		}
	}
	ast.Inspect(e, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			add(n.Name)
		case *ast.BasicLit:
			if s, err := strconv.Unquote(n.Value); n.Kind == token.STRING && err == nil {
				for _, s := range strings.Fields(s) {
					add(s)
				}
			}
		}
		return true
	})
	return names
}

// declaredName returns the function, variable or type that a literal is in.
func declaredName(d ast.Decl, lit ast.Expr) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		for _, s := range d.Specs {
			if v, ok := s.(*ast.ValueSpec); ok && v.Pos() <= lit.Pos() && lit.End() <= v.End() {
				return v.Names[0].Name
			}
		}
	}
	return ""
}
