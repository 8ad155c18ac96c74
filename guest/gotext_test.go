package guest

import (
	"debug/elf"
	"testing"
)

// TestWalksStacks: code of a Go program is known by the table of its functions, and where it
// begins and ends by the linker's symbols.
func TestWalksStacks(t *testing.T) {
	table := func(e testELF) testELF {
		e.sections = append(e.sections, testSection{".gopclntab", testKernel + 0x1200, 0x100, elf.SHF_ALLOC, 0})
		return e
	}
	sym := func(e testELF, name string, at uint64) testELF {
		e.syms = append(e.syms, testSym{name, at, 0, symInfo(elf.STB_LOCAL, elf.STT_FUNC), 1})
		return e
	}
	bounds := func(e testELF) testELF {
		return sym(sym(e, "runtime.text", testKernel+0x100), "runtime.etext", testKernel+0x280)
	}
	for _, tt := range []struct {
		name string
		elf  testELF
		want string // at the four addresses below
	}{
		{"not Go", bounds(soundELF()), "...."},
		{"without symbols", table(soundELF()), "GGGG"},
		{"with symbols", bounds(table(soundELF())), ".GG."},
		{"the table has a symbol alone", sym(bounds(soundELF()), "runtime.pclntab", testKernel+0x1200), ".GG."},
	} {
		img, err := ParseELF(tt.elf.build())
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		got := ""
		for _, at := range []GVA{testKernel, testKernel + 0x100, testKernel + 0x27f, testKernel + 0x280} {
			if img.WalksStacks(at) == "Go" {
				got += "G"
			} else {
				got += "."
			}
		}
		if got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}
