//go:build linux && amd64

package bpf

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// bothEnds loads a program of an object for the interpreter and for this processor, with
// the same maps, and returns functions that run it.
func bothEnds(t *testing.T, file, section string, k *Kernel) (c *Collection, host, guest func(x86.Regs) (uint64, error)) {
	t.Helper()
	n := newNative(t)
	o, err := LoadObject(readObject(t, file), Selection{Section: section, Kernel: k})
	if err != nil {
		t.Fatal(err)
	}
	if c, err = o.Load(2, n, 0); err != nil {
		t.Fatal(err)
	}
	p := c.Programs[0].Program
	if w := p.Warnings(); len(w) != 0 {
		t.Error(&w[0])
	}
	v := NewVM(p, 0)
	code, err := n.load(p, Layout{NoGuest: true, Fixups: true}, BlockConfig{}, RegsSize)
	if err != nil {
		t.Fatal(err)
	}
	return c, func(r x86.Regs) (uint64, error) { return v.Run(regsContext(r), NoEnv{}) }, func(r x86.Regs) (uint64, error) { return code.run(regsContext(r)) }
}

// TestIterNum counts as the kernel's iterator of numbers does, in both back ends.
func TestIterNum(t *testing.T) {
	c, host, guest := bothEnds(t, "iters.o", "kprobe/count", nil)
	r := rand.New(rand.NewPCG(1, 2))
	ends := []int32{0, 1, -1, 5, 1000, 8 << 20, 8<<20 + 1, math.MinInt32, math.MaxInt32, math.MaxInt32 - 5, math.MinInt32 + 3}
	for i := range 400 {
		start := ends[r.IntN(len(ends))]
		end := ends[r.IntN(len(ends))]
		if i%2 == 0 {
			end = start + int32(r.IntN(12)) - 3
		}
		result, turns, sum := int64(0), int64(0), int64(0)
		switch size := int64(end) - int64(start); {
		case size < 0:
			result = -errInval
		case size > maxLoops:
			result = -errTooBig
		default:
			turns = min(size, 1000)
			for n := range turns {
				sum += int64(start) + n
			}
		}
		left := uint64(0)
		if result == 0 && int64(end)-int64(start) > turns+1 {
			left = 1 // the loop ended early, and took one number that it did not count
		}
		want := []uint64{uint64(uint32(result)), uint64(turns), uint64(sum), left, 0, 77}
		for back, run := range []func(x86.Regs) (uint64, error){host, guest} {
			if r0, err := run(x86.Regs{RDI: uint64(uint32(start)), RSI: uint64(uint32(end)), RDX: 77}); r0 != 0 || err != nil {
				t.Fatal(start, end, r0, err)
			}
			for at, w := range want {
				got := lookup(t, c.Maps["results"], u32(uint32(at)))[0]
				if at == 0 {
					got = uint64(uint32(got))
				}
				if got != w {
					t.Fatalf("back end %d: from %d to %d: result %d is %d, want %d", back, start, end, at, int64(got), int64(w))
				}
			}
		}
	}
}

// TestMayGoto leaves a loop without an end when most of the budget is used up, and never before.
func TestMayGoto(t *testing.T) {
	c, host, guest := bothEnds(t, "iters.o", "kprobe/forever", nil)
	var counts []uint64
	for _, most := range []uint64{0, 7, 1000, 1 << 40} {
		for _, run := range []func(x86.Regs) (uint64, error){host, guest} {
			if r0, err := run(x86.Regs{RDI: most}); r0 != 0 || err != nil {
				t.Fatal(most, r0, err)
			}
			counts = append(counts, lookup(t, c.Maps["results"], u32(6))[0])
		}
		a, b := counts[len(counts)-2], counts[len(counts)-1]
		if a != b || most <= 1000 && a != most || most > 1000 && (a < DefaultBudget/16 || a > DefaultBudget) {
			t.Errorf("most %d: %d turns on the host, %d in the guest", most, a, b)
		}
	}
}

// TestKfuncs tells programs which functions of the kernel they can call.
func TestKfuncs(t *testing.T) {
	_, host, guest := bothEnds(t, "iters.o", "kprobe/exists", testKernel(t))
	for _, run := range []func(x86.Regs) (uint64, error){host, guest} {
		if r0, err := run(x86.Regs{}); r0 != 1 || err != nil {
			t.Errorf("%d, %v, want 1", r0, err)
		}
	}
	if _, err := loadIn(t, "iters.o", Selection{Section: "kprobe/exists"}); err == nil || !strings.Contains(err.Error(), `"bpf_nothing_known" is extern and defined nowhere (there is no kernel`) {
		t.Error(err)
	}
	// A cast makes loads read the guest's memory.
	o, err := LoadObject(readObject(t, "iters.o"), Selection{Section: "kprobe/cast", Kernel: testKernel(t)})
	if err != nil {
		t.Fatal(err)
	}
	c, err := o.Load(1, Heap{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	env := &fakeEnv{task: 0xffff_8000_0000_0000}
	env.put(env.task+20, "\x2a\x00\x00\x00")
	if r0, err := NewVM(c.Programs[0].Program, 0).Run(regsContext(x86.Regs{}), env); r0 != 42 || err != nil {
		t.Errorf("%d, %v, want 42", r0, err)
	}
}
