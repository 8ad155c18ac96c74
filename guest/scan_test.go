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
