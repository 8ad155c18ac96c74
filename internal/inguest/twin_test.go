package inguest

import (
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/internal/dev/bpftest"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
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

// TestBackendsAgree runs random programs in the interpreter and compiled inside
// a guest, and wants the same result, stack and maps. The interpreter and the
// compiled code on this CPU are compared by probe/bpf's own test; what may
// differ here is the processor, above all one that is emulated at CPL0. `gpdev
// programs` runs more of them.
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
			w := bpftest.Twin{Runner: newGuest(t, cpl), Budget: budget}
			for i := range uint64(n) {
				if err := w.CompareSeed(i, 2); err != nil {
					t.Fatal(err)
				}
			}
			t.Logf("2 times %d programs: %d small, %d refused, %d host only, %d runs, ended %v", n, w.Small, w.Refused, w.HostOnly, w.Runs, w.Ended)
			if w.Runs < 2*n || w.Small < n/4 {
				t.Errorf("%d runs, %d small programs: the generator tests too little", w.Runs, w.Small)
			}
		})
	}
}
