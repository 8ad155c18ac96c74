package probe

import (
	"math/rand/v2"
	"testing"
)

// TestPunNext: the next displacement that fits is the one that trying all would find.
func TestPunNext(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var boundaries []int
		for b := range 4 {
			if r.IntN(2) == 0 {
				boundaries = append(boundaries, b+1)
			}
		}
		p := punOf(boundaries)
		rel := r.Uint32()
		for b := range 4 { // often close to what fits
			switch r.IntN(4) {
			case 0:
				rel = rel&^(0xff<<(8*b)) | 0xcc<<(8*b)
			case 1:
				rel = rel&^(0xff<<(8*b)) | 0xff<<(8*b)
			}
		}
		got, ok := p.next(rel)
		if ok && (got&p.mask != int3s&p.mask || got < rel) || got == rel && rel&p.mask != int3s&p.mask {
			t.Fatalf("%v from %#x: %#x, %v", p, rel, got, ok)
		}
		// None between: the fitting ones, in order, are what the free bits count.
		free := func(x uint32) (n uint64) {
			for bit, k := 0, 0; bit < 32; bit++ {
				if p.mask>>bit&1 == 0 {
					n |= uint64(x>>bit&1) << k
					k++
				}
			}
			return n
		}
		n, all := uint64(0), uint64(1)
		if ok {
			n = free(got)
		}
		for range 32 - 8*len(boundaries) {
			all *= 2
		}
		if !ok {
			n = all
		}
		if n > 0 {
			before, _ := p.spread(uint32(n - 1))
			if before >= rel {
				t.Fatalf("%v from %#x: %#x, %v; %#x was before it", p, rel, got, ok, before)
			}
		}
	}
}
