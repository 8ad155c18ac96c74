package doctest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// root is the checkout.
const root = "../../.."

// block is a fenced block of a document.
type block struct {
	doc  string // path below the checkout
	line int    // of its first line
	info string // behind the fence
	text string
}

// blocks returns the fenced blocks of a document.
func blocks(t *testing.T, doc string) (out []block) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, doc))
	if err != nil {
		t.Fatal(err)
	}
	open := false
	for i, line := range strings.SplitAfter(string(b), "\n") {
		info, fence := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case fence && !open:
			out = append(out, block{doc: doc, line: i + 2, info: info})
			open = true
		case fence:
			open = false
		case open:
			out[len(out)-1].text += line
		}
	}
	if open {
		t.Fatalf("%s: a block does not end", doc)
	}
	return out
}
