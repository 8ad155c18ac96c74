package kvm

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest/x86"
)

func TestVCPUClose(t *testing.T) {
	vm := newVM(t)
	files, maps := kvmFiles(), vcpuMappings()
	v, err := vm.CreateVCPU(3)
	if err != nil {
		t.Fatal(err)
	}
	if v.ID() != 3 {
		t.Errorf("number %d, want 3", v.ID())
	}
	if f, m := kvmFiles(), vcpuMappings(); f != files+1 || m != maps+1 {
		t.Errorf("%d kvm descriptors, %d mappings; want %d, %d", f, m, files+1, maps+1)
	}
	v.Bind()
	for range 2 {
		if err := v.Close(); err != nil {
			t.Error(err)
		}
		if f, m := kvmFiles(), vcpuMappings(); f != files || m != maps {
			t.Errorf("%d kvm descriptors, %d mappings after Close; want %d, %d", f, m, files, maps)
		}
	}
	if v.Regs() != nil || v.Sregs() != nil {
		t.Error("a closed vcpu has registers")
	}
	var e Exit
	if err := v.Run(&e); !errors.Is(err, ErrClosed) {
		t.Errorf("run: %v, want %v", err, ErrClosed)
	}
	if err := v.Complete(&e); !errors.Is(err, ErrClosed) {
		t.Errorf("complete: %v, want %v", err, ErrClosed)
	}
	v.ClearKick() // harmless
}

// After Close, every request is an error that names it, and none of them can
// hit another file that has taken the descriptor's number.
func TestClosedVCPU(t *testing.T) {
	vm := newVM(t)
	v, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		text string
		f    func() error
	}{
		{"get regs", func() error { return v.getRegs(new(Regs)) }},
		{"set regs", func() error { return v.SetRegs(new(Regs)) }},
		{"get sregs", func() error { return v.GetSregs(new(Sregs)) }},
		{"set sregs", func() error { return v.SetSregs(new(Sregs)) }},
		{"get events", func() error { _, err := v.Events(); return err }},
		{"set events", func() error { return v.SetEvents(new(Events)) }},
		{"inject exception 6: get events", func() error { return v.InjectException(x86.VectorUD, false, 0, 0) }},
		{"set guest debug 0x1", func() error { return v.SetGuestDebug(GuestDebug{Control: DebugEnable}) }},
		{"get debug registers", func() error { return v.GetDebugRegs(new(DebugRegs)) }},
		{"set debug registers", func() error { return v.SetDebugRegs(new(DebugRegs)) }},
		{"nmi", v.NMI},
		{"get mp state", func() error { _, err := v.MPState(); return err }},
		{"set mp state 0", func() error { return v.SetMPState(MPRunnable) }},
		{"translate 0x1000", func() error { _, err := v.Translate(0x1000); return err }},
		{"get cpuid", func() error { _, err := v.CPUID(); return err }},
		{"set cpuid", func() error { return v.SetCPUID(nil) }},
		{"get msrs", func() error { return v.GetMSRs(nil) }},
		{"set msrs", func() error { return v.SetMSRs(nil) }},
		{"get xsave", func() error { _, err := v.GetXSave(); return err }},
		{"set xsave", func() error { return v.SetXSave(make([]byte, v.XSaveSize())) }},
		{"get xcrs", func() error { return v.GetXCRs(new(XCRs)) }},
		{"set xcrs", func() error { return v.SetXCRs(new(XCRs)) }},
	} {
		if err := tt.f(); !errors.Is(err, unix.EBADF) || err.Error() != tt.text+": bad file descriptor" {
			t.Errorf("got %v, want %s: bad file descriptor", err, tt.text)
		}
	}
}

func TestCreateVCPUErrors(t *testing.T) {
	vm := newVM(t)
	v, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	files, maps := kvmFiles(), vcpuMappings()
	for _, tt := range []struct {
		name string
		id   int
		want error
	}{
		{"taken", 0, unix.EEXIST},
		{"negative", -1, unix.EINVAL},
		{"too large", 1 << 20, unix.EINVAL},
	} {
		if _, err := vm.CreateVCPU(tt.id); !errors.Is(err, tt.want) || !strings.HasPrefix(err.Error(), "create vcpu ") {
			t.Errorf("%s: got %v, want %v", tt.name, err, tt.want)
		}
	}
	// A constructor that fails half way leaves nothing behind.
	vm.mmapSize = 1 << 48
	if _, err := vm.CreateVCPU(1); err == nil || !strings.Contains(err.Error(), "map 281474976710656 bytes") {
		t.Errorf("mapping cannot work: %v", err)
	}
	if f, m := kvmFiles(), vcpuMappings(); f != files || m != maps {
		t.Errorf("%d kvm descriptors, %d mappings; want %d, %d", f, m, files, maps)
	}
}

func TestMPState(t *testing.T) {
	vm := newVM(t)
	v, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if s, err := v.MPState(); err != nil || s != MPRunnable {
		t.Errorf("state %d, error %v; want runnable", s, err)
	}
	if err := v.SetMPState(MPRunnable); err != nil {
		t.Error(err)
	}
	if err := v.SetMPState(99); !errors.Is(err, unix.EINVAL) {
		t.Errorf("state 99: %v, want EINVAL", err)
	}
}

func TestTranslate(t *testing.T) {
	b := newBox(t, []byte{0xf4})
	tr, err := b.v.Translate(boxCode + 5)
	if err != nil {
		t.Fatal(err)
	}
	// Some hosts never know (docs/hosts.md); none may be wrong.
	if tr.Valid != 0 && tr.PhysicalAddress != boxCode+5 {
		t.Errorf("%#x is at %#x, want the same", boxCode+5, tr.PhysicalAddress)
	}
}
