package probe

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest"
)

// TestDebugRegisters holds the codec against the layout of DR7 in SDM Vol. 3,
// figure 18-1: Gn is bit 2n+1, R/Wn bits 16+4n and up, LENn bits 18+4n and up.
func TestDebugRegisters(t *testing.T) {
	const base = 1<<9 | 1<<10 // GE, and the bit that reads as 1
	for _, q := range []struct {
		i      int
		addr   guest.GVA
		n      int
		access Access
		dr7    uint64
		ok     bool
	}{
		{0, 0x1001, 1, AccessExec, base | 1<<1, true},
		{0, 0x1001, 1, AccessWrite, base | 1<<1 | 0b0001<<16, true},
		{0, 0x1002, 2, AccessWrite, base | 1<<1 | 0b0101<<16, true},
		{0, 0x1004, 4, AccessWrite, base | 1<<1 | 0b1101<<16, true},
		{0, 0x1008, 8, AccessWrite, base | 1<<1 | 0b1001<<16, true},
		{1, 0x1001, 1, AccessReadWrite, base | 1<<3 | 0b0011<<20, true},
		{2, 0x1002, 2, AccessReadWrite, base | 1<<5 | 0b0111<<24, true},
		{3, 0x1004, 4, AccessReadWrite, base | 1<<7 | 0b1111<<28, true},
		{3, 0xffff_ffff_ffff_fff8, 8, AccessReadWrite, base | 1<<7 | 0b1011<<28, true},
		{3, 0, 1, AccessExec, base | 1<<7, true},

		{-1, 0x1000, 1, AccessWrite, 0, false},
		{4, 0x1000, 1, AccessWrite, 0, false},
		{0, 0x1000, 0, AccessWrite, 0, false},
		{0, 0x1000, 3, AccessWrite, 0, false},
		{0, 0x1000, 16, AccessWrite, 0, false},
		{0, 0x1001, 2, AccessWrite, 0, false},
		{0, 0x1002, 4, AccessWrite, 0, false},
		{0, 0x1004, 8, AccessWrite, 0, false},
		{0, 0x1000, 2, AccessExec, 0, false},
		{0, 0x1000, 4, AccessRead, 0, false},
		{0, 0x1000, 1, 0, 0, false},
		{0, 0x8000_0000_0000, 1, AccessWrite, 0, false},
	} {
		var d DebugRegisters
		if ok := d.Set(q.i, q.addr, q.n, q.access); ok != q.ok || d.DR7 != q.dr7 || d.Enabled() != q.ok {
			t.Errorf("DR%d = %v:%d %v: %v, DR7 %#x, enabled %v; want %v, %#x", q.i, q.addr, q.n, q.access, ok, d.DR7, d.Enabled(), q.ok, q.dr7)
		}
		if q.ok && d.Addr[q.i] != q.addr {
			t.Errorf("DR%d = %v, want %v", q.i, d.Addr[q.i], q.addr)
		}
	}
	// Another use of a register leaves nothing of the one before, and the others
	// alone.
	var d DebugRegisters
	d.Set(0, 8, 8, AccessReadWrite)
	d.Set(1, 8, 4, AccessWrite)
	d.Set(0, 3, 1, AccessExec)
	if want := uint64(base | 1<<1 | 1<<3 | 0b1101<<20); d.DR7 != want || d.Addr != [4]guest.GVA{3, 8} {
		t.Errorf("DR7 %#x, addresses %v; want %#x", d.DR7, d.Addr, want)
	}
}
