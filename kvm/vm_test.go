package kvm

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/internal/testing/kvmtest"
)

// newVM returns an empty VM.
func newVM(t *testing.T) *VM {
	t.Helper()
	kvmtest.Require(t)
	s, err := Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	vm, err := s.CreateVM()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Close() })
	return vm
}

// newMemory returns guest memory for the length of the test.
func newMemory(t *testing.T, size int) []byte {
	t.Helper()
	mem, err := AllocMemory(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := FreeMemory(mem); err != nil {
			t.Error(err)
		}
	})
	return mem
}

func TestVMClose(t *testing.T) {
	vm := newVM(t)
	before := kvmFiles()
	mem := newMemory(t, 4096)
	for range 2 {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
		if n := kvmFiles(); n != before-1 {
			t.Errorf("%d kvm descriptors after Close, want %d", n, before-1)
		}
	}
	if _, err := vm.CreateVCPU(0); !errors.Is(err, ErrClosed) {
		t.Errorf("vcpu of a closed vm: %v, want %v", err, ErrClosed)
	}
	if err := vm.MapMemory(0, 0, mem, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("memory of a closed vm: %v, want %v", err, ErrClosed)
	}
	if err := vm.UnmapMemory(0); !errors.Is(err, unix.EBADF) {
		t.Errorf("unmap in a closed vm: %v, want EBADF", err)
	}
	if vm.Check(CapUserMemory) != 0 {
		t.Error("a closed vm has a capability")
	}
}

func TestEnableCap(t *testing.T) {
	vm := newVM(t)
	if err := vm.EnableCap(CapExitOnEmulationFailure, 1); err != nil {
		t.Error(err)
	}
	if err := vm.EnableCap(CapExitOnEmulationFailure, 2); !errors.Is(err, unix.EINVAL) {
		t.Errorf("bad argument: %v, want EINVAL", err)
	}
	if err := vm.EnableCap(1 << 20); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "enable KVM_CAP_1048576") {
		t.Errorf("unknown capability: %v, want EINVAL with its number", err)
	}
	if err := vm.EnableCap(CapExitOnEmulationFailure, 1, 2, 3, 4, 5); err == nil {
		t.Error("five arguments accepted")
	}
}

func TestFixedAddresses(t *testing.T) {
	vm := newVM(t)
	if err := vm.SetTSSAddr(0xfffbd000); err != nil {
		t.Error(err)
	}
	if err := vm.SetIdentityMapAddr(0xfffbc000); err != nil {
		t.Error(err)
	}
	// Only before the first vCPU.
	v, err := vm.CreateVCPU(0)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := vm.SetIdentityMapAddr(0xfeffc000); !errors.Is(err, unix.EINVAL) {
		t.Errorf("identity map with a vcpu: %v, want EINVAL", err)
	}
}

// TestTouchedMemory touches pages at random: what is reported has all of them, in whole
// runs, and of the rest at most what huge pages bring along.
func TestTouchedMemory(t *testing.T) {
	page := os.Getpagesize()
	const pages = 20_000 // more than are asked for at a time
	mem, err := AllocMemory(pages * page)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := FreeMemory(mem); err != nil {
			t.Error(err)
		}
	}()
	if err := unix.Madvise(mem, unix.MADV_NOHUGEPAGE); err != nil {
		t.Logf("huge pages: %v", err)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	want := map[int]bool{0: true, 8191: true, 8192: true, pages - 1: true}
	for range 300 {
		want[rnd.IntN(pages)] = true
	}
	for i := range want {
		mem[i*page+rnd.IntN(page)] = 1
	}
	got := map[int]bool{}
	TouchedMemory(mem, func(b []byte) {
		at := int(addressOf(b) - addressOf(mem))
		if at%page != 0 || len(b) == 0 || len(b)%page != 0 || got[at/page-1] {
			t.Errorf("%d bytes at %#x", len(b), at)
		}
		for i := range len(b) / page {
			got[at/page+i] = true
		}
	})
	if !maps.Equal(got, want) {
		t.Errorf("%d pages, want %d", len(got), len(want))
	}
}

