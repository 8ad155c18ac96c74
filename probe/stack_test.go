package probe_test

import (
	"encoding/binary"
	"reflect"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/probe"
)

// TestStackThroughInterrupts: after the calls of a kernel comes the interrupted code,
// the kernel itself or the user, whose frames follow by frame pointers.
func TestStackThroughInterrupts(t *testing.T) {
	f, k := newPatchingFake(t, nil)
	at := func(name string, off int) guest.GVA { return symbol(t, f, name) + guest.GVA(off) }
	const stack, user = 0x7000_1000, 0x7000_1800
	handler, interrupted := at("traced", 14), at("loop", 9)
	const userCode, userCaller = 0x401000, 0x402000
	k.Frames = map[guest.GVA]guest.FrameRule{
		at("plain", 0): {CFA: 8, Return: -8},
		handler - 1:    {Trap: true, Full: true, Return: 128, RBP: 32},
		interrupted:    {Base: guest.FrameR13, CFA: 8, Trap: true},
	}
	put := func(addr guest.GVA, words ...uint64) {
		t.Helper()
		for i, w := range words {
			if err := f.Write(addr+guest.GVA(8*i), binary.LittleEndian.AppendUint64(nil, w)); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(stack, uint64(handler))
	regs := guest.GVA(stack + 8)
	put(regs+16, stack+0x200-8)                                    // R13
	put(regs+32, user+0x40)                                        // RBP
	put(regs+128, uint64(interrupted), 0x10, 2, stack+0x400, 0x18) // RIP, CS, RFLAGS, RSP, SS
	put(stack+0x200, userCode, 0x33, 2, user, 0x2b)                // the same, of user code
	put(user+0x40, user+0x80, userCaller, 0, 0, 0, 0, 0, 0, 0, 0)  // its frame: RBP, return address
	want := []guest.GVA{at("plain", 0), handler, interrupted, userCode, userCaller}
	for _, c := range []struct{ room, kernel, user int }{{0, 0, 0}, {1, 1, 0}, {3, 3, 0}, {4, 3, 1}, {16, 3, 2}} {
		pcs := make([]guest.GVA, c.room)
		var kernel, users, n int
		p := &probe.Kprobe{Symbol: "plain", Pre: func(ctx *probe.Context) int {
			old := *ctx.Regs
			ctx.Regs.RSP, ctx.Regs.RIP = stack, uint64(want[0])
			kernel, users = ctx.Stacks(pcs)
			n = ctx.Stack(pcs)
			if allocs := testing.AllocsPerRun(10, func() { ctx.Stacks(pcs) }); allocs != 0 {
				t.Errorf("%v allocations", allocs)
			}
			*ctx.Regs = old
			return 0
		}}
		if err := f.Engine().Register(p); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Call(0, want[0], 1); err != nil {
			t.Fatal(err)
		}
		if err := f.Engine().Unregister(p); err != nil {
			t.Fatal(err)
		}
		if kernel != c.kernel || users != c.user || n != kernel+users || !reflect.DeepEqual(pcs[:n], want[:n]) {
			t.Errorf("room for %d: %d and %d, %v, want %d and %d of %v", c.room, kernel, users, pcs[:n], c.kernel, c.user, want)
		}
	}
}
