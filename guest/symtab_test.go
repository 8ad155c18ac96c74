package guest

import (
	"debug/elf"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLookup(t *testing.T) {
	e := soundELF()
	e.syms = append(e.syms,
		testSym{"both", testKernel + 0x720, 4, symInfo(elf.STB_GLOBAL, elf.STT_FUNC), 1}, // a function
		testSym{"both", testKernel + 0x2010, 4, symInfo(elf.STB_LOCAL, elf.STT_OBJECT), 3},
		testSym{"same", testKernel + 0x730, 4, symInfo(elf.STB_LOCAL, elf.STT_FUNC), 1},
		testSym{"same", testKernel + 0x730, 4, symInfo(elf.STB_GLOBAL, elf.STT_FUNC), 1},
		testSym{"vars", testKernel + 0x2020, 4, symInfo(elf.STB_LOCAL, elf.STT_OBJECT), 3},
		testSym{"vars", testKernel + 0x2028, 4, symInfo(elf.STB_LOCAL, elf.STT_OBJECT), 3},
		testSym{"number", 0x1234, 0, symInfo(elf.STB_GLOBAL, elf.STT_NOTYPE), -15}, // SHN_ABS
		testSym{"undefined", testKernel, 0, symInfo(elf.STB_GLOBAL, elf.STT_FUNC), 0},
		testSym{"file.c", 0, 0, symInfo(elf.STB_LOCAL, elf.STT_FILE), -15},
		testSym{"common", testKernel, 8, symInfo(elf.STB_GLOBAL, elf.STT_OBJECT), -14},           // SHN_COMMON
		testSym{"extended", testKernel + 0x2030, 8, symInfo(elf.STB_GLOBAL, elf.STT_OBJECT), -1}, // SHN_XINDEX
		testSym{"thread_local", 0x10, 8, symInfo(elf.STB_GLOBAL, elf.STT_TLS), 3},
		testSym{"untyped_data", testKernel + 0x2040, 8, symInfo(elf.STB_GLOBAL, elf.STT_NOTYPE), 3},
		testSym{"in_debug_section", 0x10, 8, symInfo(elf.STB_LOCAL, elf.STT_NOTYPE), 6},
		testSym{"", testKernel + 0x760, 4, symInfo(elf.STB_LOCAL, elf.STT_FUNC), 1},
		testSym{"elsewhere", 0x5000, 4, symInfo(elf.STB_GLOBAL, elf.STT_FUNC), 1},
		testSym{"huge", testKernel + 0x17f0, 1 << 63, symInfo(elf.STB_LOCAL, elf.STT_FUNC), 1},
		testSym{"bad\xffname", testKernel + 0x740, 4, symInfo(elf.STB_LOCAL, elf.STT_FUNC), 1},
		testSym{"ifunc", testKernel + 0x750, 4, symInfo(elf.STB_GLOBAL, elf.STT_GNU_IFUNC), 1},
	)
	e.sections = append(e.sections, testSection{".debug_line", 0, 0x20, 0, 0})
	img := mustParse(t, e)
	tests := []struct {
		name string
		want Symbol
		err  string
	}{
		{"_start", Symbol{"_start", testKernel, 0x10, SymFunc, true, false, ".text", false}, ""},
		{"sized_label", Symbol{"sized_label", testKernel + 0x140, 0xc0, SymFunc, false, false, ".text", true}, ""},
		{"open", Symbol{"open", testKernel + 0x200, 0x100, SymFunc, true, false, ".text", false}, ""},
		{"last", Symbol{"last", testKernel + 0x600, 0x100, SymFunc, true, false, ".text", false}, ""},
		{"trap", Symbol{"trap", testKernel + 0x1000, 0x20, SymFunc, true, false, ".kprobes.text", false}, ""},
		{"counter", Symbol{"counter", testKernel + 0x2008, 8, SymData, true, false, ".data", false}, ""},
		{"zeros", Symbol{"zeros", testKernel + 0x2100, 0x1000, SymData, true, false, ".bss", false}, ""},
		{"user_hot", Symbol{"user_hot", testUser + 8, 0x18, SymFunc, true, true, ".utext", false}, ""},
		{"both", Symbol{"both", testKernel + 0x720, 4, SymFunc, true, false, ".text", false}, ""},
		{"same", Symbol{"same", testKernel + 0x730, 4, SymFunc, true, false, ".text", false}, ""},
		{"number", Symbol{"number", 0x1234, 0, SymOther, true, false, "", true}, ""},
		{"huge", Symbol{"huge", testKernel + 0x17f0, 0x10, SymFunc, false, false, ".text", false}, ""},
		{"bad\uFFFDname", Symbol{"bad\uFFFDname", testKernel + 0x740, 4, SymFunc, false, false, ".text", false}, ""},
		{"ifunc", Symbol{"ifunc", testKernel + 0x750, 4, SymFunc, true, false, ".text", false}, ""},
		{"extended", Symbol{"extended", testKernel + 0x2030, 8, SymData, true, false, ".data", false}, ""},
		{"untyped_data", Symbol{"untyped_data", testKernel + 0x2040, 8, SymData, true, false, ".data", true}, ""},
		{"elsewhere", Symbol{"elsewhere", 0x5000, 4, SymFunc, true, false, ".text", false}, ""},
		{"common", Symbol{}, `look up "common": symbol not found`},
		{"thread_local", Symbol{}, `look up "thread_local": symbol not found`},
		{"in_debug_section", Symbol{}, `look up "in_debug_section": symbol not found`},
		{"undefined", Symbol{}, `look up "undefined": symbol not found`},
		{"file.c", Symbol{}, `look up "file.c": symbol not found`},
		{"", Symbol{}, `look up "": symbol not found`},
		{"dup", Symbol{}, `symbol "dup" is ambiguous: 2 functions have that name, at 0xffffffff80100400 0xffffffff80100500`},
	}
	for _, tt := range tests {
		got, err := img.Lookup(tt.name)
		if got != tt.want || errText(err) != tt.err {
			t.Errorf("Lookup(%q) = %+v, %v; want %+v, %s", tt.name, got, err, tt.want, tt.err)
		}
	}
	_, err := img.Lookup("vars")
	var ae *AmbiguousSymbolError
	if !errors.As(err, &ae) || cmp.Diff([]GVA{testKernel + 0x2020, testKernel + 0x2028}, ae.Addrs) != "" {
		t.Errorf("vars: %v", err)
	}
}

func TestSymbolSectionOutOfRange(t *testing.T) {
	e := soundELF()
	e.syms[3].shndx = 9
	if _, err := ParseELF(e.build()); errText(err) != "elf symbol 4: it is in section 9 of 9" {
		t.Error(err)
	}
}

func TestFind(t *testing.T) {
	img := mustParse(t, soundELF())
	tests := []struct {
		va   GVA
		want string
	}{
		{testKernel, "_start"},
		{testKernel + 0xf, "_start"},
		{testKernel + 0x10, ""}, // the function has a size: this is padding
		{testKernel + 0x100, "sized"},
		{testKernel + 0x140, "sized"}, // not the label in it
		{testKernel + 0x17f, "sized"},
		{testKernel + 0x180, "sized_label"},
		{testKernel + 0x1ff, "sized_label"},
		{testKernel + 0x200, "open"},
		{testKernel + 0x2ff, "open"},
		{testKernel + 0x300, "__twin"}, // global before local
		{testKernel + 0x310, ""},
		{testKernel + 0x400, "dup"},
		{testKernel + 0x6ff, "last"},
		{testKernel + 0x1000, "trap"},
		{testKernel + 0x2008, "counter"},
		{testKernel + 0x200f, "counter"},
		{testKernel + 0x2010, ""},
		{testKernel + 0x30ff, "zeros"},
		{testKernel + 0x3100, ""},
		{testUser + 7, ""},
		{testUser + 8, "user_hot"},
		{testUser + 0x20, ""},
		{0, ""},
		{^GVA(0), ""},
	}
	for _, tt := range tests {
		s, ok := img.Find(tt.va)
		if s.Name != tt.want || ok != (tt.want != "") {
			t.Errorf("Find(%v) = %q, %v; want %q", tt.va, s.Name, ok, tt.want)
		}
	}
	if n := testing.AllocsPerRun(100, func() { img.Find(testKernel + 0x140) }); n != 0 {
		t.Errorf("Find: %v allocations", n)
	}
}

// naiveFind looks at every symbol: the rule of buildCover in words. The file's
// own sizes come from the ELF description.
func naiveFind(img *Image, sized map[string]bool, va GVA) string {
	best := -1
	syms := img.Symbols()
	for i, s := range syms {
		if va < s.Addr || va >= s.Addr+GVA(s.Size) {
			continue
		}
		better := func(o Symbol) bool {
			if a, b := sized[s.Name], sized[o.Name]; a != b {
				return a
			}
			if s.Addr != o.Addr {
				return s.Addr > o.Addr
			}
			return s.Size < o.Size // the earlier in the list where equal
		}
		if best < 0 || better(syms[best]) {
			best = i
		}
	}
	if best < 0 {
		return ""
	}
	return syms[best].Name
}

func TestFindAgainstNaive(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		e := soundELF()
		e.syms = nil
		sized := map[string]bool{}
		for i := range 1 + rnd.IntN(40) {
			s := testSym{fmt.Sprintf("s%d", i), testKernel + uint64(rnd.IntN(0x120)), uint64(max(0, rnd.IntN(0x60)-0x10)), symInfo(elf.SymBind(rnd.IntN(2)), elf.SymType(rnd.IntN(3))), 1}
			sized[s.name] = s.size != 0
			e.syms = append(e.syms, s)
		}
		img := mustParse(t, e)
		if !sort.SliceIsSorted(img.Symbols(), func(i, j int) bool { return img.Symbols()[i].Addr < img.Symbols()[j].Addr }) {
			t.Fatal("symbols are not sorted")
		}
		for va := GVA(testKernel - 4); va < testKernel+0x1a0; va++ {
			s, _ := img.Find(va)
			if want := naiveFind(img, sized, va); s.Name != want {
				t.Fatalf("round %d: Find(%v) = %q, want %q\n%+v", round, va, s.Name, want, img.Symbols())
			}
		}
	}
}

func TestMatch(t *testing.T) {
	img := mustParse(t, soundELF())
	for pattern, want := range map[string][]string{
		"*twin":    {"__twin", "twin"},
		"dup":      {"dup", "dup"},
		"siz*":     {"sized", "sized_label", "sized.cold"},
		"nothing*": nil,
		"user_*":   {"user_hot"},
	} {
		var got []string
		for _, s := range img.Match(pattern) {
			got = append(got, s.Name)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Match(%q): %s", pattern, diff)
		}
	}
	if n := len(img.Match("*")); n != len(img.Symbols()) {
		t.Errorf("* matches %d of %d", n, len(img.Symbols()))
	}
}

func BenchmarkFind(b *testing.B) {
	e := soundELF()
	for i := range 1500 {
		e.syms = append(e.syms, testSym{fmt.Sprintf("f%d", i), testKernel + 0x780 + uint64(i), 1, symInfo(elf.STB_LOCAL, elf.STT_FUNC), 1})
	}
	img := mustParse(b, e)
	b.ReportAllocs()
	for b.Loop() {
		img.Find(testKernel + 0x900)
	}
}
