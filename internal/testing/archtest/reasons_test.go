package archtest

import (
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/probe"
)

// TestDocsListReasons: docs/optimization.md explains every reason that a site is
// not optimized for, and no others, in the words of Unoptimized.Meaning, which list says:
// the string constants of probe/flow whose names begin with Reason, and those of
// probe/jump.go that begin with not.
func TestDocsListReasons(t *testing.T) {
	files := load(t)
	path := filepath.Join(root(t), "docs", "optimization.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("^\\| `([a-z0-9_]+)` \\| (.+) \\|$")
	for _, c := range []struct{ mark, pkg, prefix string }{
		{"<!-- reasons:probe -->", "probe", "not"},
		{"<!-- reasons:flow -->", "probe/flow", "Reason"},
	} {
		_, table, ok := strings.Cut(string(b), c.mark)
		if !ok {
			t.Errorf("docs/optimization.md has no %s", c.mark)
			continue
		}
		var got []string
		for line := range strings.Lines(strings.TrimLeft(table, "\n")) {
			if !strings.HasPrefix(line, "|") {
				break
			}
			if m := row.FindStringSubmatch(strings.TrimRight(line, "\n")); m != nil {
				got = append(got, m[1])
				if said, doc := (probe.Unoptimized{Reason: m[1]}).Meaning(), strings.ReplaceAll(m[2], "`", ""); said != doc {
					t.Errorf("docs/optimization.md explains %q as %q, list as %q", m[1], doc, said)
				}
			}
		}
		want := stringConstants(t, files, c.pkg, c.prefix)
		if len(want) < 10 {
			t.Errorf("%s has only %d reasons: the source is not read", c.pkg, len(want))
		}
		for _, r := range want {
			if n := len(slices.DeleteFunc(slices.Clone(got), func(s string) bool { return s != r })); n != 1 {
				t.Errorf("docs/optimization.md has %d rows for %q behind %s, want 1", n, r, c.mark)
			}
		}
		for _, r := range got {
			if !slices.Contains(want, r) {
				t.Errorf("docs/optimization.md explains %q, which %s does not give", r, c.pkg)
			}
		}
	}
}

// stringConstants returns the values of a package's string constants whose names
// are prefix and an upper-case letter.
func stringConstants(t *testing.T, files []*goFile, pkg, prefix string) []string {
	t.Helper()
	var out []string
	named := regexp.MustCompile("^" + prefix + "[A-Z]")
	for _, f := range files {
		if f.pkg != pkg || f.test {
			continue
		}
		for _, d := range f.ast.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				for i, n := range v.Names {
					if !named.MatchString(n.Name) || i >= len(v.Values) {
						continue
					}
					lit, ok := v.Values[i].(*ast.BasicLit)
					if !ok || lit.Kind != token.STRING {
						continue
					}
					s, err := strconv.Unquote(lit.Value)
					if err != nil {
						t.Fatalf("%s: %s: %v", f.path, n.Name, err)
					}
					out = append(out, s)
				}
			}
		}
	}
	return out
}

// TestDocsSayShare: what docs/optimization.md says of jumps that are not resolved is what its
// tables say.
func TestDocsSayShare(t *testing.T) {
	b, err := os.ReadFile(filepath.Join(root(t), "docs", "optimization.md"))
	if err != nil {
		t.Fatal(err)
	}
	said, tables, ok := strings.Cut(string(b), "<!-- analyze:begin -->")
	if !ok {
		t.Fatal("docs/optimization.md has no tables")
	}
	said = strings.Join(strings.Fields(said), " ")
	row := regexp.MustCompile(`(?m)^\| ours_calls \| all instructions \| \d+ \| (\d+) \| [\d.]+% \| (.+) \|$`)
	count := regexp.MustCompile(`indirect_jump (\d+)|(\d+), \.\.\.$`)
	number := func(s string) (n int) {
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
		return n
	}
	thousands := func(n int) string {
		s := strconv.Itoa(n)
		for i := len(s) - 3; i > 0; i -= 3 {
			s = s[:i] + "," + s[i:]
		}
		return s
	}
	rows := row.FindAllStringSubmatch(tables, -1)
	if len(rows) != 3 {
		t.Fatalf("%d tables", len(rows))
	}
	for _, r := range rows {
		c, fewer := count.FindStringSubmatch(r[2]), ""
		if c == nil {
			t.Fatalf("no counts in %q", r[2])
		}
		if c[1] == "" { // the reasons come in order of their counts
			c[1], fewer = c[2], "fewer than "
		}
		n, of := number(c[1]), number(r[1])
		want := fmt.Sprintf("%s%s of %s in ", fewer, thousands(n), thousands(of))
		_, rest, ok := strings.Cut(said, want)
		if _, after, _ := strings.Cut(rest, "("); !ok || !strings.HasPrefix(after, fmt.Sprintf("%.1f %%)", 100*float64(n)/float64(of))) {
			t.Errorf("docs/optimization.md does not say %q (%.1f %%)", want, 100*float64(n)/float64(of))
		}
	}
}
