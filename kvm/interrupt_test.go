package kvm

import (
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// waitInSti spins with interrupts on.
var waitInSti = []byte{
	0xfb,       // sti
	0x90,       // nop
	0xeb, 0xfe, // jmp .
}

func TestInterruptWindow(t *testing.T) {
	for _, cpl := range []string{"cpl0", "cpl3"} {
		t.Run(cpl, func(t *testing.T) {
			runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
				code := waitInSti
				if cpl == "cpl3" {
					code = waitInSti[2:]
				}
				b := newBox(t, code, opts...)
				if cpl == "cpl3" {
					userMode(b.v.Sregs())
					b.v.SetSregsDirty()
					b.v.Regs().RFLAGS |= x86.FlagIF
					b.v.SetRegsDirty()
				}
				if b.v.InterruptReady() {
					t.Error("ready before the first Run")
				}
				if err := b.v.Interrupt(0x20); !errors.Is(err, ErrNotReady) {
					t.Errorf("interrupt before the first Run: %v, want %v", err, ErrNotReady)
				}
				b.v.RequestInterruptWindow(true)
				for range 3 {
					b.want(ReasonInterruptWindow)
					b.v.RequestInterruptWindow(false)
					if !b.v.InterruptReady() || !b.v.InterruptFlag() {
						t.Fatalf("in the window: ready %v, flag %v; want both", b.v.InterruptReady(), b.v.InterruptFlag())
					}
					at := b.v.Regs().RIP
					if err := b.v.Interrupt(0x20); err != nil {
						t.Fatal(err)
					}
					if b.v.InterruptReady() {
						t.Error("ready for a second one")
					}
					if err := b.v.Interrupt(0x21); !errors.Is(err, ErrNotReady) {
						t.Errorf("second interrupt: %v, want %v", err, ErrNotReady)
					}
					b.wantOut(0x20)
					if b.v.InterruptFlag() || b.v.InterruptReady() {
						t.Error("interrupts are on in the handler of an interrupt gate")
					}
					if got := b.get64(int(b.v.Regs().RSP)); got != at {
						t.Errorf("interrupted at %#x, want %#x", got, at)
					}
					b.v.RequestInterruptWindow(true)
				}
			})
		})
	}
}

// With interrupts off there is no window, in the kernel or in user code, however
// often one asks. The guest leaves by itself each time round: Bochs does not
// take the interrupts of its own machine in a guest that was entered with IF
// clear, so one that only spins would never come back there.
func TestInterruptWindowClosed(t *testing.T) {
	for _, cpl := range []int{0, 3} {
		t.Run(fmt.Sprintf("cpl%d", cpl), func(t *testing.T) {
			runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
				b := newBoxAt(t, cpl, []byte{
					0xe6, 0x42, // out %al,$0x42
					0xeb, 0xfc, // jmp back
				}, opts...)
				b.v.RequestInterruptWindow(true)
				for range 5 {
					b.wantOut(0x42)
					if b.v.InterruptReady() || b.v.InterruptFlag() || b.v.Regs().RFLAGS&x86.FlagIF != 0 {
						t.Fatalf("ready %v, flag %v, rflags %#x with interrupts off", b.v.InterruptReady(), b.v.InterruptFlag(), b.v.Regs().RFLAGS)
					}
					if err := b.v.Interrupt(0x20); !errors.Is(err, ErrNotReady) {
						t.Errorf("got %v, want %v", err, ErrNotReady)
					}
				}
				// And with the flag set by the host the next exit is the
				// window, or, where KVM emulates, as good as one.
				b.v.Regs().RFLAGS |= x86.FlagIF
				b.v.SetRegsDirty()
				if e := b.run(); !b.v.InterruptReady() {
					t.Fatalf("exit %v, and not ready with interrupts on", e)
				}
				b.v.RequestInterruptWindow(false)
				if err := b.v.Interrupt(0x20); err != nil {
					t.Fatal(err)
				}
				b.wantOut(0x20)
			})
		})
	}
}

// TestInterruptTakenBack takes an interrupt back that a Run was to deliver, and ended before.
func TestInterruptTakenBack(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0xfb, 0x90, // sti; nop
			0xe6, 0x42, // out %al,$0x42
			0xeb, 0xfc, // jmp back
		}, opts...)
		back := func(want bool) {
			t.Helper()
			if got, err := b.v.TakeInterruptBack(); got != want || err != nil {
				t.Fatalf("taken back: %v, %v; want %v", got, err, want)
			}
		}
		give := func() {
			t.Helper()
			b.v.RequestInterruptWindow(true)
			for !b.v.InterruptReady() {
				b.run() // to the window, or to the port where KVM emulates
			}
			b.v.RequestInterruptWindow(false)
			if err := b.v.Interrupt(0x20); err != nil {
				t.Fatal(err)
			}
		}
		give()
		if err := b.v.Kick(); err != nil {
			t.Fatal(err)
		}
		if err := b.v.Run(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
			t.Fatalf("exit %v, error %v; want interrupted", &b.e, err)
		}
		b.v.ClearKick()
		back(true)
		back(false)
		b.wantOut(0x42)
		b.wantOut(0x42)
		give()
		back(true) // without a Run behind it
		b.wantOut(0x42)
		give()
		b.wantOut(0x20)
		back(false)
	})
}

// A host that clears IF in the registers is not ready any more, whatever KVM
// said before.
func TestInterruptReadyFollowsRegs(t *testing.T) {
	b := newBox(t, waitInSti)
	b.v.RequestInterruptWindow(true)
	b.want(ReasonInterruptWindow)
	b.v.Regs().RFLAGS &^= x86.FlagIF
	b.v.SetRegsDirty()
	if b.v.InterruptReady() {
		t.Error("ready with IF clear")
	}
	b.v.Regs().RFLAGS |= x86.FlagIF
	if !b.v.InterruptReady() {
		t.Error("not ready with IF set")
	}
}

// An interrupt wakes a guest from hlt.
func TestInterruptHalted(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0xfb,       // sti
			0xf4,       // hlt
			0xe6, 0x99, // out %al,$0x99
		}, opts...)
		b.want(ReasonHLT)
		if !b.v.InterruptReady() {
			b.v.RequestInterruptWindow(true)
			b.want(ReasonInterruptWindow)
			b.v.RequestInterruptWindow(false)
		}
		if err := b.v.Interrupt(0xff); err != nil {
			t.Fatal(err)
		}
		b.wantOut(0xff)
		if got, want := b.get64(int(b.v.Regs().RSP)), uint64(boxCode+2); got != want {
			t.Errorf("interrupted at %#x, want %#x", got, want)
		}
		b.wantOut(0x99)
	})
}

func TestNMI(t *testing.T) {
	b := newBox(t, []byte{0xf4, 0xf4}) // hlt; hlt
	b.want(ReasonHLT)
	if err := b.v.NMI(); err != nil {
		t.Fatal(err)
	}
	b.wantOut(2)
	b.want(ReasonHLT)
}
