package archtest

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/token"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "lower the numbers in testdata/english.txt to what is counted")

const englishTable = "testdata/english.txt"

// dialect has the patterns that plain English has other words for, and these
// (CONTRIBUTING.md, "English"). Some of the patterns have good uses; the test
// only asks that there be no more of them than before.
var dialect = []struct {
	name, better string
	pattern      *regexp.Regexp
}{
	{"what", "a noun: not \"what the guest has in memory\" but \"the guest's memory\"", dialectWord(`what (?:is|are|was|were|has|have|had|can|could|may|must|will|would|does|do|did|comes?|goes|stands?)`)},
	{"behind", "after", dialectWord(`behind`)},
	{"stands", "is", dialectWord(`stands?|stood`)},
	{"nobody", "the actor's name, or no actor", dialectWord(`nobody|somebody`)},
	{"told", "reports, returns, says", dialectWord(`(?:is|are|was|were|be|been|being) told`)},
	{"whoever", "the actor's name", dialectWord(`whoever|who (?:asks?|looks?|wants?)`)},
	{"none", "is not, does not exist, no longer", dialectWord(`(?:is|are|was|were) (?:none|no more)`)},
	{"anew", "again", dialectWord(`anew`)},
	{"all the same", "still", dialectWord(`all the same`)},
	{"so many", "N, that long, every Nth", dialectWord(`so (?:many|manyth|long|much)`)},
	{"but for", "except", dialectWord(`but for`)},
	{"meanwhile", "at the same time; or name what happens first", dialectWord(`meanwhile`)},
	{"to its end", "ends, finishes", dialectWord(`(?:comes?|came|runs?|ran) to (?:its|their) ends?`)},
	{"to be had", "available, possible", dialectWord(`to be had`)},
	{"given up", "times out, stops", dialectWord(`(?:is|are|was|were|be) given up`)},
	{"goes on", "continues, resumes", dialectWord(`(?:go|goes|went|going|gone) on`)},
	{"makes up", "generates, invents", dialectWord(`(?:make|makes|made|making)[ -]up`)},
	{"those of", "the noun again", dialectWord(`those of`)},
}

// plain are phrases in which a pattern means something else.
var plain = dialectWord(`stands? (?:for|in)|as so many|so long as`)

// dialectWord makes a pattern match whole words, over the ends of lines.
func dialectWord(s string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b(?:` + strings.ReplaceAll(s, " ", `\s+`) + `)\b`)
}

// dialectHit is one use of a pattern.
type dialectHit struct {
	pattern int
	where   string // file:line
	text    string // the line
}

// dialectIn returns the uses in a text whose first line has that number.
func dialectIn(file string, line int, text string) []dialectHit {
	text = plain.ReplaceAllStringFunc(text, func(s string) string {
		return strings.Map(func(r rune) rune {
			if r == '\n' {
				return r
			}
			return '_'
		}, s)
	})
	var hits []dialectHit
	for i, d := range dialect {
		for _, at := range d.pattern.FindAllStringIndex(text, -1) {
			from, to := strings.LastIndex(text[:at[0]], "\n")+1, len(text)
			if n := strings.Index(text[at[1]:], "\n"); n >= 0 {
				to = at[1] + n
			}
			hits = append(hits, dialectHit{i, fmt.Sprintf("%s:%d", file, line+strings.Count(text[:at[0]], "\n")), strings.TrimSpace(text[from:to])})
		}
	}
	return hits
}

// dialectOfGo returns the uses in the comments and strings of a Go file.
func dialectOfGo(f *goFile) []dialectHit {
	var hits []dialectHit
	escapes := strings.NewReplacer(`\n`, "  ", `\t`, "  ")
	for _, g := range f.ast.Comments {
		// The lines of a comment, without what marks them, and as many as there are.
		var text strings.Builder
		for _, c := range g.List {
			fmt.Fprintln(&text, strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), "/*"))
		}
		hits = append(hits, dialectIn(f.path, f.fset.Position(g.Pos()).Line, text.String())...)
	}
	ast.Inspect(f.ast, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			text := lit.Value
			if text[0] == '"' {
				text = escapes.Replace(text)
			}
			hits = append(hits, dialectIn(f.path, f.fset.Position(lit.Pos()).Line, text)...)
		}
		return true
	})
	return hits
}

// quoted is code, a quotation or the target of a link in a page.
var quoted = regexp.MustCompile("`[^`\n]+`|\\]\\([^)\\s]+\\)|\"[^\"\n]+\"")

// dialectOfPage returns the uses in a page, outside of quotations and of fenced
// blocks, which are commands and their output.
func dialectOfPage(path, text string) []dialectHit {
	var prose strings.Builder
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
		}
		if fenced {
			line = "\n"
		}
		prose.WriteString(quoted.ReplaceAllStringFunc(line, func(q string) string { return strings.Repeat("_", len(q)) }))
	}
	return dialectIn(path, 1, prose.String())
}

