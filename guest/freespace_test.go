package guest

import (
	"math/rand/v2"
	"testing"
)

// TestFreeSpace: pieces at random, held against a bit per byte.
func TestFreeSpace(t *testing.T) {
	const size, base = 1024, 1 << 40
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		f := FreeSpace{Late: seed%2 == 0}
		f.Add(base, size/2)
		f.Add(base+size/2, size/2)
		var used [size]bool
		type piece struct{ a, n uint64 }
		var held []piece
		left := uint64(size)
		for range 1000 {
			if rnd.IntN(5) < 3 {
				n, align := 1+rnd.Uint64N(90), uint64(1)<<rnd.IntN(7)
				odd := rnd.IntN(4) == 0
				a, ok := f.Find(n, align, func(a uint64) bool { return !odd || a/align%2 == 1 })
				fits := false
				for from := uint64(0); from+n <= size && !fits; from += align {
					fits = !odd || (base+from)/align%2 == 1
					for i := from; i < from+n; i++ {
						fits = fits && !used[i]
					}
				}
				// Within a range only the first address is tried.
				if ok && !fits || !ok && fits && !odd {
					t.Fatalf("seed %d: %d bytes at a multiple of %d: got %v, want %v", seed, n, align, ok, fits)
				}
				if !ok {
					continue
				}
				if a%align != 0 || a < base || a+n > base+size {
					t.Fatalf("seed %d: got %d bytes at %#x, want a multiple of %d", seed, n, a, align)
				}
				f.Take(a, n)
				for i := a - base; i < a-base+n; i++ {
					if used[i] {
						t.Fatalf("seed %d: byte %d was handed out twice", seed, i)
					}
					used[i] = true
				}
				held = append(held, piece{a, n})
				left -= n
			} else if len(held) > 0 {
				i := rnd.IntN(len(held))
				p := held[i]
				held[i] = held[len(held)-1]
				held = held[:len(held)-1]
				f.Add(p.a, p.n)
				for j := p.a - base; j < p.a-base+p.n; j++ {
					used[j] = false
				}
				left += p.n
			}
			if got := f.FreeBytes(); got != left {
				t.Fatalf("seed %d: %d bytes are left, want %d", seed, got, left)
			}
		}
		for _, p := range held {
			f.Add(p.a, p.n)
		}
		if len(f.ranges) != 1 || f.LargestRun() != size {
			t.Fatalf("seed %d: all given back, and there are %v", seed, f.ranges)
		}
	}
}

// TestFreeSpaceOrder: freed pieces are reused after everything else, or at once.
func TestFreeSpaceOrder(t *testing.T) {
	var f FreeSpace
	for _, late := range []bool{true, false} {
		f = FreeSpace{Late: late}
		f.Add(64, 64*10)
		for i := range uint64(35) {
			a, ok := f.Find(64, 64, nil)
			want := uint64(64)
			if late {
				want += 64 * (i % 10)
			}
			if !ok || a != want {
				t.Fatalf("late %v: piece %d is at %d, want %d", late, i, a, want)
			}
			f.Take(a, 64)
			f.Add(a, 64)
		}
	}
	if _, ok := f.Find(641, 1, nil); ok {
		t.Error("more than there is was handed out")
	}
	var none FreeSpace
	if _, ok := none.Find(1, 1, nil); ok {
		t.Error("something of nothing was handed out")
	}
}
