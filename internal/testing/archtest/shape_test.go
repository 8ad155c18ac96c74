package archtest

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

const maxLines = 600

// unsafePkgs may have files that use unsafe: the kvm_run page and ioctls, page
// tables and maps in memory that the guest changes meanwhile, ptrace.
var unsafePkgs = []string{"kvm", "guest", "probe/bpf", "internal/server/jail", "internal/dev/oracle"}

func TestUnsafeHasAnAddress(t *testing.T) {
	for _, f := range load(t) {
		if !slices.Contains(f.imports(), "unsafe") {
			continue
		}
		if f.test {
			if !strings.HasSuffix(f.name, "_unsafe_test.go") && usesMoreThanSizes(f.ast) {
				t.Errorf("%s: a test may use unsafe.Sizeof, Offsetof and Alignof only (or be named *_unsafe_test.go)", f.path)
			}
			continue
		}
		if !strings.HasSuffix(f.name, "_unsafe.go") {
			t.Errorf("%s imports unsafe but is not named *_unsafe.go", f.path)
		}
		if !slices.Contains(unsafePkgs, f.pkg) {
			t.Errorf("%s: package %s has no business with unsafe", f.path, f.pkg)
		}
		if !mentionsSafety(f.ast) {
			t.Errorf("%s: no SAFETY comment names the invariant its conversions rest on", f.path)
		}
	}
}

func usesMoreThanSizes(file *ast.File) bool {
	more := false
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "unsafe" {
				switch s.Sel.Name {
				case "Sizeof", "Offsetof", "Alignof":
				default:
					more = true
				}
			}
		}
		return true
	})
	return more
}

func mentionsSafety(file *ast.File) bool {
	for _, g := range file.Comments {
		if strings.Contains(g.Text(), "SAFETY") {
			return true
		}
	}
	return false
}

func TestOneDocCommentPerPackage(t *testing.T) {
	docs := map[string][]string{}
	for _, f := range load(t) {
		if f.test {
			continue
		}
		docs[f.pkg] = append(docs[f.pkg], nil...)
		if f.ast.Doc != nil {
			docs[f.pkg] = append(docs[f.pkg], f.path)
			if text := f.ast.Doc.Text(); f.ast.Name.Name != "main" && !strings.HasPrefix(text, "Package "+f.ast.Name.Name+" ") {
				t.Errorf("%s: the doc comment does not begin with \"Package %s \"", f.path, f.ast.Name.Name)
			}
		}
	}
	for pkg, files := range docs {
		if len(files) != 1 {
			t.Errorf("package %s has %d doc comments, want 1: %v", pkg, len(files), files)
		}
	}
}

func TestFilesStaySmall(t *testing.T) {
	for _, f := range load(t) {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: split it by concept", f.path, f.lines, maxLines)
		}
	}
}

// TestOnlyTheHelperSkips keeps skips loud: internal/testing/kvmtest is the only place
// that may end a test early, and it fails where the capability is required.
func TestOnlyTheHelperSkips(t *testing.T) {
	for _, f := range load(t) {
		if f.pkg == "internal/testing/kvmtest" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				switch s.Sel.Name {
				case "Skip", "Skipf", "SkipNow":
					t.Errorf("%s calls %s: only internal/testing/kvmtest may skip a test", f.path, s.Sel.Name)
				}
			}
			return true
		})
	}
}

// TestOnlyTheFrontEndsPrint: the standard streams belong to internal/command, which
// hands them to the command that runs. Everything else returns data.
func TestOnlyTheFrontEndsPrint(t *testing.T) {
	for _, f := range load(t) {
		if f.test || f.pkg == "internal/command" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := s.X.(*ast.Ident); ok && (x.Name == "fmt" && strings.HasPrefix(s.Sel.Name, "Print") || x.Name == "os" && (s.Sel.Name == "Stdout" || s.Sel.Name == "Stderr")) {
				t.Errorf("%s uses %s.%s: only the command lines print", f.path, x.Name, s.Sel.Name)
			}
			return true
		})
	}
}

// TestOneFakeTarget: test code has one World in plain Go, and wrappers of a World. Where a test needs a guest that can do less, or
// that fails, probetest.FakeOptions has a switch for it, or a type embeds the Fake and has one of its methods instead.
func TestOneFakeTarget(t *testing.T) {
	whole := map[string]string{ // types with the reason why they are there
		"internal/testing/probetest.world": "the World of probetest.Fake",
	}
	found := map[string]bool{}
	for _, f := range load(t) {
		if !f.test && !strings.HasPrefix(f.pkg, "internal/testing/") {
			continue
		}
		for _, d := range f.ast.Decls {
			fd, ok := d.(*ast.FuncDecl)
			if !ok || fd.Recv == nil || fd.Name.Name != "PatchText" {
				continue
			}
			name := receiverType(fd.Recv.List[0].Type)
			if embedsWorld(t, f.pkg, name) {
				continue
			}
			found[f.pkg+"."+name] = true
			if whole[f.pkg+"."+name] == "" {
				t.Errorf("%s: %s is a World of its own: use probetest.Fake with its options, or embed the World that the Fake gives", f.path, name)
			}
		}
	}
	for name := range whole {
		if !found[name] {
			t.Errorf("%s is no World any more: take it off the list", name)
		}
	}
}

// embedsWorld reports whether a struct of a package, tests included, embeds a probe.World.
func embedsWorld(t *testing.T, pkg, name string) (embeds bool) {
	for _, f := range load(t) {
		if f.pkg != pkg {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			s, ok := n.(*ast.TypeSpec)
			if !ok || s.Name.Name != name {
				return true
			}
			if st, ok := s.Type.(*ast.StructType); ok {
				for _, field := range st.Fields.List {
					sel, ok := field.Type.(*ast.SelectorExpr)
					embeds = embeds || ok && len(field.Names) == 0 && sel.Sel.Name == "World"
				}
			}
			return true
		})
	}
	return embeds
}
