package cli

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestScriptGuests: the binaries of the scripts' guests match the sources beside them.
func TestScriptGuests(t *testing.T) {
	const dir = "../../testdata/guests"
	sums, err := os.ReadFile(filepath.Join(dir, "guests.sum"))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{"guests.sum": true}
	for lines := bufio.NewScanner(bytes.NewReader(sums)); lines.Scan(); {
		want, name, _ := strings.Cut(lines.Text(), "  ")
		name = filepath.Base(name)
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%x", sha256.Sum256(b)); got != want {
			t.Errorf("%s has changed: run %s/build.sh", name, dir)
		}
		seen[name] = true
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if !seen[f.Name()] {
			t.Errorf("guests.sum does not have %s", f.Name())
		}
	}
}
