package archtest

import (
	"go/ast"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// Words that a function's name does not begin with: it has a verb, or the noun that it returns.
// Pronouns say nothing in front of a noun either; the others are rejected as whole names.
var (
	pronouns = strings.Fields(`these those them it its that this what which who whom whose some any others other another
		everyone everything everywhere neither either none nothing something somewhere anything anywhere nobody somebody
		ones such ours mine yours`)
	otherWords = strings.Fields(`each every all both few many most more own self one only alone also again anew still then
		too now later soon yet always often once together exactly eventually here there elsewhere
		from of at by with into behind beside besides between onto out off over under within without before after until
		unless since while when where why how if or and not no but than as like through across against along among around
		above below near about inside outside apart
		chosen came settled told owed left gone kept given taken held found done seen made meant known unknown said saw
		lost sent written built begun broken brought bought caught drawn driven eaten fallen forgotten got heard hidden
		laid led lent met paid ridden risen shown sold sought spent stood stolen stuck sunk thought thrown torn understood
		woken worn bound frozen is are was were be been has have had does did`)
	// verbs that end like participles
	edVerbs = strings.Fields("need feed seed speed embed proceed exceed succeed shred shed")
)

// idioms are the names that stay, with the reason.
var idioms = []struct{ pkg, name, why string }{
	{"", "Now", "a clock's method, as in time"},
	{"", "All", "an iterator's function, as in slices and maps"},
	{"guest/x86", "At", "an operand: the assembler's calls read as its text does"},
	{"guest/x86", "And", "an instruction"},
	{"guest/x86", "Or", "an instruction"},
	{"guest/x86", "Not", "an instruction, and a condition's opposite"},
	{"guest/x86", "Out", "an instruction"},
	{"probe/bpfgen", "And", "an instruction"},
	{"probe/bpfgen", "If", "a jump"},
	{"probe/bpf", "and", "an operation on numbers, as its instruction"},
	{"probe/bpf", "or", "an operation on numbers, as its instruction"},
	{"kvm/device", "out", "a write to a port"},
	{"internal/server/fleet", "Redacted", "as in net/url"},
}

var (
	testName  = regexp.MustCompile(`^(?:Test|Benchmark|Fuzz|Example)(?:[A-Z_].*)?$`)
	firstWord = regexp.MustCompile(`^(?:[A-Z]+(?:[^a-zA-Z]|$)|[A-Z]?[a-z]+|[A-Z])`)
)

// TestFunctionNames: a function or method is named by a verb or a noun. Predicates, and methods
// that return a channel (as context.Context.Done), may be participles.
func TestFunctionNames(t *testing.T) {
	used := map[int]bool{}
	found := 0
	for _, f := range load(t) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				found++
				checkFunctionName(t, f, d.Name.Name, d.Type, used)
			case *ast.GenDecl:
				for _, s := range d.Specs {
					ts, ok := s.(*ast.TypeSpec)
					if !ok {
						continue
					}
					if i, ok := ts.Type.(*ast.InterfaceType); ok {
						for _, m := range i.Methods.List {
							for _, name := range m.Names {
								found++
								checkFunctionName(t, f, name.Name, m.Type.(*ast.FuncType), used)
							}
						}
					}
				}
			}
		}
	}
	for i, x := range idioms {
		if !used[i] {
			t.Errorf("the exception for %s %s is not needed", x.pkg, x.name)
		}
	}
	if found < 5000 {
		t.Errorf("found only %d functions: the files are not read", found)
	}
}

func checkFunctionName(t *testing.T, f *goFile, name string, typ *ast.FuncType, used map[int]bool) {
	t.Helper()
	if f.test && testName.MatchString(name) {
		return
	}
	first := firstWord.FindString(name)
	word := strings.ToLower(first)
	whole := len(first) == len(name) || strings.IndexFunc(name[len(first):], unicode.IsLetter) < 0
	bad := slices.Contains(pronouns, word)
	if whole {
		bad = bad || slices.Contains(otherWords, word) || strings.HasSuffix(word, "ed") && !slices.Contains(edVerbs, word)
	}
	if !bad || returnsTruth(typ) {
		return
	}
	for i, x := range idioms {
		if x.name == name && (x.pkg == "" || x.pkg == f.pkg) {
			used[i] = true
			return
		}
	}
	t.Errorf("%s: %s is named by a pronoun, a participle or a particle: say what it does or returns", f.path, name)
}

// returnsTruth reports whether a function returns a bool, perhaps with an error, or a channel.
func returnsTruth(typ *ast.FuncType) bool {
	if typ.Results == nil {
		return false
	}
	if _, ok := typ.Results.List[0].Type.(*ast.ChanType); ok {
		return true
	}
	id, ok := typ.Results.List[0].Type.(*ast.Ident)
	return ok && id.Name == "bool"
}
