package inguest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/internal/bpftest"
	"github.com/guestprobe/guestprobe/internal/kvmtest"
	"github.com/guestprobe/guestprobe/probe/bpf"
)

var (
	programs = flag.Int("programs", 0, "how many random programs TestBackendsAgree runs at each privilege; 0: some hundreds")
	firstOne = flag.Uint64("seed", 0, "the first one's number")
)

func newGuest(t testing.TB, cpl int) *Guest {
	t.Helper()
	kvmtest.Require(t)
	g, err := New(Options{CPL: cpl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Close(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func randomBytes(seed uint64, n int) []byte {
	rng := rand.New(rand.NewPCG(seed, 11))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// TestBackendsAgree runs random programs in the interpreter and compiled inside
// a guest, and wants the same result, stack and maps. The interpreter and the
// compiled code on this CPU are compared by probe/bpf's own test; what may
// differ here is the processor, above all one that is emulated at CPL0.
func TestBackendsAgree(t *testing.T) {
	for _, cpl := range []int{3, 0} {
		t.Run(fmt.Sprint("CPL", cpl), func(t *testing.T) {
			n, budget := 400, int64(3000)
			if cpl == 0 {
				n, budget = 150, 200 // a microsecond per instruction, where it is emulated
			}
			if testing.Short() {
				n /= 4
			}
			if *programs > 0 {
				n = *programs
			}
			w := bpftest.Twin{Runner: newGuest(t, cpl), Budget: budget}
			for i := range uint64(n) {
				seed := *firstOne + i
				if err := w.Compare(bpftest.Program(randomBytes(seed, 400), false), bpf.Kind(seed%3), 2); err != nil {
					t.Fatalf("program %d: %v", seed, err)
				}
				if err := w.Compare(bpftest.Program(randomBytes(seed, 60+int(seed%200)), true), bpf.Kprobe, 2); err != nil {
					t.Fatalf("small program %d: %v", seed, err)
				}
			}
			t.Logf("2 times %d programs: %d small, %d refused, %d host only, %d runs, faults %v", n, w.Small, w.Refused, w.HostOnly, w.Runs, w.Faults)
			if w.Runs < 2*n || w.Small < n/4 {
				t.Errorf("%d runs, %d small programs: the generator tests too little", w.Runs, w.Small)
			}
		})
	}
}
