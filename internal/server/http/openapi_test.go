package http

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/guestprobe/guestprobe/probe/remote/api"
)

// yamlMap is a map of docs/openapi.yaml.
type yamlMap = map[string]any

// readYAML returns the document, which has each key once: the library sees to that.
func readYAML(t *testing.T, path string) yamlMap {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var doc yamlMap
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return doc
}

// forEachMap calls f with each map of the document, and the key that it has there.
func forEachMap(key string, v any, f func(key string, m yamlMap)) {
	switch v := v.(type) {
	case yamlMap:
		f(key, v)
		for k, x := range v {
			forEachMap(k, x, f)
		}
	case []any:
		for _, x := range v {
			forEachMap(key, x, f)
		}
	}
}

const openapi = "../../../docs/openapi.yaml"

// TestCodes: each code has the status that its comment says, which the document takes from there.
func TestCodes(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "../../../probe/remote/api/code.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	ast.Inspect(file, func(n ast.Node) bool {
		s, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := s.Type.(*ast.Ident); ok && typ.Name == "Code" {
			seen++
			code, err := strconv.Unquote(s.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			said, _, _ := strings.Cut(strings.TrimSpace(s.Comment.Text()), ":")
			if has := strconv.Itoa(statusOf[api.Code(code)]); said != has {
				t.Errorf("%s: its comment says %s, its status is %s", code, said, has)
			}
		}
		return true
	})
	if seen < 30 {
		t.Errorf("only %d codes are found", seen)
	}
}
