package probe_test

import (
	"os"
	"strings"
	"testing"
)

// TestHandlersDocument: what docs/handlers.md shows is what the examples run.
func TestHandlersDocument(t *testing.T) {
	doc, err := os.ReadFile("../docs/handlers.md")
	if err != nil {
		t.Fatal(err)
	}
	src, err := os.ReadFile("example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	squeeze := func(line string) string { return strings.Join(strings.Fields(line), " ") }
	known := map[string]bool{}
	for line := range strings.Lines(string(src)) {
		known[squeeze(line)] = true
	}
	inside, lines := false, 0
	for line := range strings.Lines(string(doc)) {
		line = squeeze(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```go"
		case inside && line != "" && !known[line] && !known["if "+line+"; err != nil {"]:
			t.Errorf("no example has the line %q", line)
		case inside:
			lines++
		}
	}
	if lines < 30 {
		t.Errorf("only %d lines of Go in the document", lines)
	}
}
