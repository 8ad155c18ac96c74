package kvm

import (
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/x86"
)

const (
	msrFSBase   = 0xc0000100
	msrLSTAR    = 0xc0000082
	msrSysenter = 0x175
	msrNone     = 0x4b564d99 // no processor's
)

// What is set is what the guest sees, in leaves that are the hypervisor's to
// define and in those of the processor that every host lets it define. (The
// feature leaves 1 and 7 are the host's own on kvm_pvm.)
func TestCPUID(t *testing.T) {
	for _, leaf := range []uint32{0x40000100, 0x80000002} {
		b := newBox(t, []byte{
			0x31, 0xc9, // xor %ecx,%ecx
			0x0f, 0xa2, // cpuid
			0xf4, // hlt
		})
		leaves, err := b.sys.SupportedCPUID()
		if err != nil {
			t.Fatal(err)
		}
		if len(leaves) < 10 || leaves[0].Function != 0 || leaves[0].Eax == 0 {
			t.Fatalf("%d leaves, the first %+v", len(leaves), leaves[0])
		}
		leaves = slices.DeleteFunc(leaves, func(e CPUIDEntry) bool { return e.Function == leaf })
		want := CPUIDEntry{Function: leaf, Eax: 0x11223344, Ebx: 0x55667788, Ecx: 0x99aabbcc, Edx: 0xddeeff00}
		leaves = append(leaves, want)
		if err := b.v.SetCPUID(leaves); err != nil {
			t.Fatal(err)
		}
		b.v.Regs().RAX = uint64(leaf)
		b.v.SetRegsDirty()
		b.want(ReasonHLT)
		r := b.v.Regs()
		if got := (CPUIDEntry{Function: leaf, Eax: uint32(r.RAX), Ebx: uint32(r.RBX), Ecx: uint32(r.RCX), Edx: uint32(r.RDX)}); got != want {
			t.Errorf("the guest sees %+x, want %+x", got, want)
		}
		back, err := b.v.CPUID()
		if err != nil {
			t.Fatal(err)
		}
		// KVM may leave out leaves of zeros, which say no more than none, and fills in sizes.
		for _, e := range leaves {
			set := e.Eax|e.Ebx|e.Ecx|e.Edx != 0
			if set && !slices.ContainsFunc(back, func(b CPUIDEntry) bool { return b.Function == e.Function && b.Index == e.Index }) {
				t.Errorf("leaf %#x.%d does not come back", e.Function, e.Index)
			}
		}
		if back[len(back)-1] != want {
			t.Errorf("the last leaf that comes back is %+x, want %+x", back[len(back)-1], want)
		}
	}
}

func TestSetCPUIDErrors(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	if err := b.v.SetCPUID(make([]CPUIDEntry, 257)); !errors.Is(err, unix.E2BIG) {
		t.Errorf("257 leaves: %v, want E2BIG", err)
	}
	if err := b.v.SetCPUID(nil); err != nil {
		t.Errorf("no leaves: %v", err)
	}
}

func TestMSRs(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	want := []MSR{{Index: msrFSBase, Data: 0x7fff12345678}, {Index: msrLSTAR, Data: 0xffffffff81000000}, {Index: msrSysenter, Data: 0x1000}}
	if err := b.v.SetMSRs(want); err != nil {
		t.Fatal(err)
	}
	got := []MSR{{Index: msrFSBase}, {Index: msrLSTAR}, {Index: msrSysenter}}
	if err := b.v.GetMSRs(got); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	var s Sregs
	if err := b.v.GetSregs(&s); err != nil || s.FS.Base != want[0].Data {
		t.Errorf("fs base %#x, error %v; want %#x", s.FS.Base, err, want[0].Data)
	}
	if err := errors.Join(b.v.GetMSRs(nil), b.v.SetMSRs(nil)); err != nil {
		t.Errorf("no msrs: %v", err)
	}
}

// The first MSR that KVM does not have ends the call, and the error says which
// it is; those before it are done.
func TestMSRErrors(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	var me *MSRError
	err := b.v.SetMSRs([]MSR{{Index: msrFSBase, Data: 0x5000}, {Index: msrNone, Data: 7}, {Index: msrLSTAR, Data: 0x6000}})
	if !errors.As(err, &me) || *me != (MSRError{Op: "set", Index: msrNone, Value: 7}) {
		t.Errorf("set: got %v", err)
	}
	if err != nil && err.Error() != "set msr 0x4b564d99 to 0x7: refused by kvm" {
		t.Errorf("set: %q", err)
	}
	got := []MSR{{Index: msrFSBase}, {Index: msrNone}, {Index: msrLSTAR, Data: 9}}
	err = b.v.GetMSRs(got)
	if !errors.As(err, &me) || *me != (MSRError{Op: "get", Index: msrNone}) {
		t.Errorf("get: got %v", err)
	}
	if err != nil && err.Error() != "get msr 0x4b564d99: not known to kvm" {
		t.Errorf("get: %q", err)
	}
	if got[0].Data != 0x5000 || got[2].Data != 9 {
		t.Errorf("got %+v; want the first read and the third left alone", got)
	}
	if err := b.v.GetMSRs(make([]MSR, 257)); !errors.Is(err, unix.E2BIG) {
		t.Errorf("257 msrs: %v, want E2BIG", err)
	}
}

