package kvm

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// withoutSyncRegs has registers travel by KVM_GET_REGS and KVM_SET_REGS, as on hosts without KVM_CAP_SYNC_REGS.
func withoutSyncRegs() vcpuOption {
	return func(o *vcpuOptions) { o.noSyncRegs = true }
}

// runBothWays runs f with registers in the shared page and by GET and SET.
func runBothWays(t *testing.T, f func(t *testing.T, opts ...vcpuOption)) {
	t.Run("sync", func(t *testing.T) { f(t) })
	t.Run("getset", func(t *testing.T) { f(t, withoutSyncRegs()) })
}

func TestRunIO(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0xb8, 0x44, 0x33, 0x22, 0x11, // mov $0x11223344,%eax
			0xe6, 0xe9, // out %al,$0xe9
			0x66, 0xe7, 0x10, // out %ax,$0x10
			0x66, 0xba, 0xff, 0xff, // mov $0xffff,%dx
			0xef,       // out %eax,(%dx)
			0xe4, 0x60, // in $0x60,%al
			0xed,       // in (%dx),%eax
			0xe6, 0x61, // out %al,$0x61
			0xf4, // hlt
		}, opts...)
		for _, tt := range []struct {
			want IOExit
			give []byte // to an in
		}{
			{IOExit{Port: 0xe9, Size: 1, Count: 1, Data: []byte{0x44}}, nil},
			{IOExit{Port: 0x10, Size: 2, Count: 1, Data: []byte{0x44, 0x33}}, nil},
			{IOExit{Port: 0xffff, Size: 4, Count: 1, Data: []byte{0x44, 0x33, 0x22, 0x11}}, nil},
			{IOExit{Port: 0x60, Size: 1, Count: 1, In: true}, []byte{0x99}},
			{IOExit{Port: 0xffff, Size: 4, Count: 1, In: true}, []byte{0x12, 0x34, 0x56, 0x78}},
			{IOExit{Port: 0x61, Size: 1, Count: 1, Data: []byte{0x12}}, nil},
		} {
			e := b.want(ReasonIO)
			got := e.IO
			if got.In {
				if len(got.Data) != len(tt.give) {
					t.Fatalf("room for %d bytes, want %d", len(got.Data), len(tt.give))
				}
				copy(got.Data, tt.give)
				got.Data = nil
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Fatalf("io exit (-want +got):\n%s", d)
			}
		}
		b.want(ReasonHLT)
		if got, want := b.v.Regs().RAX, uint64(0x78563412); got != want {
			t.Errorf("rax = %#x, want %#x", got, want)
		}
	})
}

func TestRunStringIO(t *testing.T) {
	const buf = 0x30000
	b := newBox(t, []byte{
		0xfc,                   // cld
		0x66, 0xba, 0x34, 0x12, // mov $0x1234,%dx
		0xbf, 0x00, 0x00, 0x03, 0x00, // mov $0x30000,%edi
		0xb9, 0x05, 0x00, 0x00, 0x00, // mov $5,%ecx
		0xf3, 0x6c, // rep insb
		0xbe, 0x00, 0x00, 0x03, 0x00, // mov $0x30000,%esi
		0xb9, 0x05, 0x00, 0x00, 0x00, // mov $5,%ecx
		0xf3, 0x6e, // rep outsb
		0xf4, // hlt
	})
	// How many items an exit holds is KVM's choice.
	in, out := []byte("hello"), []byte(nil)
	for {
		e := b.run()
		if e.Reason == ReasonHLT {
			break
		}
		if e.Reason != ReasonIO || e.IO.Port != 0x1234 || e.IO.Size != 1 || int(e.IO.Count) != len(e.IO.Data) {
			t.Fatalf("exit %v", e)
		}
		if e.IO.In {
			in = in[copy(e.IO.Data, in):]
		} else {
			out = append(out, e.IO.Data...)
		}
	}
	if got := string(b.mem[buf : buf+5]); got != "hello" || string(out) != "hello" || len(in) != 0 {
		t.Errorf("read into memory %q, wrote %q, %d bytes not read; want all of hello", got, out, len(in))
	}
}

