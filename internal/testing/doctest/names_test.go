package doctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns the text of each document, by its path below the checkout.
func documents(t *testing.T) map[string]string {
	t.Helper()
	var paths []string
	for _, pattern := range []string{"docs/*.md", "docs/start/*.md"} {
		pages, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, pages...)
	}
	out := map[string]string{}
	for _, path := range append(paths, filepath.Join(root, "README.md"), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "docs/openapi.yaml")) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = string(b)
	}
	return out
}

// source returns the files of the checkout whose names end in suffix, by their paths.
func source(t *testing.T, suffix string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := fs.WalkDir(os.DirFS(root), ".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (path == "bin" || path == "build" || path == ".git" || d.Name() == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, suffix):
			return nil
		}
		b, err := os.ReadFile(filepath.Join(root, path))
		out[path] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// tests returns the names of all tests, fuzz targets and benchmarks.
func tests(t *testing.T) (out []string) {
	t.Helper()
	decl := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark)\w+)\(`)
	for _, text := range source(t, "_test.go") {
		for _, m := range decl.FindAllStringSubmatch(text, -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// TestTargets: a make target that a document names is there.
func TestTargets(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	name, seen := regexp.MustCompile("(?m)(?:`|^    )make ([a-z][a-z-]*)"), 0
	for doc, text := range documents(t) {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if seen++; !regexp.MustCompile(`(?m)^` + m[1] + `:`).Match(makefile) {
				t.Errorf("%s names the make target %s, which is not there", doc, m[1])
			}
		}
	}
	if seen < 5 {
		t.Errorf("only %d make targets were found", seen)
	}
}

// TestComments: a test that a comment names is there.
func TestComments(t *testing.T) {
	name := regexp.MustCompile(`//.*\b((?:Test|Fuzz|Benchmark)[A-Z]\w*)\b`)
	have := tests(t)
	for path, text := range source(t, ".go") {
		for _, m := range name.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(have, m[1]) {
				t.Errorf("%s names %s, which is not there", path, m[1])
			}
		}
	}
}
