package probe

import (
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

func TestTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 2, 3, 4, 7, 8, 9, 1000} {
		sites := map[guest.GVA]*site{}
		for len(sites) < n {
			a := guest.GVA(0xffffffff81000000 + rng.Uint64N(4096))
			if len(sites) == 0 {
				a = 0 // an address like any other
			}
			sites[a] = &site{addr: a}
		}
		tab := newTable(sites)
		if used := 2 * n; used > len(tab.entries) {
			t.Errorf("n=%d: table of %d entries is more than half full", n, len(tab.entries))
		}
		for a, s := range sites {
			if got := tab.find(a); got != s {
				t.Errorf("n=%d: find(%v) = %p, want %p", n, a, got, s)
			}
		}
		for range 2000 {
			a := guest.GVA(0xffffffff81000000 + rng.Uint64N(8192))
			if got := tab.find(a); got != sites[a] {
				t.Errorf("n=%d: find(%v) = %p, want %p", n, a, got, sites[a])
			}
		}
	}
}

// TestTableCollisions: addresses that all hash to one entry are all found, and
// the search for one that is missing ends.
func TestTableCollisions(t *testing.T) {
	var same []guest.GVA
	probe := &table{entries: make([]tableEntry, 64), shift: 58}
	for a := guest.GVA(0); len(same) < 20; a += 16 {
		if probe.hash(a) == 63 { // the last one: the search wraps around
			same = append(same, a)
		}
	}
	sites := map[guest.GVA]*site{}
	for _, a := range same[:19] {
		sites[a] = &site{addr: a}
	}
	tab := newTable(sites)
	if len(tab.entries) != 64 {
		t.Fatalf("table of %d entries, want 64", len(tab.entries))
	}
	for a, s := range sites {
		if tab.find(a) != s {
			t.Errorf("find(%v) does not find it", a)
		}
	}
	if got := tab.find(same[19]); got != nil {
		t.Errorf("find(%v) = %v, want nothing", same[19], got.addr)
	}
}

// TestStateIsPadded: what one vCPU writes at every hit shares no cache line
// with what another one writes.
func TestStateIsPadded(t *testing.T) {
	const line = 64
	if s := cellSize; s != line {
		t.Errorf("a cell has %d bytes, want %d", s, line)
	}
	if cpuTail < line {
		t.Errorf("%d bytes between two vCPUs' states, want at least %d", cpuTail, line)
	}
}
