package kvm

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// VM is one virtual machine. Its methods may be called from any thread, but
// not at the same time as Close.
//
// The kernel keeps the machine until its last descriptor is closed. Close the
// vCPUs first, then the VM, and free guest memory last.
type VM struct {
	fd       descriptor
	mmapSize int

	irqchip atomic.Bool // CreateIRQChip was called

	mu    sync.Mutex
	slots map[int]region // guest memory by slot number
}

// Check returns the result of KVM_CHECK_EXTENSION for c and this VM, like
// System.Check.
func (vm *VM) Check(c Capability) int { return checkExtension(&vm.fd, c) }

// EnableCap switches on a capability that needs it (KVM_ENABLE_CAP on the VM;
// KVM API document, section 7). Most must be enabled before the first vCPU.
func (vm *VM) EnableCap(c Capability, args ...uint64) error {
	e := enableCap{cap: uint32(c)}
	if copy(e.args[:], args) != len(args) {
		return fmt.Errorf("enable %v: %d arguments, at most %d", c, len(args), len(e.args))
	}
	if _, err := ioctlPtr(vm.fd.num(), ioEnableCap, &e); err != nil {
		return fmt.Errorf("enable %v: %w", c, err)
	}
	return nil
}

// SetTSSAddr gives KVM three pages of guest physical address space below 4 GiB,
// outside every memory slot. Intel hosts need them for a guest in real mode (KVM
// API document, section 4.37).
func (vm *VM) SetTSSAddr(gpa uint32) error {
	if _, err := ioctl(vm.fd.num(), ioSetTSSAddr, uintptr(gpa)); err != nil {
		return fmt.Errorf("set tss address %#x: %w", gpa, err)
	}
	return nil
}

// SetIdentityMapAddr moves KVM's one-page identity map to gpa, below 4 GiB and
// outside every memory slot, before the first vCPU (section 4.41). gokvm passes
// the address of 4 bytes here where the kernel reads 8.
func (vm *VM) SetIdentityMapAddr(gpa uint64) error {
	if _, err := ioctlPtr(vm.fd.num(), ioSetIdentityMapAddr, &gpa); err != nil {
		return fmt.Errorf("set identity map address %#x: %w", gpa, err)
	}
	return nil
}

// Close closes the VM's descriptor. A second call does nothing and returns
// nil. It does not free guest memory.
func (vm *VM) Close() error {
	err := vm.fd.close()
	vm.mu.Lock()
	clear(vm.slots)
	vm.mu.Unlock()
	if err != nil {
		return fmt.Errorf("close vm: %w", err)
	}
	return nil
}
