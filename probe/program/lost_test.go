package program

import (
	"testing"

	"github.com/guestprobe/guestprobe/probe/bpf"
)

// TestFormsInTurns: a pass over the ring of definitions looks at a bounded number of them, and at
// all of them in turns.
func TestFormsInTurns(t *testing.T) {
	const n = 10*countedAtOnce + 7
	m, err := bpf.NewMap(bpf.MapSpec{Name: "records", Kind: bpf.RingBuf, MaxEntries: 4096}, 1, bpf.Heap{})
	if err != nil {
		t.Fatal(err)
	}
	r := &guestRing{ring: m, to: map[uint32]*guestForm{}}
	seen := map[*guestForm]int{}
	for range n {
		g := &guestForm{}
		g.at, r.all = len(r.all), append(r.all, g)
	}
	looked := 0
	for range n/countedAtOnce + 1 {
		for _, g := range r.turn() {
			seen[g]++
			looked++
		}
	}
	if len(seen) != n || looked != (n/countedAtOnce+1)*countedAtOnce {
		t.Errorf("%d of %d definitions were looked at, %d looks in %d passes", len(seen), n, looked, n/countedAtOnce+1)
	}
	r.lost = 1 // the ring's number is another one: it has lost records since
	if got := len(r.turn()); got != n {
		t.Errorf("after a loss a pass looks at %d definitions, want all %d", got, n)
	}
}
