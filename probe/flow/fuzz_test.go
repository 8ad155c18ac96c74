package flow

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
	_ "github.com/guestprobe/guestprobe/internal/testing/fuzzing"
)

// FuzzAnalyze holds every decision about arbitrary bytes against the slow
// checker, and every copy of a region against the decoder.
func FuzzAnalyze(f *testing.F) {
	for _, s := range []string{
		"5548 89e5 4883ec10 e800000000 c9c3",
		"83ff03 7710 488d15f9ffffff 486304ba 4801d0 ffe0 90 c3 cc cc cc",
		"e2fe ebfe 74fd 0f84faffffff", "fbf4c3cccccccc", "f30f1efa c5f877 62f17c4828c1 d9c0", "06 90 90", "",
	} {
		f.Add(code(f, s), uint64(base), uint16(3))
	}
	f.Fuzz(func(t *testing.T, b []byte, addr uint64, mark uint16) {
		b = b[:min(len(b), 96)]
		in := Input{Addr: addr, Code: b, Read: func(at uint64, n int) []byte {
			if off := at - addr; off < uint64(len(b)) && n <= len(b)-int(off) {
				return b[off:][:n]
			}
			return nil
		}}
		in.Exception = func(at uint64) bool { return at == addr+uint64(mark) }
		in.Known = knownIndex(mark&1 != 0, addr+uint64(mark>>8))
		in.Label, in.Open = mark&2 != 0, mark&4 != 0
		fn := Analyze(in)
		newSlow(in, fn).check(t, fn)
		for _, i := range fn.Insts() {
			reg, no := fn.Region(i.Off, OursCalls)
			if no == nil {
				checkCopy(t, reg, addr+0x10_0000)
			}
		}
	})
}

// checkCopy checks that a copy decodes into its parts.
func checkCopy(t *testing.T, reg Region, to uint64) {
	t.Helper()
	prefix := []byte{1, 2, 3}
	c, starts, err := reg.AppendCopy(prefix, to)
	if err != nil {
		if len(c) != len(prefix) || starts != nil {
			t.Fatalf("%+v: a failed copy left %x", reg, c)
		}
		return
	}
	c = c[len(prefix):]
	if len(c) > MaxCopy || len(starts) != len(reg.Insts) {
		t.Fatalf("%+v: copy of %d bytes, starts %v", reg, len(c), starts)
	}
	for k, off := range starts {
		end := len(c)
		if k+1 < len(starts) {
			end = starts[k+1]
		}
		for n := off; n < end; {
			i, err := x86.Decode(c[n:])
			if err != nil {
				t.Fatalf("%+v: copy % x: at %d: %v", reg, c, n, err)
			}
			if n += int(i.Len); n > end {
				t.Fatalf("%+v: copy % x: instruction at %d reaches into the next copy at %d", reg, c, n, end)
			}
		}
	}
}
