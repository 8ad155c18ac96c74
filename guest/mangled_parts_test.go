package guest

import (
	"fmt"
	"testing"
)

// TestLookupOfSource: a name in the source finds the only function that has it;
// several are an error.
func TestLookupOfSource(t *testing.T) {
	syms := []Symbol{
		{Name: "_Z7collatzm", Addr: 0x1000, Kind: SymFunc}, {Name: "_Z7collatzm.part.0", Addr: 0x1100, Kind: SymFunc}, {Name: "_Z7collatzm.cold", Addr: 0x1200, Kind: SymFunc},
		{Name: "_Z4overi", Addr: 0x2000, Kind: SymFunc}, {Name: "_Z4overl", Addr: 0x2100, Kind: SymFunc},
		{Name: "_ZN1AC1Ev", Addr: 0x3000, Kind: SymFunc}, {Name: "_ZN1AC2Ev", Addr: 0x3000, Kind: SymFunc},
		{Name: "_ZNK1A3getEv", Addr: 0x3100, Kind: SymFunc}, {Name: "plain", Addr: 0x4000, Kind: SymFunc},
		{Name: "plain.part.0", Addr: 0x4100, Kind: SymFunc}, {Name: "plain.cold", Addr: 0x4200, Kind: SymFunc}, {Name: "plain.12", Addr: 0x4300, Kind: SymFunc}, {Name: "plain.part.1", Addr: 0x4400},
		{Name: "_RNvC5crate4rust", Addr: 0x5000, Kind: SymFunc}, {Name: "_Zbroken", Addr: 0x6000, Kind: SymFunc},
	}
	table := NewSymbolTable(syms, func(*Symbol) (uint64, uint64) { return 1 << 20, 1 << 20 })
	for name, want := range map[string]string{
		"collatz": "_Z7collatzm", "collatz(unsigned long)": "_Z7collatzm", "collatz(int)": "", "ollatz": "", "over": "", "over(int)": "_Z4overi", "over(long)": "_Z4overl",
		"A::A": "_ZN1AC1Ev", "A::A()": "_ZN1AC1Ev", "A::get": "_ZNK1A3getEv", "A::get()": "_ZNK1A3getEv", "A::get() const": "_ZNK1A3getEv", "get": "",
		"plain": "plain", "crate::rust": "_RNvC5crate4rust", "broken": "", "_Zbroken": "_Zbroken", "": "", "(": "", "::": "", "<": "",
	} {
		if s, err := table.Lookup(name); s.Name != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", name, s.Name, err, want)
		}
	}
	for name, want := range map[string]string{"plain": "[plain.part.0 plain.cold]", "_Z7collatzm": "[_Z7collatzm.part.0 _Z7collatzm.cold]", "over": "[]", "plain.part.0": "[]"} {
		if got := fmt.Sprint(table.Parts(name)); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	for name, want := range map[string]string{"plain": "plain", "_Z4overi": "over", "_Z4overi.cold": "over", "_Zbroken": "_Zbroken"} {
		for range 2 {
			if got := ShownName(name); got != want {
				t.Errorf("%s is shown as %s, want %s", name, got, want)
			}
		}
	}
	if n := len(table.mangled); n != 10 {
		t.Errorf("a search for a missing name looks at %d symbols, want the 10 mangled ones", n)
	}
	for i := range 3 * maxShown {
		ShownName(fmt.Sprintf("_Z%df%06di", 7, i))
	}
	if n := shown.n.Load(); n > maxShown {
		t.Errorf("%d names are kept", n)
	}
}