func TestAllocMemory(t *testing.T) {
	for _, size := range []int{0, -1, -1 << 62} {
		if _, err := AllocMemory(size); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%d bytes: %v, want EINVAL", size, err)
		}
	}
	if _, err := AllocMemory(1 << 60); !errors.Is(err, unix.ENOMEM) || !strings.Contains(err.Error(), fmt.Sprint(1<<60)) {
		t.Errorf("an exbibyte: %v, want ENOMEM with the size", err)
	}
	mem, err := AllocMemory(3*os.Getpagesize() + 1)
	if err != nil {
		t.Fatal(err)
	}
	if len(mem) != 3*os.Getpagesize()+1 || mem[len(mem)-1] != 0 || addressOf(mem)%uint64(os.Getpagesize()) != 0 {
		t.Errorf("%d bytes at %#x", len(mem), addressOf(mem))
	}
	if err := FreeMemory(mem[1:]); err == nil {
		t.Error("freed a part of what was allocated")
	}
	if err := FreeMemory(mem); err != nil {
		t.Error(err)
	}
	if err := FreeMemory(mem); err == nil {
		t.Error("freed twice")
	}
	if err := FreeMemory(nil); err != nil {
		t.Errorf("free nothing: %v", err)
	}
}

func TestMapMemoryErrors(t *testing.T) {
	vm := newVM(t)
	mem := newMemory(t, 4*4096)
	if err := vm.MapMemory(0, 0x10000, mem, 0); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		slot  int
		gpa   uint64
		mem   []byte
		flags MemoryFlags
		want  error
	}{
		{"negative slot", -1, 0, mem, 0, unix.EINVAL},
		{"slot of another address space", 1 << 16, 0, mem, 0, unix.EINVAL},
		{"slot beyond what the host has", vm.Check(CapNrMemslots), 0, mem, 0, unix.EINVAL},
		{"no memory", 1, 0, nil, 0, unix.EINVAL},
		{"gpa not aligned", 1, 0x800, mem, 0, unix.EINVAL},
		{"address not aligned", 1, 0, mem[1 : 4096+1], 0, unix.EINVAL},
		{"length not aligned", 1, 0, mem[:4095], 0, unix.EINVAL},
		{"unknown flag", 1, 0, mem, 1 << 31, unix.EINVAL},
		{"first page overlaps", 1, 0x13000, mem, 0, unix.EEXIST},
		{"last page overlaps", 1, 0xd000, mem, 0, unix.EEXIST},
		{"beyond the end of addresses", 1, 1<<64 - 4096, mem, 0, unix.EINVAL},
		{"other length", 0, 0x10000, mem[:4096], 0, unix.EINVAL},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := vm.MapMemory(tt.slot, tt.gpa, tt.mem, tt.flags)
			if !errors.Is(err, tt.want) || !strings.HasPrefix(err.Error(), fmt.Sprintf("map memory slot %d at gpa %#x: ", tt.slot, tt.gpa)) {
				t.Errorf("got %v, want %v with slot and address", err, tt.want)
			}
		})
	}
	if len(vm.slots) != 1 {
		t.Errorf("%d slots recorded, want 1", len(vm.slots))
	}
	// Adjacent is fine, and what was unmapped can be mapped again.
	if err := vm.MapMemory(1, 0x14000, mem, 0); err != nil {
		t.Error(err)
	}
	if err := vm.UnmapMemory(0); err != nil {
		t.Error(err)
	}
	if err := vm.MapMemory(2, 0x13000, mem[:4096], 0); err != nil {
		t.Error(err)
	}
	if err := vm.UnmapMemory(0); err == nil {
		t.Error("unmapped a slot twice")
	}
	if len(vm.slots) != 2 {
		t.Errorf("%d slots recorded, want 2", len(vm.slots))
	}
}
