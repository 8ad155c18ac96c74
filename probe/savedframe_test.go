package probe_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/probe"
)

// TestSavedFrameWide: what becomes of the frame of an interrupt of the engine's code in a snapshot does not depend on the number of
// levels of the guest's page tables. Kernels with 5 have their stacks at addresses of 57 bits.
func TestSavedFrameWide(t *testing.T) {
	s := newStaged(t, false)
	stage := func() *probe.Stage {
		x := newReturnStage(0x31, 0xc0) // xor %eax,%eax
		block, _, err := s.f.AllocShared(64, false)
		if err != nil {
			t.Fatal(err)
		}
		x.Block, x.Reads, x.Counts = block, 1<<(x86.PtSP/8), func(int) (uint64, uint64, uint64) { return 0, 0, 0 }
		return x
	}
	hot := &probe.Kprobe{Symbol: "hot", Pre: func(*probe.Context) int { return 0 }, Stage: stage()}
	body := s.registerOn("co_body", 4, new(int))
	body.Stage, body.ReturnStage = stage(), stage()
	if err := s.e.Register(hot, body); err != nil {
		t.Fatal(err)
	}
	if err := s.e.Optimize(); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*probe.Kprobe{hot, &body.Kprobe} {
		if i, _ := s.e.Info(p); !i.InGuest {
			t.Fatalf("%s: %+v", p.Symbol, i)
		}
	}
	const at, flags, ss = 0x7000_0400, 0x246, 0x18
	// saved returns RIP, and how far RSP is moved, of a context of kernel code at rip in a snapshot.
	saved := func(rip guest.GVA, rsp uint64) (to guest.GVA, up uint64) {
		t.Helper()
		var b []byte
		for _, w := range []uint64{uint64(rip), uint64(guest.SelKernelCode), flags, rsp, ss} {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		was := slices.Clone(b)
		if err := s.e.RunUnpatched(false, func(c *probe.Clean) error { return c.Memory(at, b, func(guest.GPA) []byte { return nil }) }); err != nil {
			return 0, 0
		}
		if !slices.Equal(b[8:16], was[8:16]) || !slices.Equal(b[32:], was[32:]) {
			t.Errorf("%v: the frame's selectors were changed: % x, before % x", rip, b, was)
		}
		return guest.GVA(binary.LittleEndian.Uint64(b)), binary.LittleEndian.Uint64(b[24:]) - rsp
	}
	moved := 0
	for rip := guest.GVA(0xffff_ffff_8200_0000); rip < 0xffff_ffff_8201_0000; rip++ {
		if !s.e.InCode(rip) {
			continue
		}
		to, up := saved(rip, 0xffff_c900_0040_1a98)
		wideTo, wideUp := saved(rip, 0xff5a_5b10_c07a_7a98)
		if to != wideTo || up != wideUp {
			t.Errorf("%v is %v and RSP%+d, with RSP of 57 bits %v and RSP%+d", rip, to, int64(up), wideTo, int64(wideUp))
		}
		if up != 0 {
			moved++
		}
	}
	if moved < 10 {
		t.Errorf("only %d places move RSP", moved)
	}
}
