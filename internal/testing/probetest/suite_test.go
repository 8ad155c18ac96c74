package probetest

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

func TestFake(t *testing.T) { Run(t, bootFake) }

// TestSuiteImage fails when the embedded image does not belong to its sources.
func TestSuiteImage(t *testing.T) {
	f, err := os.Open("suite/suite.sum")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	n := 0
	for s := bufio.NewScanner(f); s.Scan(); n++ {
		want, name, ok := strings.Cut(s.Text(), "  ")
		if !ok {
			t.Fatalf("suite.sum: bad line %q", s.Text())
		}
		b, err := os.ReadFile("suite/" + name)
		if err != nil {
			t.Fatal(err)
		}
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			t.Errorf("suite/%s has changed: run suite/build.sh and commit what it makes", name)
		}
	}
	if n != 5 {
		t.Errorf("suite.sum has %d lines, want 5", n)
	}
}
