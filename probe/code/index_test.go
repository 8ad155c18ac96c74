package code

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// TestIndex holds an index against a map, through changes at random.
func TestIndex(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		var x Index[int]
		want := map[guest.GVA]*int{}
		near := guest.GVA(rnd.Uint64()) &^ 0xfff
		for i := range 4000 {
			a := near + guest.GVA(rnd.IntN(300)+1)
			switch rnd.IntN(5) {
			case 0, 1, 2:
				v := new(i)
				x.Set(a, v)
				want[a] = v
			case 3:
				x.Delete(a)
				delete(want, a)
			default:
				if rnd.IntN(1000) == 0 {
					x.Clear()
					clear(want)
				}
			}
			if b := near + guest.GVA(rnd.IntN(310)); x.Find(b) != want[b] {
				t.Fatalf("seed %d: at %v is %v, want %v", seed, b, x.Find(b), want[b])
			}
			if x.Len() != len(want) {
				t.Fatalf("seed %d: %d things, want %d", seed, x.Len(), len(want))
			}
		}
		for a, v := range x.All() {
			if want[a] != v {
				t.Errorf("seed %d: All has %v at %v, want %v", seed, v, a, want[a])
			}
			delete(want, a)
		}
		if len(want) != 0 {
			t.Errorf("seed %d: All lacks %v", seed, want)
		}
	}
}

// TestIndexForgets: values that are added and removed leave no trace.
func TestIndexForgets(t *testing.T) {
	var x Index[int]
	for i := range 100_000 {
		a := guest.GVA(i+1) << 4
		x.Set(a, new(int))
		x.Delete(a)
	}
	if n := len(x.table.Load().entries); n > 64 {
		t.Errorf("an index of nothing has %d entries", n)
	}
}

// TestIndexReaders: what stays is found while other things come and go.
func TestIndexReaders(t *testing.T) {
	var x Index[guest.GVA]
	const stay = 64
	set := func(a guest.GVA) { x.Set(a, &a) }
	for i := range guest.GVA(stay) {
		set(i*1000 + 1)
	}
	var done sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		done.Go(func() {
			for i := guest.GVA(0); ; i = (i + 1) % stay {
				select {
				case <-stop:
					return
				default:
				}
				if a := i*1000 + 1; x.Find(a) == nil || *x.Find(a) != a {
					t.Errorf("%v was not found", a)
					return
				}
				if p := x.Find(i*7 + 2); p != nil && *p != i*7+2 {
					t.Errorf("at %v is the thing of %v", i*7+2, *p)
					return
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(1, 3))
	for range 200_000 {
		if a := guest.GVA(rnd.IntN(1000)*7 + 2); rnd.IntN(2) == 0 {
			set(a)
		} else if (a-1)%1000 != 0 {
			x.Delete(a)
		}
	}
	close(stop)
	done.Wait()
}

// TestIndexWithin: the values within a range are found whether the range or the index
// is longer.
func TestIndexWithin(t *testing.T) {
	var x Index[int]
	at := func(lo, hi guest.GVA) (sum int) {
		for a, v := range x.Range(lo, hi) {
			if int(a) != *v {
				t.Errorf("%d is at %d", *v, a)
			}
			sum += *v
		}
		return sum
	}
	if got := at(0, 1<<40); got != 0 {
		t.Errorf("nothing has sum %d", got)
	}
	for i := 1; i <= 1000; i++ {
		v := 16 * i
		x.Set(guest.GVA(v), &v)
	}
	x.Delete(32)
	for _, c := range []struct {
		lo, hi guest.GVA
		want   int
	}{{0, 1 << 40, 16*1000*1001/2 - 32}, {0, 8000, 16*499*500/2 - 32}, {16, 48, 16}, {17, 49, 48}, {16, 16, 0}, {15984, 1 << 63, 15984 + 16000}, {^guest.GVA(0) - 3, 17, 16}, {^guest.GVA(0) - 3, 1 << 20, 16*1000*1001/2 - 32}} {
		if got := at(c.lo, c.hi); got != c.want {
			t.Errorf("within [%d, %d): sum %d, want %d", c.lo, c.hi, got, c.want)
		}
	}
}

// TestIndexSize: a table is at most half full, and has at most four entries for each value that was only added.
func TestIndexSize(t *testing.T) {
	var x Index[int]
	v := 0
	for n := 1; n <= 1<<16; n++ {
		x.Set(guest.GVA(16*n), &v)
		if size := len(x.table.Load().entries); size < 2*n || size > max(8, 4*n) {
			t.Fatalf("%d values have %d entries", n, size)
		}
	}
}