func TestRunMMIO(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0x48, 0x8b, 0x04, 0x25, 0x10, 0x00, 0x20, 0x00, // mov 0x200010,%rax
			0x89, 0x04, 0x25, 0x18, 0x00, 0x20, 0x00, // mov %eax,0x200018
			0x88, 0x24, 0x25, 0xff, 0xff, 0x3f, 0x00, // mov %ah,0x3fffff
			0xf4, // hlt
		}, opts...)
		e := b.want(ReasonMMIO)
		if got, want := e.MMIO, (MMIOExit{GPA: 0x200010, Len: 8}); got.GPA != want.GPA || got.Len != want.Len || got.Write {
			t.Fatalf("got %+v, want %+v", got, want)
		}
		b.v.SetMMIO([8]byte{1, 2, 3, 4, 5, 6, 7, 8})
		e = b.want(ReasonMMIO)
		if want := (MMIOExit{GPA: 0x200018, Len: 4, Write: true, Data: [8]byte{1, 2, 3, 4}}); e.MMIO.GPA != want.GPA ||
			e.MMIO.Len != want.Len || !e.MMIO.Write || !bytes.Equal(e.MMIO.Data[:4], want.Data[:4]) {
			t.Fatalf("got %+v, want %+v", e.MMIO, want)
		}
		e = b.want(ReasonMMIO)
		if e.MMIO.GPA != 0x3fffff || e.MMIO.Len != 1 || !e.MMIO.Write || e.MMIO.Data[0] != 2 {
			t.Fatalf("got %+v, want a write of one byte 2 to 0x3fffff", e.MMIO)
		}
		b.want(ReasonHLT)
		if got, want := b.v.Regs().RAX, uint64(0x0807060504030201); got != want {
			t.Errorf("rax = %#x, want %#x", got, want)
		}
	})
}

func TestRunShutdown(t *testing.T) {
	b := newBox(t, []byte{0x0f, 0x0b}) // ud2
	s := *b.v.Sregs()
	s.IDT.Limit = 0 // no handler, none for that, none for that
	if err := b.v.SetSregs(&s); err != nil {
		t.Fatal(err)
	}
	b.want(ReasonShutdown)
}

// A guest at CPL 3 faults on hlt; its kernel's handler, at CPL 0, reports.
func TestRunUserMode(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0x48, 0xff, 0xc0, // inc %rax
			0xf4, // hlt
		}, opts...)
		userMode(b.v.Sregs())
		b.v.SetSregsDirty()
		*b.v.Regs() = Regs{RAX: 41, RIP: boxCode, RSP: boxUser, RFLAGS: 2}
		b.v.SetRegsDirty()
		b.wantOut(uint16(x86.VectorGP))
		r, s := b.v.Regs(), b.v.Sregs()
		if r.RAX != 42 || s.CS.Selector&3 != 0 || s.SS.DPL != 0 {
			t.Errorf("rax %d, cs %#x, ss dpl %d; want 42 and CPL 0", r.RAX, s.CS.Selector, s.SS.DPL)
		}
		// {code, rip, cs, rflags, rsp, ss} on the stack that the TSS names.
		if got, want := r.RSP, uint64(boxTop-6*8); got != want {
			t.Fatalf("rsp %#x, want %#x", got, want)
		}
		if rip, cs := b.get64(int(r.RSP)+8), b.get64(int(r.RSP)+16); rip != boxCode+3 || cs != selUser {
			t.Errorf("interrupted at %#x:%#x, want %#x:%#x", cs, rip, selUser, boxCode+3)
		}
	})
}

