package analyze

import (
	"strings"
	"testing"
)

const kernelBase = 0xffff_ffff_8100_0000

func TestKallsyms(t *testing.T) {
	for _, l := range layouts {
		for _, n := range []int{257, 511, 512, 513, 1000} {
			const types = "TtdDWwrAb"
			want := testSymbols(l, kernelBase, n)
			img := &image{sections: []section{{name: ".rodata", addr: 1 << 40, data: buildKallsyms(l, kernelBase, want, types)}}}
			got := img.kallsyms()
			if len(got) != len(want) {
				t.Errorf("%s, %d symbols: got %d", l.name, n, len(got))
				continue
			}
			for i, s := range got {
				fn := strings.IndexByte("TtWw", types[i%len(types)]) >= 0
				if s.name != want[i].name || s.addr != want[i].addr || s.fn != fn {
					t.Errorf("%s, symbol %d of %d: got %+v, want %+v, function %v", l.name, i, n, s, want[i], fn)
					break
				}
			}
		}
	}
}

// TestKallsymsDamaged: tables that contradict each other are none, and no
// damage makes the search read outside.
func TestKallsymsDamaged(t *testing.T) {
	l := layouts[1]
	good := buildKallsyms(l, kernelBase, testSymbols(l, kernelBase, 600), "T")
	none := 0
	for at := 0; at < len(good); at += 7 {
		for _, b := range [][]byte{append([]byte(nil), good[:at]...), append([]byte(nil), good...)} {
			if at < len(b) {
				b[at] ^= 0x55
			}
			img := &image{sections: []section{{name: ".rodata", addr: 1 << 40, data: b}}}
			if len(img.kallsyms()) == 0 {
				none++
			}
		}
	}
	if none == 0 {
		t.Error("no damage was noticed")
	}
}

func FuzzKallsyms(f *testing.F) {
	for _, l := range layouts {
		f.Add(buildKallsyms(l, kernelBase, testSymbols(l, kernelBase, 260), "Tt"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		img := &image{sections: []section{{name: ".rodata", addr: 1 << 40, data: b}}}
		if got := img.kallsyms(); len(got) > len(b) {
			t.Errorf("%d symbols from %d bytes", len(got), len(b))
		}
	})
}
