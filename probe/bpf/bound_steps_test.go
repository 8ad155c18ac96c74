package bpf

import (
	"math/rand/v2"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// TestSteps: no run takes more steps than Steps says, and some programs have a limit
// below the budget.
func TestSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	limited := 0
	for _, name := range []string{"count.o", "latency.o", "record.o", "slow.o", "subprog.o", "stacks.o", "core.o", "callback.o", "dynptr.o", "sizes.o", "iters.o"} {
		sel := Selection{}
		if name == "iters.o" {
			sel.Kernel = testKernel(t)
		}
		o, err := LoadObject(readObject(t, name), sel)
		if err != nil {
			t.Fatal(name, err)
		}
		c, err := o.Load(1, Heap{}, 0)
		if err != nil {
			t.Fatal(name, err)
		}
		t.Cleanup(c.Close)
		for _, lp := range c.Programs {
			steps, v := lp.Steps(), NewVM(lp.Program, 0)
			if steps < int64(lp.Len()) || steps > lp.Budget()+int64(lp.Len()) {
				t.Errorf("%s: %s: %d steps", name, lp.Name(), steps)
			}
			if steps < lp.Budget() {
				limited++
			}
			for range 50 {
				regs := x86.Regs{RDI: r.Uint64() >> r.IntN(64), RSI: r.Uint64() >> r.IntN(64), RDX: r.Uint64() >> r.IntN(64), RCX: r.Uint64()}
				if _, err := v.Run(lp.PutContext(make([]byte, ReturnSize), &fakeEnv{}, &regs, 0, 0, make([]byte, EntrySize)), &fakeEnv{}); err != nil {
					continue
				}
				if used := lp.Budget() - v.left; used > steps-int64(lp.Len()) {
					t.Fatalf("%s: %s: %d steps, and at most %d", name, lp.Name(), used, steps)
				}
			}
		}
	}
	if limited < 5 {
		t.Errorf("only %d programs have a limit below their budget", limited)
	}
}
