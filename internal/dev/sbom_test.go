package dev

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
)

// TestSBOM: the bill has each dependency once, with its licence.
func TestSBOM(t *testing.T) {
	text, err := sbom(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		BomFormat  string
		Components []component
	}
	if err := json.Unmarshal(text, &bill); err != nil {
		t.Fatal(err)
	}
	deps, err := dependencies(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	if bill.BomFormat != "CycloneDX" || len(bill.Components) != len(deps) {
		t.Errorf("%s with %d components, want %d", bill.BomFormat, len(bill.Components), len(deps))
	}
	if std := bill.Components[0]; std.Name != "stdlib" || "go"+std.Version != runtime.Version() || std.PURL != "pkg:golang/stdlib@"+std.Version {
		t.Errorf("Go's library: %+v", std)
	}
	refs := map[string]bool{}
	for _, c := range bill.Components[1:] {
		if refs[c.Ref] || len(c.Licences) != 1 || c.Licences[0].Expression == "" || !strings.HasPrefix(c.PURL, "pkg:golang/"+c.Name+"@v") {
			t.Errorf("%+v", c)
		}
		refs[c.Ref] = true
	}
}