func TestMSRIndexes(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	list, err := b.sys.msrIndexes()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(list, msrLSTAR) || slices.Contains(list, msrNone) || slices.Contains(list, 0) {
		t.Errorf("%d msrs: %#x", len(list), list)
	}
}

// An MSR that nobody has can be answered by user space.
func TestMSRExits(t *testing.T) {
	b := newBoxWith(t, []byte{
		0xb9, 0x99, 0x4d, 0x56, 0x4b, // mov $0x4b564d99,%ecx
		0x0f, 0x32, // rdmsr
		0x0f, 0x30, // wrmsr
		0x0f, 0x32, // rdmsr
	}, func(vm *VM) {
		const unknown = 1 << 1 // KVM_MSR_EXIT_REASON_UNKNOWN
		const inval = 1 << 0   // KVM_MSR_EXIT_REASON_INVAL
		if err := vm.EnableCap(CapX86UserSpaceMSR, unknown|inval); err != nil {
			t.Fatal(err)
		}
	})
	e := b.want(ReasonRDMSR)
	if e.MSR.Index != msrNone {
		t.Errorf("%v", e)
	}
	b.v.SetMSRResult(0x1122334455667788, false)
	e = b.want(ReasonWRMSR)
	if e.MSR.Index != msrNone || e.MSR.Data != 0x1122334455667788 {
		t.Errorf("%v; want the value of the rdmsr", e)
	}
	b.v.SetMSRResult(0, false)
	b.want(ReasonRDMSR)
	b.v.SetMSRResult(0, true)
	b.wantOut(uint16(x86.VectorGP))
}

// The guest's extended state is read and written in the format of xsave (SDM
// Vol. 1, 10.5.1 and 13.4): MXCSR at 24, XMM0 at 160, XSTATE_BV at 512.
func TestXSave(t *testing.T) {
	b := newBox(t, []byte{
		0xf3, 0x0f, 0x7f, 0x04, 0x25, 0x00, 0x00, 0x03, 0x00, // movdqu %xmm0,0x30000
		0xf3, 0x0f, 0x6f, 0x0c, 0x25, 0x10, 0x00, 0x03, 0x00, // movdqu 0x30010,%xmm1
		0xf4, // hlt
	})
	x, err := b.v.GetXSave()
	if err != nil {
		t.Fatal(err)
	}
	if len(x) != b.v.XSaveSize() || len(x) < 4096 {
		t.Fatalf("%d bytes, want %d", len(x), b.v.XSaveSize())
	}
	if got := binary.LittleEndian.Uint32(x[24:]); got != 0x1f80 {
		t.Errorf("mxcsr %#x after reset, want 0x1f80", got)
	}
	const sse = 1 << 1
	x[512] |= sse
	copy(x[160:], "what xmm0 holds.")
	if err := b.v.SetXSave(x); err != nil {
		t.Fatal(err)
	}
	copy(b.mem[0x30010:], "this is for xmm1")
	b.want(ReasonHLT)
	if got := string(b.mem[0x30000:0x30010]); got != "what xmm0 holds." {
		t.Errorf("the guest found %q in xmm0", got)
	}
	if x, err = b.v.GetXSave(); err != nil {
		t.Fatal(err)
	}
	if got := string(x[176:192]); got != "this is for xmm1" || x[512]&sse == 0 {
		t.Errorf("xmm1 is %q, XSTATE_BV %#x", got, x[512])
	}
	if err := b.v.SetXSave(x[1:]); !errors.Is(err, unix.EINVAL) {
		t.Errorf("short buffer: %v, want EINVAL", err)
	}
}

func TestXCRs(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	var x XCRs
	if err := b.v.GetXCRs(&x); err != nil {
		t.Fatal(err)
	}
	// XCR0 is 1 after reset: x87 only (SDM Vol. 1, 13.3).
	if x.NrXRCS != 1 || x.Registers[0].XRC != 0 || x.Registers[0].Value != 1 {
		t.Errorf("%d registers, the first %+v; want XCR0 = 1", x.NrXRCS, x.Registers[0])
	}
	if err := b.v.SetXCRs(&x); err != nil {
		t.Error(err)
	}
	x.Registers[0].Value = 0 // x87 cannot be off
	if err := b.v.SetXCRs(&x); !errors.Is(err, unix.EINVAL) {
		t.Errorf("XCR0 = 0: %v, want EINVAL", err)
	}
}
