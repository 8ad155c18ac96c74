package kvm

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/testing/patience"
)

// pcVectors is the vector of line 0 in pcSetup: no port of the interrupt controllers has that number.
const pcVectors = 0x50

// pcSetup programs the first 8259: vectors from pcVectors on, with the lines in mask off, and the
// interrupt acknowledged by itself (8259A data sheet, "automatic end of interrupt").
func pcSetup(mask byte) []byte {
	out := func(port, val byte) []byte { return []byte{0xb0, val, 0xe6, port} } // mov $val,%al; out %al,$port
	var b []byte
	for _, w := range [][2]byte{{0x20, 0x11}, {0x21, pcVectors}, {0x21, 4}, {0x21, 3}, {0x21, mask}} {
		b = append(b, out(w[0], w[1])...)
	}
	return b
}

// newPC is newBox with interrupt controllers and timer in the kernel.
func newPC(t *testing.T, code []byte, opts ...vcpuOption) *box {
	t.Helper()
	b := newBoxWith(t, code, func(vm *VM) {
		if err := errors.Join(vm.CreateIRQChip(), vm.CreatePIT()); err != nil {
			t.Fatal(err)
		}
	}, opts...)
	if err := b.v.WireLAPIC(); err != nil {
		t.Fatal(err)
	}
	return b
}

// waitInHlt goes on halting with interrupts on.
var waitInHlt = []byte{
	0xfb,       // sti
	0xf4,       // hlt
	0xeb, 0xfd, // jmp back to it
}

// A line that rises while the guest halts inside Run is delivered there, by the 8259 and the local
// APIC's LINT0, each time, with registers in the shared page and without.
func TestIRQLine(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		code := append(pcSetup(0), 0xe6, 0x77) // out %al,$0x77
		b := newPC(t, append(code, waitInHlt...), opts...)
		b.wantOut(0x77)
		for _, line := range []uint32{4, 1, 7, 4, 4} {
			if err := errors.Join(b.vm.IRQLine(line, true), b.vm.IRQLine(line, false)); err != nil {
				t.Fatal(err)
			}
			b.wantOut(pcVectors + uint16(line))
			if b.v.InterruptFlag() {
				t.Error("interrupts are on in the handler of an interrupt gate")
			}
		}
		if err := b.v.Interrupt(0x20); !errors.Is(err, unix.ENXIO) && !errors.Is(err, ErrNotReady) {
			t.Errorf("interrupt by the host's own hand: %v, want ENXIO", err)
		}
	})
}

// The timer runs in the kernel.
func TestPIT(t *testing.T) {
	code := append(pcSetup(0xfe),
		0xb0, 0x34, 0xe6, 0x43, // channel 0, both bytes, rate generator
		0xb0, 0x00, 0xe6, 0x40, 0xb0, 0x10, 0xe6, 0x40) // every 4096 periods of 1.19 MHz
	b := newPC(t, append(code, waitInHlt...))
	for range 3 {
		b.wantOut(pcVectors)
	}
}

// Port 0x61 is the kernel's: the guest reads back the gate that it wrote, with no exit.
func TestPITGate(t *testing.T) {
	b := newPC(t, []byte{
		0xb0, 0x01, 0xe6, 0x61, // gate on
		0xe4, 0x61, // in $0x61,%al
		0xe6, 0x42, // out %al,$0x42: the PIT's own
		0xe6, 0x77, // out %al,$0x77
	})
	if e := b.wantOut(0x77); e.IO.Data[0]&3 != 1 {
		t.Errorf("the gate reads as %#x", e.IO.Data[0])
	}
}

// A vCPU that halts with interrupts off stays in Run until it is kicked.
func TestKickHalted(t *testing.T) {
	b := newPC(t, []byte{0xe6, 0x77, 0xfa, 0xf4}) // out; cli; hlt
	b.wantOut(0x77)
	halted := func() bool {
		s, err := b.v.MPState()
		if err != nil {
			t.Fatal(err)
		}
		return s == MPHalted
	}
	var done atomic.Bool
	kicked := make(chan error, 1)
	go func() {
		var err error
		for err == nil && !done.Load() {
			err = b.v.Kick()
			runtime.Gosched()
		}
		kicked <- err
	}()
	for !halted() {
		b.v.ClearKick()
		if err := b.v.Run(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
			t.Fatalf("exit %v, error %v", &b.e, err)
		}
	}
	done.Store(true)
	if err := <-kicked; err != nil {
		t.Errorf("kick: %v", err)
	}
	if got := b.v.Regs().RIP; got != boxCode+4 {
		t.Errorf("rip %#x, want the instruction behind hlt", got)
	}
}

