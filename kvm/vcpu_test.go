package kvm

import (
	"errors"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
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
	var r Regs
	if err := v.GetRegs(&r); !errors.Is(err, unix.EBADF) {
		t.Errorf("get regs: %v, want EBADF", err)
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
