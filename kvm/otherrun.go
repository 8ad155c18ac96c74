package kvm

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// OtherRun is the shared memory (struct kvm_run) of a vCPU that another process
// created. KVM stores the vCPU's registers there if it is asked to. Only one
// goroutine may use it at a time.
type OtherRun struct {
	mapping []byte
	page    *runPage
	before  uint64 // kvm_valid_regs as its owner has it
}

// MapOtherRun maps the shared memory of the vCPU whose descriptor is fd. The
// descriptor may be closed afterwards; it needs no ioctl, which KVM permits to
// its creator alone. It asks KVM to store the general and system registers
// each time that KVM_RUN returns (kvm_valid_regs; Linux 4.17 and later). Close
// it.
func MapOtherRun(fd int) (*OtherRun, error) {
	b, err := unix.Mmap(fd, 0, sizeofRunPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of a vCPU's shared memory: %w", sizeofRunPage, err)
	}
	o := &OtherRun{mapping: b, page: pageOf(b)}
	o.before = o.page.validRegs
	o.ask()
	return o, nil
}

// ask has KVM store the registers, and reports whether it has not done so already.
func (o *OtherRun) ask() bool {
	const both = syncRegsBit | syncSregsBit
	if o.page.validRegs&both == both {
		return false
	}
	// Bit 1 of RFLAGS is always set (SDM Vol. 1, 3.4.3): 0 means that KVM has
	// stored nothing yet.
	o.page.sync.regs.RFLAGS = 0
	o.page.validRegs |= both
	return true
}

// Registers returns the registers as they were when KVM_RUN returned last, or
// false if it has not returned since they were asked for. Another process that
// looks at the same vCPU may have withdrawn the request; then it is repeated.
func (o *OtherRun) Registers() (Regs, Sregs, bool) {
	if o.ask() {
		return Regs{}, Sregs{}, false
	}
	r, s := o.page.sync.regs, o.page.sync.sregs
	return r, s, r.RFLAGS != 0
}

// Close restores the owner's request for registers, and unmaps the memory.
func (o *OtherRun) Close() error {
	if o.page == nil {
		return nil
	}
	o.page.validRegs = o.before
	o.page = nil
	return unix.Munmap(o.mapping)
}
