package archtest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/guestprobe/guestprobe"

// goFile is one Go source file of the module.
type goFile struct {
	pkg   string // import path below the module, "." for the top
	name  string // base name
	path  string // below the module's root, slash separated
	test  bool
	lines int
	ast   *ast.File
	fset  *token.FileSet
}

func (f *goFile) imports() []string {
	var out []string
	for _, s := range f.ast.Imports {
		out = append(out, strings.Trim(s.Path.Value, `"`))
	}
	return out
}

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "go.mod")); err != nil {
		t.Fatalf("module root: %v", err)
	}
	return dir
}

// load parses every Go file of the module, tests included, once for all tests.
func load(t *testing.T) []*goFile {
	t.Helper()
	loaded.Do(func() { loaded.files = parseAll(t) })
	if loaded.files == nil {
		t.Fatal("the module's files could not be read")
	}
	return loaded.files
}

var loaded struct {
	sync.Once
	files []*goFile
}

func parseAll(t *testing.T) []*goFile {
	t.Helper()
	top := root(t)
	var files []*goFile
	fset := token.NewFileSet()
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		rel = filepath.ToSlash(rel)
		if d.IsDir() {
			if n := d.Name(); rel != "." && (strings.HasPrefix(n, ".") || n == "testdata" || n == "bin" || n == "build") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(rel, ".go") {
			return nil
		}
		src, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		tree, err := parser.ParseFile(fset, rel, src, parser.ParseComments)
		if err != nil {
			return err
		}
		files = append(files, &goFile{
			pkg: path.Dir(rel), name: path.Base(rel), path: rel,
			test: strings.HasSuffix(rel, "_test.go"), lines: strings.Count(string(src), "\n"), ast: tree, fset: fset,
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 20 {
		t.Fatalf("found only %d Go files: the walk is broken", len(files))
	}
	return files
}
