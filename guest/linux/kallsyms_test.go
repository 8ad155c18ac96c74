package linux

import (
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/elf"
	"github.com/guestprobe/guestprobe/internal/testing/kerneltest"
)

func TestKallsyms(t *testing.T) {
	for _, l := range kerneltest.Layouts {
		for _, n := range []int{257, 511, 512, 513, 1000} {
			const types = "TtdDWwrAb"
			want := kerneltest.Names(l, kerneltest.Base, n)
			mem := &elf.Memory{Sections: []elf.Part{{Name: ".rodata", Addr: kerneltest.Base + 1<<24, Data: kerneltest.Kallsyms(l, kerneltest.Base+1<<24, kerneltest.Base, want, types)}}}
			got := kallsyms(mem)
			if len(got) != len(want) {
				t.Errorf("%s, %d symbols: got %d", l.Name, n, len(got))
				continue
			}
			for i, s := range got {
				fn := strings.IndexByte("TtWw", types[i%len(types)]) >= 0
				if s.Name != want[i].Name || s.Addr != want[i].Addr || s.Func != fn {
					t.Errorf("%s, symbol %d of %d: got %+v, want %+v, function %v", l.Name, i, n, s, want[i], fn)
					break
				}
			}
		}
	}
}

// TestKallsymsDamaged: tables that contradict each other are rejected, and no damage
// makes the search read out of bounds.
func TestKallsymsDamaged(t *testing.T) {
	l := kerneltest.Layouts[1]
	good := kerneltest.Kallsyms(l, kerneltest.Base, kerneltest.Base, kerneltest.Names(l, kerneltest.Base, 600), "T")
	none := 0
	for at := 0; at < len(good); at += 7 {
		for _, b := range [][]byte{append([]byte(nil), good[:at]...), append([]byte(nil), good...)} {
			if at < len(b) {
				b[at] ^= 0x55
			}
			mem := &elf.Memory{Sections: []elf.Part{{Name: ".rodata", Addr: 1 << 40, Data: b}}}
			if len(kallsyms(mem)) == 0 {
				none++
			}
		}
	}
	if none == 0 {
		t.Error("no damage was noticed")
	}
}

func FuzzKallsyms(f *testing.F) {
	for _, l := range kerneltest.Layouts {
		f.Add(kerneltest.Kallsyms(l, kerneltest.Base, kerneltest.Base, kerneltest.Names(l, kerneltest.Base, 260), "Tt"))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := &elf.Memory{Sections: []elf.Part{{Name: ".rodata", Addr: 1 << 40, Data: b}}}
		if got := kallsyms(mem); len(got) > len(b) {
			t.Errorf("%d symbols from %d bytes", len(got), len(b))
		}
	})
}
