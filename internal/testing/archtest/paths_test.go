package archtest

import (
	"bufio"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// namesPaths are the files whose words name files of the repository, as globs;
// a folder stands for all files below it.
var namesPaths = []string{
	"Makefile", ".ci/run", ".github", "scripts", "packaging", "docs/*.md", "docs/start/*.md", "docs/openapi.yaml", "docs/examples/Makefile",
	"README.md", "CONTRIBUTING.md", "SECURITY.md", "internal/dev/torture/testdata/defects.txt",
}

// notPaths are words that look like a path of the repository and are none, as
// globs, each with the reason.
var notPaths = map[string]string{
	"cmd/guestprobe*@latest":   "a package and a version, as go install takes them",
	"docs/examples/*.o":        "make -C docs/examples builds them",
	"probe/.*":                 "a regular expression: what scripts/fuzz.sh takes",
	"scripts/nested/plan.PLAN": "scripts/nested.sh takes the name of any plan",
	"testdata/fuzz":            "of each package with fuzz targets",
}

var (
	// pathWord is a word with everything that a path may be written with: globs, {a,b},
	// (a|b) and variables of a shell.
	pathWord = regexp.MustCompile(`(?:[A-Za-z0-9_./@+*?~:-]|\[[^]\s]*\]|\{[^{}\s]*,[^{}\s]*\}|\([^()\s]*\|[^()\s]*\)|\$\{[^}\s]*\}|\$\([^)\s]*\)|\$[A-Za-z0-9_]+)+`)
	// ownPath is a word that begins at the top of the repository.
	ownPath = regexp.MustCompile(`^(?:\./)?((?:cmd|kvm|probe|guest|internal|scripts|docs|testdata|packaging)/.*)$`)
	// shellVariable is replaced by a glob.
	shellVariable = regexp.MustCompile(`\$\{[^}]*\}|\$\([^)]*\)|\$[A-Za-z0-9_]+`)
	changesDir    = regexp.MustCompile(`\bcd ([^\s;&|]+)`)
)

// TestPathsExist: every path of the repository that is named in build files,
// scripts, documents and the plans of nested hosts exists.
func TestPathsExist(t *testing.T) {
	top := root(t)
	found := 0
	for _, file := range pathFiles(t, top) {
		f, err := os.Open(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(f)
		lines.Buffer(nil, 1<<20)
		for n := 1; lines.Scan(); n++ {
			for _, p := range pathsIn(file, lines.Text()) {
				found++
				if !pathExists(t, top, p) {
					t.Errorf("%s:%d: there is no %s", file, n, p)
				}
			}
		}
		if err := lines.Err(); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		f.Close()
	}
	if found < 300 {
		t.Errorf("found only %d paths: the files are not read", found)
	}
}

// TestPathsIn holds what is taken for a path, and where it is looked for.
func TestPathsIn(t *testing.T) {
	for _, c := range []struct{ file, line, want string }{
		{"Makefile", "go test ./internal/dev/... ./kvm/machine", "internal/dev kvm/machine"},
		{"Makefile", "-X " + module + "/probe/remote/api.version=1", "probe/remote/api"},
		{"docs/cli.md", "see `probe/stage.go:12`, docs/linux.md#first and /usr/share/docs/x.", "probe/stage.go docs/linux.md"},
		{"docs/cli.md", "packages `guest/{x86,elf}`, `probe/*.go`", "guest/{x86,elf} probe/*.go"},
		{"scripts/a.sh", `cp "scripts/nested/plan.$plan" "$root/docs/cli.md" build/docs/x`, "scripts/nested/plan.*"},
		{".github/a.yml", "fuzz.sh 'internal/(fleet|daemon) FuzzA'", "internal/{fleet,daemon}"},
		{"scripts/nested/plan.svm", "kvm 150 cd internal/server/http && gzip ../../../testdata/a", "internal/server/http testdata/a"},
	} {
		if got := strings.Join(pathsIn(c.file, c.line), " "); got != c.want {
			t.Errorf("%s: %q has the paths %q, want %q", c.file, c.line, got, c.want)
		}
	}
}

// pathFiles returns the files that namesPaths means, below top.
func pathFiles(t *testing.T, top string) []string {
	t.Helper()
	var files []string
	for _, pattern := range namesPaths {
		matches, err := filepath.Glob(filepath.Join(top, pattern))
		if err != nil || len(matches) == 0 {
			t.Fatalf("%s: no such file (%v)", pattern, err)
		}
		for _, m := range matches {
			err := filepath.WalkDir(m, func(p string, d os.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					rel, _ := filepath.Rel(top, p)
					files = append(files, filepath.ToSlash(rel))
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return files
}

// pathsIn returns the paths of the repository that a line of a file names, as
// globs. A path of a plan of a nested host may be relative to the folder that
// the line changes to.
func pathsIn(file, line string) []string {
	var paths []string
	dir := ""
	if m := changesDir.FindStringSubmatch(line); m != nil && strings.HasPrefix(file, "scripts/nested/plan.") {
		dir = m[1]
	}
	for _, word := range pathWord.FindAllString(line, -1) {
		if strings.Contains(word, "|") { // of a regular expression
			word = strings.NewReplacer("(", "{", "|", ",", ")", "}").Replace(word)
		}
		if rest, ok := strings.CutPrefix(word, module+"/"); ok {
			// What the linker sets is a variable of the package.
			if i := strings.LastIndex(rest, "/"); i >= 0 {
				name, _, _ := strings.Cut(rest[i:], ".")
				rest = rest[:i] + name
			}
			word = rest
		} else if strings.HasPrefix(word, "../") && dir != "" {
			word = path.Join(dir, word)
		}
		m := ownPath.FindStringSubmatch(word)
		if m == nil {
			continue
		}
		p := shellVariable.ReplaceAllString(m[1], "*")
		p, _, _ = strings.Cut(p, ":") // file:line
		p = strings.TrimSuffix(strings.TrimSuffix(p, "..."), "/")
		p = strings.TrimRight(p, "./")
		if strings.Contains(p, "/") {
			paths = append(paths, p)
		}
	}
	return paths
}

// pathExists reports whether each alternative of a path is in the repository.
func pathExists(t *testing.T, top, p string) bool {
	t.Helper()
	for pattern := range notPaths {
		if ok, err := path.Match(pattern, p); ok || p == pattern || err != nil {
			return err == nil
		}
	}
	before, rest, ok := strings.Cut(p, "{")
	if list, after, closed := strings.Cut(rest, "}"); ok && closed {
		for one := range strings.SplitSeq(list, ",") {
			if !pathExists(t, top, before+one+after) {
				return false
			}
		}
		return true
	}
	matches, err := filepath.Glob(filepath.Join(top, filepath.FromSlash(p)))
	if err != nil {
		t.Errorf("%s: %v", p, err)
	}
	return len(matches) > 0
}
