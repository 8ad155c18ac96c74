package guest

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestScan(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 9))
	b := make([]byte, 1<<17+5)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	x, y := Window{^uint64(0) - 1<<62, 1 << 62}, Window{1 << 40, 1}
	binary.LittleEndian.PutUint64(b[80:], 1<<40)
	binary.LittleEndian.PutUint64(b[88:], 1<<40+1)
	binary.LittleEndian.PutUint64(b[96:], 1<<40-1)
	binary.LittleEndian.PutUint64(b[104:], x.Lo)
	binary.LittleEndian.PutUint64(b[112:], x.Lo+x.N) // not in it
	var got, want []uint64
	Scan(b, x, y, func(v uint64) { got = append(got, v) })
	for i := 0; i+8 <= len(b); i += 8 {
		v := binary.LittleEndian.Uint64(b[i:])
		if v >= x.Lo && v != x.Lo+x.N || v == 1<<40 {
			want = append(want, v)
		}
	}
	if !slices.Equal(got, want) || len(got) < 100 {
		t.Errorf("found %d words, want %d", len(got), len(want))
	}
	Scan(nil, x, y, func(uint64) { t.Error("a word of nothing") })
	Scan(b, Window{}, Window{}, func(uint64) { t.Error("a word in no window") })
}

// TestScanUneven compares with each offset by itself, in windows of many widths.
func TestScanUneven(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 9))
	type hit struct {
		off int
		v   uint64
	}
	for _, w := range []Window{{0xf800000, 0x10000}, {0xffff_ffff_7fa0_0000, 0x20_0000}, {0xffff_ff00, 0x200}, {5, 1}, {1 << 63, 1 << 63}, {0, 1 << 20}, {}} {
		b := make([]byte, 1<<13+3)
		for i := range b {
			if i%512 > 256 { // the rest is zeros
				b[i] = byte(rnd.Uint32())
			}
		}
		for range 200 {
			if v := w.Lo + rnd.Uint64N(max(w.N, 1)) + rnd.Uint64N(3) - 1; rnd.Uint32()%4 != 0 {
				binary.LittleEndian.PutUint64(b[rnd.IntN(len(b)-8):], v)
			}
		}
		var got, want []hit
		ScanUneven(b, w, Window{}, func(off int, v uint64) { got = append(got, hit{off, v}) })
		for off := 0; off+8 <= len(b); off++ {
			if v := binary.LittleEndian.Uint64(b[off:]); off%8 != 0 && v-w.Lo < w.N {
				want = append(want, hit{off, v})
			}
		}
		if !slices.Equal(got, want) || w.N > 1 && len(want) < 50 {
			t.Errorf("%#x: found %d, want %d", w, len(got), len(want))
		}
	}
}

// BenchmarkScanUneven is how long 64 MiB take, with the windows of the built-in guest.
func BenchmarkScanUneven(b *testing.B) {
	mem := make([]byte, 64<<20)
	rnd := rand.New(rand.NewPCG(1, 9))
	for i := 0; i < len(mem); i += 1 << 16 { // half of the pages have something
		for j := range 1 << 15 {
			mem[i+j] = byte(rnd.Uint32())
		}
	}
	b.SetBytes(int64(len(mem)))
	for b.Loop() {
		ScanUneven(mem, Window{0xf800000, 0x10000}, Window{0xffff_ffff_7fa0_0000, 0x10_0000}, func(int, uint64) {})
	}
}

// BenchmarkScan is how long the words of 64 MiB take.
func BenchmarkScan(b *testing.B) {
	mem := make([]byte, 64<<20)
	rnd := rand.New(rand.NewPCG(1, 9))
	for i := 0; i < len(mem); i += 4096 { // a kernel's addresses, here and there
		binary.LittleEndian.PutUint64(mem[i:], 0xffffffff_80000000+rnd.Uint64N(1<<31))
	}
	b.SetBytes(int64(len(mem)))
	n := 0
	for b.Loop() {
		Scan(mem, Window{0xffffffff_80000000, 1 << 31}, Window{0x10_0000_0000, 1 << 24}, func(uint64) { n++ })
	}
}