// Where RIP stands when an out, or an in, has ended Run: processors with VMX or
// SVM leave it at the instruction, and KVM steps over that at the next Run if
// RIP is still the same (fast port I/O); KVM's emulator is behind an out
// already, and steps over an in when it has its value.
func TestPortIORIP(t *testing.T) {
	const at, outLen, inLen = boxCode, 2, 2
	want := map[kvmtest.Host][2][2]uint64{ // by CPL, then out and in
		kvmtest.HostPVM: {{outLen, 0}, {outLen, 0}},
	}[kvmtest.DetectHost()]
	for i, cpl := range []int{0, 3} {
		t.Run(fmt.Sprintf("cpl%d", cpl), func(t *testing.T) {
			b := newBoxAt(t, cpl, []byte{
				0xe6, 0xe9, // out %al,$0xe9
				0xe4, 0x60, // in $0x60,%al
				0xe6, 0xea, // out %al,$0xea
				0xf4,
			})
			b.wantOut(0xe9)
			if got := b.v.Regs().RIP - at; got != want[i][0] {
				t.Errorf("at the out, rip is %d bytes on, want %d", got, want[i][0])
			}
			// Registers may change at the exit, as long as RIP does not.
			b.v.Regs().RBX = 0x77
			b.v.SetRegsDirty()
			b.want(ReasonIO)
			if got := b.v.Regs().RIP - at - outLen; !b.e.IO.In || got != want[i][1] {
				t.Errorf("%v: at the in, rip is %d bytes on, want %d", &b.e, got, want[i][1])
			}
			b.e.IO.Data[0] = 0x55
			if e := b.wantOut(0xea); e.IO.Data[0] != 0x55 || b.v.Regs().RBX != 0x77 {
				t.Errorf("guest read %#x, rbx %#x; want 0x55 and 0x77", e.IO.Data[0], b.v.Regs().RBX)
			}
			// Moved RIP is where the guest goes on, whatever the exit was.
			b.v.Regs().RIP = at + outLen
			b.v.SetRegsDirty()
			if e := b.want(ReasonIO); !e.IO.In {
				t.Errorf("%v; want the in again", e)
			}
		})
	}
}

// At an out, KVM may or may not have stepped over the instruction already;
// Complete makes it so.
func TestComplete(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{
			0xe6, 0xe9, // out %al,$0xe9
			0xe4, 0x60, // in $0x60,%al
			0xf4, // hlt
		}, opts...)
		complete := func() {
			t.Helper()
			if err := b.v.Complete(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
				t.Fatalf("complete: %v, error %v; want interrupted", b.e.Reason, err)
			}
		}
		b.wantOut(0xe9)
		complete()
		if got, want := b.v.Regs().RIP, uint64(boxCode+2); got != want {
			t.Errorf("rip behind the out = %#x, want %#x", got, want)
		}
		b.want(ReasonIO)
		b.e.IO.Data[0] = 0x77
		complete()
		if r := b.v.Regs(); r.RIP != boxCode+4 || r.RAX != 0x77 {
			t.Errorf("rip %#x, rax %#x behind the in; want %#x and 0x77", r.RIP, r.RAX, boxCode+4)
		}
		complete() // nothing to do is fine as well
		if b.v.Kicked() {
			t.Error("kicked by Complete")
		}
		// A kick in effect survives.
		if err := b.v.Kick(); err != nil {
			t.Fatal(err)
		}
		complete()
		if err := b.v.Run(&b.e); err != nil || b.e.Reason != ReasonInterrupted {
			t.Errorf("run after a kick and Complete: %v, error %v; want interrupted", b.e.Reason, err)
		}
		b.v.ClearKick()
		b.want(ReasonHLT)
	})
}

// Registers that no processor can hold are refused, and the vCPU can go on
// with better ones.
func TestRunInvalidRegisters(t *testing.T) {
	runBothWays(t, func(t *testing.T, opts ...vcpuOption) {
		b := newBox(t, []byte{0xf4}, opts...) // hlt
		b.v.Sregs().CR0 &^= 1                 // paging without protection
		b.v.SetSregsDirty()
		err := b.v.Run(&b.e)
		if !errors.Is(err, unix.EINVAL) {
			t.Fatalf("got error %v, want EINVAL", err)
		}
		longMode(b.v.Sregs())
		b.v.SetSregsDirty()
		b.want(ReasonHLT)
	})
}

