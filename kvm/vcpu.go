package kvm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// VCPU is one virtual processor. One OS thread owns it: the thread that called
// Bind, locked with runtime.LockOSThread. All methods belong to that thread,
// except where they say "any thread". Before Bind, the thread that created the
// vCPU may prepare it.
type VCPU struct {
	id      int
	fd      descriptor
	page    *runPage // nil after Close
	shared  bool     // KVM_CAP_SYNC_REGS is used
	irqchip bool     // the VM has interrupt controllers in the kernel
	dirty   uint64   // register classes for the next Run, in sync* bits
	queued  bool     // an event was passed to KVM since the last Run
	given   bool     // an interrupt was, which the guest may not have got
	cut     bool     // the last Run was interrupted, and nothing was changed since

	debug GuestDebug // as last set
	rearm bool       // set it again before the next Run: see flush

	// regs and sregs point into page.sync when shared, to private copies
	// otherwise.
	regs  *Regs
	sregs *Sregs

	xsaveSize int // bytes of the XSAVE buffer
	cpuids    int // number of leaves that SetCPUID set

	threadHad string // the name of the owner before Bind

	tid    atomic.Int32 // of the owner, 0 before Bind
	kicked atomic.Bool  // between Kick and ClearKick

	// mu guards mapping: Kick, on any thread, must not find it unmapped.
	mu      sync.Mutex
	mapping []byte // nil after Close
}

// vcpuOption changes how createVCPU creates a vCPU.
type vcpuOption func(*vcpuOptions)

type vcpuOptions struct{ noSyncRegs bool }

// CreateVCPU creates the vCPU with this number (its APIC ID), from 0 to
// Check(CapMaxVCPUs)-1. Its registers have their values after a processor's
// reset (SDM Vol. 3, 10.1.1), and Regs and Sregs show them.
func (vm *VM) CreateVCPU(id int) (*VCPU, error) { return vm.createVCPU(id) }

// createVCPU is CreateVCPU with the options that tests have.
func (vm *VM) createVCPU(id int, opts ...vcpuOption) (_ *VCPU, err error) {
	var o vcpuOptions
	for _, opt := range opts {
		opt(&o)
	}
	fail := func(err error) (*VCPU, error) { return nil, fmt.Errorf("create vcpu %d: %w", id, err) }
	if !vm.fd.open() {
		return fail(fmt.Errorf("vm %w", ErrClosed))
	}
	if id < 0 {
		return fail(fmt.Errorf("negative number: %w", unix.EINVAL))
	}

	n, err := ioctl(vm.fd.num(), ioCreateVCPU, uintptr(id))
	if err != nil {
		return fail(err)
	}
	v := &VCPU{id: id, irqchip: vm.irqchip.Load(), xsaveSize: xsaveLegacySize}
	v.fd.setFD(n)
	// On an error, Close undoes the steps that were done, in reverse order.
	defer func() {
		if err != nil {
			err = errors.Join(err, v.Close())
		}
	}()

	v.mapping, err = unix.Mmap(n, 0, vm.mmapSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		v.mapping = nil
		return fail(fmt.Errorf("map %d bytes of shared memory: %w", vm.mmapSize, err))
	}
	v.page = pageOf(v.mapping)

	const both = syncRegsBit | syncSregsBit
	if !o.noSyncRegs && uint64(vm.Check(CapSyncRegs))&both == both {
		v.shared = true
		v.regs, v.sregs = &v.page.sync.regs, &v.page.sync.sregs
		v.page.validRegs = both
	} else {
		v.regs, v.sregs = new(Regs), new(Sregs)
	}
	if size := vm.Check(CapXSave2); size > v.xsaveSize {
		v.xsaveSize = size
	}
	if err := v.fetch(); err != nil {
		return fail(err)
	}
	return v, nil
}

// ID returns the number of the vCPU.
func (v *VCPU) ID() int { return v.id }

// Close unmaps the shared memory and closes the vCPU. No thread may be in Run,
// or use the memory of Regs, Sregs or an Exit. A second call does nothing and
// returns nil; Kick stays harmless.
func (v *VCPU) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	if v.mapping != nil {
		v.page, v.regs, v.sregs = nil, nil, nil
		if err := unix.Munmap(v.mapping); err != nil {
			errs = append(errs, fmt.Errorf("unmap shared memory: %w", err))
		}
		v.mapping = nil
	}
	if err := v.fd.close(); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close vcpu %d: %w", v.id, err)
	}
	return nil
}
