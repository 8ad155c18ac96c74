package kvm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

func TestInjectException(t *testing.T) {
	for _, tt := range []struct {
		vec    uint8
		hasErr bool
		code   uint32
		cr2    uint64
	}{
		{vec: 0},
		{vec: x86.VectorDB},
		{vec: x86.VectorUD},
		{vec: x86.VectorDF, hasErr: true},
		{vec: x86.VectorGP, hasErr: true, code: 0x18},
		{vec: x86.VectorPF, hasErr: true, code: 6, cr2: 0xffff800000001234},
		{vec: 19},
	} {
		for _, cpl := range []int{0, 3} {
			t.Run(fmt.Sprintf("%d/cpl%d", tt.vec, cpl), func(t *testing.T) {
				runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
					b := newBoxAt(t, cpl, []byte{0xe6, 0xe9, 0xf4, 0xf4}, opts...) // out %al,$0xe9; hlt
					b.wantOut(0xe9)
					// Changed registers do not undo the exception.
					b.v.Regs().RIP = boxCode + 3
					b.v.SetRegsDirty()
					if err := b.v.InjectException(tt.vec, tt.hasErr, tt.code, tt.cr2); err != nil {
						t.Fatal(err)
					}
					if err := b.v.InjectException(tt.vec, false, 0, 0); !errors.Is(err, ErrEventPending) {
						t.Errorf("second exception: %v, want %v", err, ErrEventPending)
					}
					b.wantOut(uint16(tt.vec))
					sp := int(b.v.Regs().RSP)
					if tt.hasErr {
						if got := b.get64(sp); got != uint64(tt.code) {
							t.Errorf("error code %#x, want %#x", got, tt.code)
						}
						sp += 8
					}
					if got, want := uint64(sp), uint64(boxTop-5*8); got != want {
						t.Errorf("frame at %#x, want %#x", got, want)
					}
					if got, want := b.get64(sp), uint64(boxCode+3); got != want {
						t.Errorf("interrupted at %#x, want %#x", got, want)
					}
					if got := b.get64(sp + 8); int(got&3) != cpl {
						t.Errorf("interrupted in cs %#x, want CPL %d", got, cpl)
					}
					if tt.vec == x86.VectorPF && b.v.Sregs().CR2 != tt.cr2 {
						t.Errorf("cr2 %#x, want %#x", b.v.Sregs().CR2, tt.cr2)
					}
					// It is delivered once.
					if ev, err := b.v.Events(); err != nil || ev.E.Inject != 0 {
						t.Errorf("events after delivery: %+v, error %v", ev, err)
					}
				})
			})
		}
	}
}

func TestInjectExceptionRefused(t *testing.T) {
	b := newBox(t, waitInSti)
	for _, vec := range []uint8{2, 32, 255} {
		if err := b.v.InjectException(vec, false, 0, 0); err == nil {
			t.Errorf("vector %d is not an exception, and was accepted", vec)
		}
	}
	// An interrupt on its way in, and an exception: one after the other.
	b.v.RequestInterruptWindow(true)
	b.want(ReasonInterruptWindow)
	b.v.RequestInterruptWindow(false)
	if err := b.v.Interrupt(0x20); err != nil {
		t.Fatal(err)
	}
	if err := b.v.InjectException(x86.VectorUD, false, 0, 0); !errors.Is(err, ErrEventPending) {
		t.Errorf("exception behind an interrupt: %v, want %v", err, ErrEventPending)
	}
	b.wantOut(0x20)
	if err := b.v.InjectException(x86.VectorUD, false, 0, 0); err != nil {
		t.Fatal(err)
	}
	if b.v.InterruptReady() {
		t.Error("ready for an interrupt with an exception on its way in")
	}
	b.wantOut(uint16(x86.VectorUD))
}

func TestSetEvents(t *testing.T) {
	b := newBox(t, []byte{0xf4, 0xf4})
	b.want(ReasonHLT)
	e, err := b.v.Events()
	if err != nil {
		t.Fatal(err)
	}
	e.N.Masked = 1
	e.N.Pending = 1
	e.Flags |= EventNMIPending
	if err := b.v.SetEvents(&e); err != nil {
		t.Fatal(err)
	}
	// Pending, but masked: the guest goes on to its next hlt.
	b.want(ReasonHLT)
	if e, err = b.v.Events(); err != nil || e.N.Masked != 1 || e.N.Pending != 1 {
		t.Errorf("events %+v, error %v; want an nmi masked and pending", e, err)
	}
}
