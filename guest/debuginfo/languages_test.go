package debuginfo

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/types"
)

// placesAtEntry says where a variable is at its function's entry, as registers of integer arguments and words of the stack are numbered by
// types.Arguments, by debug information alone; ok is false where that has no such place.
func placesAtEntry(v Variable) (words []int, ok bool) {
	number := func(l Location) int {
		if l.Base == BaseRegister {
			return slices.Index(argumentRegs[:], l.Reg) + 1
		}
		return 0
	}
	switch l := v.Where; {
	case len(v.Pieces) > 0:
		for _, p := range v.Pieces {
			if p.Why != nil {
				return nil, false
			}
			words = append(words, number(p.Where))
		}
		return words, true
	case v.Why != nil || len(l.Offsets) != 1:
		return nil, false
	case l.Base == BaseCFA && l.Memory && l.Offsets[0] >= 0:
		return []int{len(argumentRegs) + 1 + int(l.Offsets[0]/8)}, true
	case l.Base == BaseRegister && l.Offsets[0] == 0: // in memory: a pointer was passed
		return []int{number(l)}, true
	}
	return nil, false
}

// checkConvention compares where prototypes say that parameters are passed with where the compiler has them, and returns of how many.
func checkConvention(t *testing.T, i *Info, path string) (compared int) {
	t.Helper()
	for _, s := range elfSymbols(t, path) {
		proto := i.Func(s.Name)
		if proto == nil || s.Value == 0 || i.Convention(s.Name) != "" {
			continue
		}
		vars, err := i.Parameters(s.Value)
		if err != nil {
			continue
		}
		byName := map[string]Variable{}
		for _, v := range vars {
			byName[v.Name] = v
		}
		seen := map[string]bool{}
		words, all := types.Arguments(proto), types.Words(proto)
		for k, p := range proto.Params {
			v, ok := byName[p.Name]
			if !ok || seen[p.Name] { // a pack of clang's has one name
				continue
			}
			seen[p.Name] = true
			want, ok := placesAtEntry(v)
			if !ok {
				continue
			}
			got := all[k]
			if got == nil {
				got = []int{words[k]}
			}
			if members, class := types.Members(p.Type); class && len(members) == 0 {
				continue // it takes no room, wherever gcc says that it is
			}
			if compared++; !slices.Equal(got[:min(len(got), len(want))], want) { // gcc leaves out vector registers at the end
				t.Errorf("%s: %s of %s is in %v, and %v by %+v %+v", path, p.Name, types.Prototype(s.Name, proto), got, want, v.Where, v.Pieces)
			}
		}
	}
	return compared
}

// TestConvention: parameters are where compilers pass them, including types that C
// does not have.
func TestConvention(t *testing.T) {
	dir := unpack(t, "testdata/languages.tar.gz")
	for name, least := range map[string]int{"gcc5": 45, "gcctypes4": 45, "clang5": 30, "clangtypes4": 30, "rust2": 5, "rust0": 8} {
		path := filepath.Join(dir, name)
		if n := checkConvention(t, open(t, path), path); n < least {
			t.Errorf("%s: %d were compared", name, n)
		}
	}
}

// membersOf is a type's members as text.
func membersOf(i *Info, tag types.Tag, name string) string {
	t := i.TypeByName(tag, name)
	if t == nil {
		return "unknown"
	}
	var b strings.Builder
	members, _ := types.Members(t)
	for _, m := range members {
		fmt.Fprintf(&b, "%s at %d", types.Declaration(m.Type, m.Name), m.Offset)
		if m.BitfieldSize > 0 {
			fmt.Fprintf(&b, ", %d bits", m.BitfieldSize)
		}
		b.WriteString("; ")
	}
	return b.String()
}

