package doctest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHandlers: the pieces of Go in docs/handlers.md are lines of package probe's
// examples, which run. Whole programs are TestFirstProgram's.
func TestHandlers(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(root, "probe/example_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	known := map[string]bool{"": true}
	for line := range strings.Lines(string(src)) {
		known[squeeze(line)] = true
	}
	lines := 0
	for _, b := range blocks(t, "docs/handlers.md") {
		if b.info != "go" || strings.HasPrefix(b.text, "package main\n") {
			continue
		}
		for line := range strings.Lines(b.text) {
			if line = squeeze(line); !known[line] && !known["if "+line+"; err != nil {"] {
				t.Errorf("%s:%d: no example has the line %q", b.doc, b.line, line)
			}
			lines++
		}
	}
	if lines < 30 {
		t.Errorf("only %d lines of Go in the document", lines)
	}
}