// A second vCPU waits in Run for the first one's INIT and SIPI, and comes back with its
// registers at the start-up vector.
func TestStartUp(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		// x2APIC interrupt command register, MSR 0x830 (SDM Vol. 3, 12.12.9).
		icr := func(low uint16) []byte {
			return []byte{
				0xb9, 0x30, 0x08, 0x00, 0x00, // mov $0x830,%ecx
				0xba, 0x01, 0x00, 0x00, 0x00, // mov $1,%edx: to APIC ID 1
				0xb8, byte(low), byte(low >> 8), 0x00, 0x00, // mov $low,%eax
				0x0f, 0x30, // wrmsr
			}
		}
		code := []byte{
			0xb9, 0x1b, 0x00, 0x00, 0x00, // mov $IA32_APIC_BASE,%ecx
			0x0f, 0x32, // rdmsr
			0x0d, 0x00, 0x0c, 0x00, 0x00, // or $0xc00,%eax: x2APIC mode
			0x0f, 0x30, // wrmsr
		}
		code = append(append(code, icr(0x4500)...), icr(0x4612)...) // INIT; SIPI to page 0x12
		b := newPC(t, append(code, 0xe6, 0x77), opts...)
		leaves, err := b.sys.SupportedCPUID()
		if err != nil {
			t.Fatal(err)
		}
		ap, err := b.vm.createVCPU(1, opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ap.Close() })
		for _, v := range []*VCPU{b.v, ap} {
			if err := v.SetCPUID(leaves); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := ap.MPState(); err != nil || s != MPUninitialized {
			t.Fatalf("the second vcpu is %v, %v; want %v", s, err, MPUninitialized)
		}
		copy(b.mem[0x12000:], []byte{0xb0, 0x99, 0xe6, 0x78}) // mov $0x99,%al; out %al,$0x78
		type end struct {
			e   Exit
			err error
		}
		ended := make(chan end)
		go func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			ap.Bind()
			defer ap.Unbind()
			var r end
			for r.err = ap.Run(&r.e); r.err == nil && r.e.Reason == ReasonInterrupted && !ap.Kicked(); {
				r.err = ap.Run(&r.e)
			}
			ended <- r
		}()
		t.Cleanup(func() { ap.Kick() })
		b.wantOut(0x77)
		var r end
		select {
		case r = <-ended:
		case <-patience.Context(t).Done():
			t.Fatal("the second vcpu does not start")
		}
		if r.err != nil || r.e.Reason != ReasonIO || r.e.IO.Port != 0x78 || r.e.IO.Data[0] != 0x99 {
			t.Errorf("exit %v, error %v", &r.e, r.err)
		}
	})
}

func TestIRQChipErrors(t *testing.T) {
	vm := newVM(t)
	if err := vm.CreatePIT(); !errors.Is(err, unix.ENXIO) {
		t.Errorf("timer without controllers: %v, want ENXIO", err)
	}
	if err := vm.IRQLine(4, true); !errors.Is(err, unix.ENXIO) {
		t.Errorf("line without controllers: %v, want ENXIO", err)
	}
	if err := vm.CreateIRQChip(); err != nil {
		t.Fatal(err)
	}
	if err := vm.CreateIRQChip(); !errors.Is(err, unix.EEXIST) {
		t.Errorf("a second time: %v, want EEXIST", err)
	}
	b := newBox(t, nil)
	if err := b.vm.CreateIRQChip(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("behind the first vcpu: %v, want EINVAL", err)
	}
	if err := b.v.WireLAPIC(); !errors.Is(err, unix.EINVAL) {
		t.Errorf("local apic of a vcpu without: %v, want EINVAL", err)
	}
}

func TestLAPIC(t *testing.T) {
	b := newPC(t, nil)
	var l LAPIC
	if err := b.v.GetLAPIC(&l); err != nil {
		t.Fatal(err)
	}
	for reg, want := range map[int]uint32{0x350: 0x700, 0x360: 0x400} { // ExtINT, NMI; not masked
		if got := binary.LittleEndian.Uint32(l.Regs[reg:]) & 0x10700; got != want {
			t.Errorf("register %#x is %#x, want %#x", reg, got, want)
		}
	}
}

// A slot turns read-only and back with what is in it, between two exits; nobody else's memory goes.
func TestSetReadOnly(t *testing.T) {
	b := newBox(t, []byte{
		0xfe, 0xc0, // inc %al
		0x88, 0x04, 0x25, 0x10, 0x00, 0x20, 0x00, // mov %al,0x200010
		0xe6, 0x77, // out %al,$0x77
		0xeb, 0xf3, // jmp back
	})
	mem := newMemory(t, 4096)
	if err := b.vm.MapMemory(3, boxHole, mem, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.vm.MapMemory(3, boxHole, mem, MemReadOnly); !errors.Is(err, unix.EINVAL) {
		t.Errorf("the kernel changes the flag in place: %v", err)
	}
	want := byte(0)
	for i, on := range []bool{false, true, true, false, true, false} {
		if err := b.vm.SetReadOnly(3, on); err != nil {
			t.Fatal(err)
		}
		if on {
			e := b.want(ReasonMMIO)
			if m := e.MMIO; m.GPA != boxHole+0x10 || m.Len != 1 || !m.Write || m.Data[0] != byte(i+1) {
				t.Errorf("%v; want a write of %d", e, i+1)
			}
		} else {
			want = byte(i + 1)
		}
		b.wantOut(0x77)
		if mem[0x10] != want {
			t.Errorf("read-only %v: the memory holds %d, want %d", on, mem[0x10], want)
		}
	}
	if err := b.vm.SetReadOnly(4, true); !errors.Is(err, unix.ENOENT) {
		t.Errorf("no such slot: %v, want ENOENT", err)
	}
}
