package bpf

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// conformCase is a file of testdata/conform, in the form of the
// bpf_conformance suite: sections that begin with "-- asm", "-- mem",
// "-- result" and "-- error".
type conformCase struct {
	name     string
	asm, mem string
	result   uint64
	refused  bool
}

func readConform(t testing.TB, dir string) []conformCase {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.data"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", dir, err)
	}
	var out []conformCase
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c := conformCase{name: strings.TrimSuffix(filepath.Base(file), ".data")}
		section := ""
		var result string
		for _, l := range strings.Split(string(b), "\n") {
			if s, ok := strings.CutPrefix(l, "-- "); ok {
				if section = strings.Fields(s)[0]; section == "error" {
					c.refused = true
				}
				continue
			}
			switch section {
			case "asm":
				c.asm += l + "\n"
			case "mem":
				l, _, _ = strings.Cut(l, "#")
				c.mem += l + "\n"
			case "result":
				l, _, _ = strings.Cut(l, "#")
				result += strings.TrimSpace(l)
			}
		}
		if result != "" {
			if c.result, err = strconv.ParseUint(result, 0, 64); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
		out = append(out, c)
	}
	return out
}

// backends are the ways to run a raw program.
func backends(t testing.TB) map[string]RunFunc {
	return map[string]RunFunc{"interp": Interpret, "compiled": RunOn(newNative(t))}
}

func TestConformance(t *testing.T) {
	for name, run := range backends(t) {
		t.Run(name, func(t *testing.T) { testConform(t, "testdata/conform", run) })
	}
}

func testConform(t *testing.T, dir string, run RunFunc) {
	for _, c := range readConform(t, dir) {
		t.Run(c.name, func(t *testing.T) {
			prog, err := assemble(c.asm)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Exec(hexOf(wireOf(prog)), c.mem, run)
			if c.refused {
				if err == nil {
					t.Fatalf("ran and returned %s, want a refusal", got)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if want := strconv.FormatUint(c.result, 16); got != want {
				t.Errorf("r0 = %s, want %s", got, want)
			}
		})
	}
}

func hexOf(b []byte) string {
	var s strings.Builder
	for _, c := range b {
		s.WriteString(strconv.FormatUint(uint64(c)+0x100, 16)[1:] + " ")
	}
	return s.String()
}