// Memory that disappears under the guest is an error with an address in it
// where KVM gives one, not an exit. At CPL 3, since KVM's emulator, where it
// runs CPL 0, takes such memory for MMIO.
func TestRunMemoryGone(t *testing.T) {
	b := newBox(t, []byte{0x8a, 0x04, 0x25, 0x00, 0x10, 0x20, 0x00}) // mov 0x201000,%al
	userMode(b.v.Sregs())
	b.v.SetSregsDirty()
	mem, err := AllocMemory(0x2000)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.vm.MapMemory(1, boxHole, mem, 0); err != nil {
		t.Fatal(err)
	}
	if err := FreeMemory(mem); err != nil {
		t.Fatal(err)
	}
	for {
		err = b.v.Run(&b.e)
		if err != nil || b.e.Reason != ReasonInterrupted {
			break
		}
	}
	var re *RunError
	if !errors.As(err, &re) || !errors.Is(err, unix.EFAULT) {
		t.Fatalf("exit %v, error %v; want a RunError with EFAULT", &b.e, err)
	}
	if re.Fault == nil && !strings.Contains(err.Error(), "no longer mapped") {
		t.Errorf("error %q does not say what happened", err)
	}
	if re.Fault != nil && re.Fault.GPA != boxHole+0x1000 {
		t.Errorf("fault at gpa %#x, want %#x", re.Fault.GPA, boxHole+0x1000)
	}
}

func TestRunErrorText(t *testing.T) {
	for _, tt := range []struct {
		err  RunError
		want string
	}{
		{RunError{VCPU: 1, Err: unix.EFAULT}, "run vcpu 1: bad address (memory of a slot is no longer mapped in this process)"},
		{RunError{VCPU: 2, Err: unix.EFAULT, Fault: &MemoryFaultExit{Flags: 8, GPA: 0x1000, Size: 0x2000}},
			"run vcpu 2: bad address (guest memory at gpa 0x1000, 0x2000 bytes, flags 0x8)"},
		{RunError{Err: unix.EINVAL}, "run vcpu 0: invalid argument (registers that no processor can hold)"},
		{RunError{Err: unix.EAGAIN}, "run vcpu 0: resource temporarily unavailable (the vcpu waits for its start-up signal: set its mp state)"},
		{RunError{Err: unix.EIO}, "run vcpu 0: input/output error"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

// What KVM leaves behind KVM_RUN's EFAULT is read from the page.
func TestRunErrorFault(t *testing.T) {
	v := &VCPU{id: 3, page: &runPage{exitReason: uint32(ReasonMemoryFault),
		exit: bytesAt{32: uint64(8), 40: uint64(0x3000), 48: uint64(0x1000)}.union()}}
	for _, tt := range []struct {
		errno unix.Errno
		want  *MemoryFaultExit
	}{
		{unix.EFAULT, &MemoryFaultExit{8, 0x3000, 0x1000}},
		{unix.EHWPOISON, &MemoryFaultExit{8, 0x3000, 0x1000}},
		{unix.EINVAL, nil},
	} {
		var re *RunError
		if err := v.runError(tt.errno); !errors.As(err, &re) || !errors.Is(err, tt.errno) {
			t.Fatalf("%v: got %v", tt.errno, err)
		}
		if d := cmp.Diff(tt.want, re.Fault); d != "" {
			t.Errorf("%v: fault (-want +got):\n%s", tt.errno, d)
		}
	}
}

func TestRunUnbound(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	b.v.Unbind()
	if err := b.v.Run(&b.e); !errors.Is(err, ErrNotBound) {
		t.Errorf("run after Unbind: got %v, want %v", err, ErrNotBound)
	}
	b.v.Bind()
	b.want(ReasonHLT)
}
