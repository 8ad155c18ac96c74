package kvm

import (
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// emulated reports whether KVM emulates kernel code, by what becomes of an int3 there.
func emulated(t *testing.T) bool {
	t.Helper()
	b := newBoxAt(t, 0, []byte{x86.Int3, 0xf4})
	if err := b.v.SetGuestDebug(GuestDebug{Control: DebugEnable | DebugUseSWBP}); err != nil {
		t.Fatal(err)
	}
	var e Exit
	if err := b.v.Run(&e); err != nil {
		t.Fatal(err)
	}
	return e.Reason == ReasonInternalError
}

// TestExceptionFlags: the frame of an exception has NT as it was, and the handler has not. A host that emulates kernel
// code runs user code without NT.
func TestExceptionFlags(t *testing.T) {
	const nt = 1 << 14
	drops := emulated(t)
	for _, cpl := range []int{0, 3} {
		b := newBoxAt(t, cpl, []byte{0xe6, 0xe9, 0x0f, 0x0b}) // out %al,$0xe9; ud2
		b.wantOut(0xe9)
		b.v.Regs().RIP = boxCode + 2
		b.v.Regs().RFLAGS |= nt
		b.v.SetRegsDirty()
		b.wantOut(uint16(x86.VectorUD))
		flags, want := b.get64(int(b.v.Regs().RSP)+16), cpl == 0 || !drops
		if flags&nt != 0 != want || b.v.Regs().RFLAGS&nt != 0 {
			t.Errorf("CPL %d: flags %#x in the frame, %#x in the handler; want NT in the frame: %v", cpl, flags, b.v.Regs().RFLAGS, want)
		}
	}
}

// TestBreakpointOnNoStack: an int3 of user code raises #BP whatever RSP is. A host that emulates kernel code raises #UD
// where RSP is not canonical.
func TestBreakpointOnNoStack(t *testing.T) {
	b := newBoxAt(t, 3, []byte{0xe6, 0xe9, x86.Int3}) // out %al,$0xe9; int3
	b.wantOut(0xe9)
	b.v.Regs().RIP = boxCode + 2
	b.v.Regs().RSP = 1 << 63
	b.v.SetRegsDirty()
	want := uint16(x86.VectorBP)
	if emulated(t) {
		want = uint16(x86.VectorUD)
	}
	b.wantOut(want)
}
