package kvm

import (
	"errors"
	"fmt"
	"os"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"golang.org/x/sys/unix"
)

// MemoryFlags are the flags of a memory slot (KVM_MEM_*).
type MemoryFlags uint32

// The flags of a memory slot.
const (
	// MemLogDirty has KVM record which pages the guest wrote.
	MemLogDirty MemoryFlags = 1 << 0
	// MemReadOnly turns guest writes into MMIO exits (CapReadOnlyMemory).
	MemReadOnly MemoryFlags = 1 << 1
)

// AllocMemory returns size bytes of zeroed, page aligned memory for a guest,
// outside the Go heap. The host provides its pages only as they are accessed.
// Free it with FreeMemory, after the VM it was mapped into is closed.
func AllocMemory(size int) ([]byte, error) {
	if size <= 0 {
		return nil, fmt.Errorf("allocate guest memory: %d bytes: %w", size, unix.EINVAL)
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("allocate guest memory: %d bytes: %w", size, err)
	}
	return mem, nil
}

// FreeMemory returns memory of AllocMemory to the host. It takes exactly the
// slice that AllocMemory returned; nil is allowed and does nothing.
func FreeMemory(mem []byte) error {
	if mem == nil {
		return nil
	}
	if err := unix.Munmap(mem); err != nil {
		return fmt.Errorf("free guest memory: %w", err)
	}
	return nil
}

// ZeroMemory zeroes mem, memory of AllocMemory, and returns its pages to the
// host. A Base of it becomes invalid. No vCPU may run during the call.
func ZeroMemory(mem []byte) error {
	if err := mapOver(mem, -1, 0); err != nil {
		return fmt.Errorf("zero guest memory: %d bytes: %w", len(mem), err)
	}
	return nil
}

// MapMemory makes mem the guest's physical memory at gpa, as slot number slot
// (KVM_SET_USER_MEMORY_REGION, section 4.35). gpa, the address of mem and its
// length must be multiples of the page size, and slots must not overlap. An
// existing slot can be moved, or change flags other than MemReadOnly, but not
// its length: unmap it and map it again, with no vCPU in Run in between. The VM
// holds on to mem until the slot is removed or the VM is closed.
func (vm *VM) MapMemory(slot int, gpa uint64, mem []byte, flags MemoryFlags) error {
	page := uint64(os.Getpagesize())
	fail := func(format string, args ...any) error {
		return fmt.Errorf("map memory slot %d at gpa %#x: "+format, append([]any{slot, gpa}, args...)...)
	}
	switch addr := addressOf(mem); {
	case !vm.fd.open():
		return fail("vm %w", ErrClosed)
	case slot < 0 || slot > 0xffff:
		// Bits 16 to 31 of the number select an address space.
		return fail("slot number outside 0..65535: %w", unix.EINVAL)
	case len(mem) == 0:
		return fail("no memory given (UnmapMemory removes a slot): %w", unix.EINVAL)
	case gpa%page != 0 || addr%page != 0 || uint64(len(mem))%page != 0:
		return fail("host address %#x or length %#x or gpa is not page aligned: %w", addr, len(mem), unix.EINVAL)
	}
	if err := vm.setRegion(slot, region{gpa, mem, flags}); err != nil {
		return fail("%#x bytes: %w", len(mem), err)
	}
	return nil
}

// SetReadOnly makes a slot read-only (see MemReadOnly) or writable again. It
// does nothing if the slot is so already. The kernel does not change that flag
// of an existing slot, so the slot is removed and added again: no vCPU of the VM
// may be in Run during the call. The error for an unmapped slot is ENOENT. After
// any other error, the guest has no memory there, unless the slot could be
// mapped as it was before.
func (vm *VM) SetReadOnly(slot int, on bool) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	fail := func(err error) error {
		return fmt.Errorf("memory slot %d: set read-only %v: %w", slot, on, err)
	}
	was, ok := vm.slots[slot]
	if !ok {
		return fail(unix.ENOENT)
	}
	is := was
	is.flags &^= MemReadOnly
	if on {
		is.flags |= MemReadOnly
	}
	if is.flags == was.flags {
		return nil
	}
	if err := vm.changeRegion(slot, region{}); err != nil {
		return fail(err)
	}
	if err := vm.changeRegion(slot, is); err != nil {
		return fail(errors.Join(err, vm.changeRegion(slot, was)))
	}
	return nil
}

// UnmapMemory removes a slot from the guest's physical memory.
func (vm *VM) UnmapMemory(slot int) error {
	if err := vm.setRegion(slot, region{}); err != nil {
		return fmt.Errorf("unmap memory slot %d: %w", slot, err)
	}
	return nil
}

// Forget has KVM read the guest's page tables again. Where KVM shadows them, it
// has not seen the host's writes to them. gpa is an address without memory; a
// page is mapped there for a moment. KVM drops everything that it has derived
// from page tables when any slot is removed (kvm_arch_flush_shadow_memslot,
// Linux, arch/x86/kvm/mmu/mmu.c).
func (vm *VM) Forget(gpa uint64) error {
	page, err := AllocMemory(os.Getpagesize())
	if err != nil {
		return err
	}
	err = vm.MapMemory(forgetSlot, gpa, page, 0)
	if err == nil {
		err = vm.UnmapMemory(forgetSlot)
	}
	return errors.Join(err, FreeMemory(page))
}

// forgetSlot is a slot that is not used otherwise: the kernel has 509 at least
// (KVM_USER_MEM_SLOTS).
const forgetSlot = 500

// region is the contents of a memory slot. A slot without memory does not exist.
type region struct {
	gpa   uint64
	mem   []byte
	flags MemoryFlags
}

// setRegion is changeRegion for callers that do not hold vm.mu.
func (vm *VM) setRegion(slot int, r region) error {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	return vm.changeRegion(slot, r)
}

// changeRegion issues the ioctl and records the change. Precondition: vm.mu
// held.
func (vm *VM) changeRegion(slot int, r region) error {
	u := gokvm.UserspaceMemoryRegion{
		Slot:          uint32(slot),
		Flags:         uint32(r.flags),
		GuestPhysAddr: r.gpa,
		MemorySize:    uint64(len(r.mem)),
	}
	if len(r.mem) != 0 {
		u.UserspaceAddr = addressOf(r.mem)
	}
	if _, err := ioctlPtr(vm.fd.num(), ioSetUserMemoryRegion, &u); err != nil {
		return err
	}
	if len(r.mem) == 0 {
		delete(vm.slots, slot)
	} else {
		vm.slots[slot] = r
	}
	return nil
}
