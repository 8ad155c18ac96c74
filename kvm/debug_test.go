package kvm

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/guestprobe/guestprobe/guest/x86"
)

// Steps follow the instructions and stop when they are told to. The guest has
// been at its code before: see arrivals for what Bochs does at the first touch.
func TestSingleStep(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0xe6, 0xe9, // out %al,$0xe9
			0x90,             // nop
			0x48, 0xff, 0xc0, // inc %rax
			0x48, 0xff, 0xc0, // inc %rax
			0xf4, // hlt
		}, opts...)
		b.wantOut(0xe9)
		b.v.Regs().RIP = boxCode + 2
		b.v.SetRegsDirty()
		if err := b.v.SetGuestDebug(GuestDebug{Control: DebugEnable | DebugSingleStep}); err != nil {
			t.Fatal(err)
		}
		for i, next := range []uint64{3, 6, 9} {
			e := b.want(ReasonDebug)
			if e.Debug.Exception != uint32(x86.VectorDB) || e.Debug.DR6&(1<<14) == 0 {
				t.Errorf("step %d: %v; want exception 1 with the step bit in dr6", i, e)
			}
			if got := b.v.Regs().RIP; got != boxCode+next || e.Debug.PC != got {
				t.Errorf("step %d: rip %#x, pc %#x; want %#x", i, got, e.Debug.PC, boxCode+next)
			}
			// Registers that change in between, in either way, don't end it.
			b.v.Regs().RAX += 10
			if i == 1 {
				if err := b.v.SetRegs(b.v.Regs()); err != nil {
					t.Fatal(err)
				}
			}
			b.v.SetRegsDirty()
		}
		if err := b.v.SetGuestDebug(GuestDebug{}); err != nil {
			t.Fatal(err)
		}
		b.want(ReasonHLT)
		if got := b.v.Regs().RAX; got != 32 {
			t.Errorf("rax = %d, want 32", got)
		}
	})
}

// An int3 at CPL 0 arrives in one of three ways, depending on the host; each
// is decoded right, and the guest can go on.
func TestBreakpoint(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0x90,       // nop
			0xcc,       // int3
			0xe6, 0xe9, // out %al,$0xe9
		}, opts...)
		if err := b.v.SetGuestDebug(GuestDebug{Control: DebugEnable | DebugUseSWBP}); err != nil {
			t.Fatal(err)
		}
		e := b.run()
		t.Logf("delivered as %v", e)
		switch e.Reason {
		case ReasonDebug:
			if e.Debug.Exception != uint32(x86.VectorBP) || e.Debug.PC != boxCode+1 {
				t.Fatalf("%v; want exception 3 at %#x", e, boxCode+1)
			}
		case ReasonInternalError:
			want := []byte{0xcc, 0xe6, 0xe9}
			if got := e.Internal.EmulationBytes(); e.Internal.Suberror != SuberrorEmulation || !bytes.HasPrefix(got, want) {
				t.Fatalf("%v; want a failed emulation at % x", e, want)
			}
		default:
			if e.Reason != ReasonIO || e.IO.Port != uint16(x86.VectorBP) || b.get64(int(b.v.Regs().RSP)) != boxCode+2 {
				t.Fatalf("%v; want the guest's own vector 3 with rip behind the int3", e)
			}
			return
		}
		r := b.v.Regs()
		if r.RIP != boxCode+1 {
			t.Errorf("rip %#x, want %#x", r.RIP, boxCode+1)
		}
		r.RIP++
		b.v.SetRegsDirty()
		b.wantOut(0xe9)
	})
}

// An int3 that is not the host's goes to the guest, which finds the address
// behind it in its frame, as it does without a debugger. After a debug exit RIP
// must stay at the int3 for that; after a failed emulation it must be moved.
func TestBreakpointToGuest(t *testing.T) {
	for _, cpl := range []int{0, 3} {
		t.Run(fmt.Sprintf("cpl%d", cpl), func(t *testing.T) {
			runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
				b := newBoxAt(t, cpl, []byte{
					0x90, // nop
					0xcc, // int3
					0xf4, // hlt
				}, opts...)
				if err := b.v.SetGuestDebug(GuestDebug{Control: DebugEnable | DebugUseSWBP}); err != nil {
					t.Fatal(err)
				}
				e := b.run()
				if e.Reason == ReasonInternalError {
					b.v.Regs().RIP++
				}
				if e.Reason != ReasonIO {
					// A handler of the host may have changed registers.
					b.v.Regs().RBX = 0x1234
					b.v.SetRegsDirty()
					if err := b.v.InjectException(x86.VectorBP, false, 0, 0); err != nil {
						t.Fatal(err)
					}
					// KVM does not report this one; it is known here all the same.
					if err := b.v.InjectException(x86.VectorUD, false, 0, 0); !errors.Is(err, ErrEventPending) {
						t.Errorf("second exception: %v, want %v", err, ErrEventPending)
					}
					// It waits through a call that does not run the guest.
					if err := b.v.Complete(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
						t.Fatalf("complete: %v, error %v; want interrupted", b.e.Reason, err)
					}
					b.wantOut(uint16(x86.VectorBP))
					if got := b.v.Regs().RBX; got != 0x1234 {
						t.Errorf("rbx %#x, want 0x1234", got)
					}
				}
				if got, want := b.get64(int(b.v.Regs().RSP)), uint64(boxCode+2); got != want {
					t.Errorf("interrupted at %#x, want %#x", got, want)
				}
			})
		})
	}
}

func TestDebugRegs(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	var d DebugRegs
	if err := b.v.GetDebugRegs(&d); err != nil {
		t.Fatal(err)
	}
	// SDM Vol. 3, table 10-1.
	if d.DR6 != 0xffff0ff0 || d.DR7 != 0x400 {
		t.Errorf("dr6 %#x, dr7 %#x after reset; want 0xffff0ff0, 0x400", d.DR6, d.DR7)
	}
	d.DB = [4]uint64{0x1000, 0x2000, 0x3000, 0xffffffff81000000}
	d.DR7 = 0x455
	if err := b.v.SetDebugRegs(&d); err != nil {
		t.Fatal(err)
	}
	var got DebugRegs
	if err := b.v.GetDebugRegs(&got); err != nil {
		t.Fatal(err)
	}
	if got != d {
		t.Errorf("got %+v, want %+v", got, d)
	}
}
