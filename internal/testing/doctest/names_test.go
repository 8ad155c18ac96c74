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
	paths, err := filepath.Glob(filepath.Join(root, "docs/*.md"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, path := range append(paths, filepath.Join(root, "README.md"), filepath.Join(root, "docs/openapi.yaml")) {
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

// TestNames: a test, a make target, a file or a package that a document names is there.
func TestNames(t *testing.T) {
	have := tests(t)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	there := func(name string) bool { return slices.Contains(have, name) }
	kinds := []struct {
		what string
		name *regexp.Regexp
		ok   func(string) bool
		seen int // at least, in all documents
	}{
		{"test", regexp.MustCompile(`\b((?:Test|Fuzz|Benchmark)[A-Z]\w*)\b`), func(s string) bool {
			return there(s) || slices.ContainsFunc(have, func(name string) bool { return strings.HasPrefix(name, s) })
		}, 100},
		{"test", regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*)`"), there, 100},
		{"make target", regexp.MustCompile("(?m)(?:`|^    )make ([a-z][a-z-]*)"), func(s string) bool {
			return regexp.MustCompile(`(?m)^` + s + `:`).Match(makefile)
		}, 5},
		{"file", regexp.MustCompile("`((?:cmd|docs|guest|internal|kvm|probe|scripts)/[^`\\s{*]+)`"), func(s string) bool {
			_, err := os.Stat(filepath.Join(root, s))
			return err == nil
		}, 20},
	}
	for _, k := range kinds {
		seen := 0
		for doc, text := range documents(t) {
			for _, m := range k.name.FindAllStringSubmatch(text, -1) {
				if seen++; !k.ok(m[1]) {
					t.Errorf("%s names the %s %s, which is not there", doc, k.what, m[1])
				}
			}
		}
		if seen < k.seen {
			t.Errorf("only %d names of a %s were found", seen, k.what)
		}
	}
}

// TestComments: so is a test that a comment names.
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

// TestPackages: docs/architecture.md says what each package is.
func TestPackages(t *testing.T) {
	doc := documents(t)["docs/architecture.md"]
	dirs := map[string]bool{}
	for path := range source(t, ".go") {
		if !strings.HasPrefix(path, "cmd/") {
			dirs[filepath.Dir(path)] = true
		}
	}
	for dir := range dirs {
		if !regexp.MustCompile("(?m)^\\| (`\\S+`, )*`" + dir + "`(, `\\S+`)* \\| ").MatchString(doc) {
			t.Errorf("docs/architecture.md has no row for %s", dir)
		}
	}
}
