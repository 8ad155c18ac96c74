package openapi

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	daemon "github.com/guestprobe/guestprobe/internal/server/http"
)

const root = "../../.."

// TestDocument: docs/openapi.yaml is what the routes, the types and their comments say.
func TestDocument(t *testing.T) {
	have, err := os.ReadFile(root + "/docs/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := Generate(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(have)); diff != "" {
		t.Errorf("docs/openapi.yaml is not what the daemon's routes and types say; 'make generate' writes it (-want +have):\n%s", diff)
	}
}

// TestReferences: the document refers to what is in it, and has nothing that it does not refer to.
func TestReferences(t *testing.T) {
	b, err := Generate(root)
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{"schemas/Code": true} // which texts refer to
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if ref, ok := v["$ref"].(string); ok {
				used[strings.TrimPrefix(ref, "#/components/")] = true
			}
			for _, x := range v {
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	walk(doc)
	for kind, all := range doc["components"].(map[string]any) {
		for name := range all.(map[string]any) {
			if !used[kind+"/"+name] {
				t.Errorf("nothing refers to %s %s", kind, name)
			}
			delete(used, kind+"/"+name)
		}
	}
	for name := range used {
		t.Errorf("there is no %s", name)
	}
}

// TestOperationsHaveNames: each operation has a name of its own, which generated clients
// call their functions by.
func TestOperationsHaveNames(t *testing.T) {
	routes := map[string]string{}
	for _, o := range daemon.Operations() {
		route := o.Method + " " + o.Path
		if other, twice := routes[o.ID]; twice || !regexp.MustCompile(`^[a-z]+([A-Z][a-z]+)*$`).MatchString(o.ID) {
			t.Errorf("%s has the name %q; %q has it too", route, o.ID, other)
		}
		routes[o.ID] = route
	}
}

// TestEveryFieldIsDescribed bounds how many fields have no comment: their names say it all.
func TestEveryFieldIsDescribed(t *testing.T) {
	b, err := Generate(root)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Components struct {
			Schemas map[string]struct {
				Description string
				Properties  map[string]struct{ Description string }
			}
		}
	}
	if err := yaml.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	fields, bare := 0, 0
	for name, s := range doc.Components.Schemas {
		if s.Description == "" {
			t.Errorf("type %s has no comment", name)
		}
		for _, p := range s.Properties {
			if fields++; p.Description == "" {
				bare++
			}
		}
	}
	if fields < 500 || bare*3 > fields {
		t.Errorf("%d of %d fields have no comment", bare, fields)
	}
}
