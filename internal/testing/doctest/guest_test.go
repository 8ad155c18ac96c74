package doctest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// example holds the guest of docs/start/own-guest.md.
const example = root + "/docs/examples/guest"

var exampleFiles = []string{"entry.S", "main.c", "guest.lds", "build.sh"}

// TestGuestSources: the code in the document is a part of the sources, and the file that
// stands beside them was built from them.
func TestGuestSources(t *testing.T) {
	var lines, sources strings.Builder
	for _, name := range exampleFiles {
		b, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		sources.Write(b)
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(b), name)
	}
	shown := 0
	for _, b := range blocks(t, "docs/start/own-guest.md") {
		if b.info != "c" {
			continue
		}
		if shown++; !strings.Contains(sources.String(), b.text) {
			t.Errorf("%s:%d: the sources of the guest have no such lines", b.doc, b.line)
		}
	}
	if shown == 0 {
		t.Error("docs/start/own-guest.md has no code of the guest")
	}
	want, err := os.ReadFile(filepath.Join(example, "first.sum"))
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprintf("%x\n", sha256.Sum256([]byte(lines.String()))); got != string(want) {
		t.Errorf("first.elf is older than its sources; build it and write to first.sum: %s", got)
	}
}

// TestGuest builds the guest of docs/start/own-guest.md, where there is a compiler, and does
// with it what the document does; where there is none, with the file that was built.
func TestGuest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, gcc := exec.LookPath("gcc")
	_, ld := exec.LookPath("ld")
	for _, name := range append([]string{"first.elf"}, exampleFiles...) {
		if name == "first.elf" && gcc == nil && ld == nil {
			continue
		}
		b, err := os.ReadFile(filepath.Join(example, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if gcc == nil && ld == nil {
		build := exec.Command("sh", "build.sh")
		build.Dir = dir
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	kvmtest.Require(t)
	play(t, dir, sessions(t, "docs/start/own-guest.md", ""), places)
}