// TestEnglish: no package and no page has more of the patterns that plain
// English has other words for than testdata/english.txt allows it. With -update
// the numbers there fall to what is counted; none rises.
func TestEnglish(t *testing.T) {
	hits := map[string][]dialectHit{}
	for _, f := range load(t) {
		if !f.test {
			hits[f.pkg] = append(hits[f.pkg], dialectOfGo(f)...)
		}
	}
	for page, text := range documents(t, root(t)) {
		if strings.HasSuffix(page, ".md") {
			hits[page] = dialectOfPage(page, text)
		}
	}

	allowed := readEnglish(t)
	if *update {
		writeEnglish(t, hits, allowed)
	}
	for _, group := range slices.Sorted(maps.Keys(hits)) {
		if n := total(allowed[group]); len(hits[group]) > n {
			t.Errorf("%s has %d uses of words that plain English has others for, and may have %d:\n%s(CONTRIBUTING.md, \"English\", has the rules; if text has moved here from another package, move its numbers in %s as well)",
				group, len(hits[group]), n, listMoreUses(hits[group], allowed[group]), englishTable)
		}
	}
	for group := range allowed {
		if _, ok := hits[group]; !ok && !*update {
			t.Errorf("%s: there is no %s; go test ./internal/testing/archtest -run TestEnglish -update removes it", englishTable, group)
		}
	}
}

// listMoreUses lists the uses of those patterns of which a group has more than before.
func listMoreUses(hits []dialectHit, allowed []int) string {
	var out strings.Builder
	for i, d := range dialect {
		var of []dialectHit
		for _, h := range hits {
			if h.pattern == i {
				of = append(of, h)
			}
		}
		n := 0
		if allowed != nil {
			n = allowed[i]
		}
		if len(of) <= n {
			continue
		}
		fmt.Fprintf(&out, "  %q: %d, not %d. Better: %s.\n", d.name, len(of), n, d.better)
		for _, h := range of {
			fmt.Fprintf(&out, "    %s: %.160s\n", h.where, h.text)
		}
	}
	return out.String()
}

func total(counts []int) (n int) {
	for _, c := range counts {
		n += c
	}
	return n
}

// readEnglish returns what each group may have, by pattern.
func readEnglish(t *testing.T) map[string][]int {
	t.Helper()
	b, err := os.ReadFile(englishTable)
	if err != nil {
		t.Fatal(err)
	}
	allowed := map[string][]int{}
	for line := range strings.Lines(string(b)) {
		group, counts, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		sum, each, _ := strings.Cut(counts, " = ")
		of := make([]int, len(dialect))
		for c := range strings.SplitSeq(each, ", ") {
			i := strings.LastIndex(c, " ")
			p := slices.Index(dialectNames(), c[:max(i, 0)])
			n, err := strconv.Atoi(c[i+1:])
			if p < 0 || err != nil {
				t.Fatalf("%s: %q is no pattern with its number, in %q", englishTable, c, line)
			}
			of[p] = n
		}
		if n, err := strconv.Atoi(sum); err != nil || n != total(of) {
			t.Fatalf("%s: the numbers of %q add up to %d", englishTable, line, total(of))
		}
		allowed[group] = of
	}
	return allowed
}

func dialectNames() []string {
	var names []string
	for _, d := range dialect {
		names = append(names, d.name)
	}
	return names
}

// writeEnglish writes the table with what is counted, where that is not more
// than the table has.
func writeEnglish(t *testing.T, hits map[string][]dialectHit, allowed map[string][]int) {
	t.Helper()
	var out bytes.Buffer
	out.WriteString("# PACKAGE OR PAGE: uses of the patterns of dialect in english_test.go, in all and of each. They may only fall:\n" +
		"# go test ./internal/testing/archtest -run TestEnglish -update\n")
	for _, group := range slices.Sorted(maps.Keys(hits)) {
		counts := make([]int, len(dialect))
		for _, h := range hits[group] {
			counts[h.pattern]++
		}
		if total(counts) > total(allowed[group]) {
			counts = allowed[group]
		}
		if total(counts) == 0 {
			continue
		}
		var each []string
		for i, n := range counts {
			if n > 0 {
				each = append(each, fmt.Sprintf("%s %d", dialect[i].name, n))
			}
		}
		fmt.Fprintf(&out, "%s: %d = %s\n", group, total(counts), strings.Join(each, ", "))
	}
	if err := os.WriteFile(englishTable, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestDialectIn holds what is counted, and where it is said to be.
func TestDialectIn(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"The one behind it\nis given\nup: nobody was told.", "behind a:1, nobody a:3, told a:3, given up a:2"},
		{"What is there? What's new. It stands for a name, and stands here.", "what a:1, stands a:1"},
		{"So many, as so many and somewhat; told; an end.", "so many a:1"},
		{"Made-up guests go on.", "goes on a:1, makes up a:1"},
	} {
		var got []string
		for _, h := range dialectIn("a", 1, c.text) {
			got = append(got, dialect[h.pattern].name+" "+h.where)
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%q: %s, want %s", c.text, s, c.want)
		}
	}
	if page := dialectOfPage("p.md", "behind\n```\nbehind\n```\n`behind` \"behind\" behind\n"); len(page) != 2 || page[1].where != "p.md:5" {
		t.Errorf("uses in a page: %v", page)
	}
}