// TestClasses: members of base classes are members, static ones are not, and a type
// of a type unit has the name of its namespace.
func TestClasses(t *testing.T) {
	dir := unpack(t, "testdata/languages.tar.gz")
	for _, form := range []string{"gcc5", "gcctypes4", "clang5", "clangtypes4"} {
		i := open(t, filepath.Join(dir, form))
		want := "unsigned int r at 192, 5 bits; int neg at 197, 7 bits; unsigned long wide at 204, 40 bits; union {...} at 256; enum kind k at 288; struct array<int, 4> data at 320; ptrdiff_t member at 448; " +
			"member_function_pointer method at 512; decltype(nullptr) nothing at 640; struct abstract at 0; struct tagged at 128; "
		for name, want := range map[string]string{
			"shapes::circle": want,
			"shapes::hiding": "long tag at 128; struct named at 0; ",
			"derived":        "double d at 64; struct tagged at 0; ",
			"shapes::far":    "",
		} {
			got := strings.ReplaceAll(membersOf(i, types.TagStruct, name), "long unsigned int", "unsigned long")
			got = strings.ReplaceAll(got, "long int", "long")
			if name == "shapes::far" { // its virtual base is nowhere
				if !strings.Contains(got, "long own at 64; ") || strings.Contains(got, "struct tagged") {
					t.Errorf("%s: %s is %s", form, name, got)
				}
				continue
			}
			if got != want {
				t.Errorf("%s: %s is\n%s, want\n%s", form, name, got, want)
			}
		}
		// By a path: the member of the class itself hides that of a base, and names of bases are found at their offsets.
		for _, x := range []struct {
			class, member string
			at            uint64
			found         bool
		}{{"shapes::circle", "tag", 128, true}, {"shapes::circle", "id", 64, true}, {"shapes::circle", "count", 0, false}, {"shapes::hiding", "tag", 128, true}, {"shapes::far", "tag", 0, false}} {
			f, found, ok := types.Member(i.TypeByName(types.TagStruct, x.class), x.member)
			if found != x.found || !ok || f.Offset != x.at {
				t.Errorf("%s: %s.%s is at %d, %v, want %d", form, x.class, x.member, f.Offset, found, x.at)
			}
		}
	}
}

// TestVariants: the variants of Rust's enumerations are members, like those of a
// union, in addition to the discriminant.
func TestVariants(t *testing.T) {
	dir := unpack(t, "testdata/languages.tar.gz")
	for _, form := range []string{"rust0", "rust2"} {
		i := open(t, filepath.Join(dir, form))
		for name, want := range map[string]string{
			"lang::Shape":               "u16 discriminant at 0; struct Dot Dot at 0; struct Circle Circle at 0; struct Rect Rect at 0; ",
			"lang::Shape::Rect":         "u16 w at 16; u64 h at 64; ",
			"core::option::Option<u32>": "u32 discriminant at 0; struct None None at 0; struct Some Some at 0; ",
		} {
			if got := membersOf(i, types.TagStruct, name); got != want {
				t.Errorf("%s: %s is %s, want %s", form, name, got, want)
			}
		}
		for name, why := range map[string]string{"numbers": "", "structures": "Rust passes parameters by rules of its own"} {
			if got := i.Convention(name); got != why {
				t.Errorf("%s: %s: %q, want %q", form, name, got, why)
			}
		}
	}
}

// TestGo: of a program of Go, whose functions have registers of their own for parameters, these are not taken to be where C has them, and results
// are no parameters.
func TestGo(t *testing.T) {
	dir := t.TempDir()
	source := "package main\n\ntype item struct{ name string; n int }\n\n//go:noinline\nfunc work(it *item, n int, s string) (int, error) { it.n += n; return it.n + len(s), nil }\n\nfunc main() { println(work(&item{}, 1, \"x\")) }\n"
	path := filepath.Join(dir, "main.go")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "build", "-o", "prog", "main.go")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GO111MODULE=off")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	i := open(t, filepath.Join(dir, "prog"))
	p := i.Func("main.work")
	if p == nil {
		t.Fatal("no main.work")
	}
	if got, want := types.Prototype("main.work", p), "main.work(main.item *it, int n, struct string s) -> void"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := i.Convention("main.work"), "Go passes parameters by rules of its own"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestForeignEntry: before unoptimized code has put its parameters into its frame,
// Rust's parameters that are numbers and pointers are in C's registers; for a
// function with other parameters no place is reported.
func TestForeignEntry(t *testing.T) {
	path := filepath.Join(unpack(t, "testdata/languages.tar.gz"), "rust0")
	i := open(t, path)
	for _, s := range elfSymbols(t, path) {
		if s.Name != "numbers" && s.Name != "structures" {
			continue
		}
		vars, err := i.Parameters(s.Value)
		if err != nil || len(vars) < 6 {
			t.Fatal(vars, err)
		}
		for k, v := range vars {
			words, known := placesAtEntry(v)
			switch {
			case s.Name == "structures" && (!errors.Is(v.Why, errNotYet) || known):
				t.Errorf("%s.%s: %+v, %v", s.Name, v.Name, v.Where, v.Why)
			case s.Name == "numbers" && (!known || words[0] != k+1):
				t.Errorf("%s.%s: %v, %+v, %v", s.Name, v.Name, words, v.Where, v.Why)
			}
		}
	}
}
