package kvm

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Board is the state of the devices that CreateIRQChip and CreatePIT have put
// into the kernel, except the local APICs, and of the clock that KVM shows to
// guests. The contents of the structures are private to KVM.
type Board struct {
	Chips [3][512]byte         // the 8259s and the I/O APIC: the union of struct kvm_irqchip
	PIT   [sizeofPITState]byte // struct kvm_pit_state2
	Clock uint64               // nanoseconds
}

// irqChip is struct kvm_irqchip.
type irqChip struct {
	id, _ uint32
	state [512]byte
}

// clockData is struct kvm_clock_data.
type clockData struct {
	clock    uint64
	flags, _ uint32
	_        [4]uint64
}

// GetBoard reads the state of a VM's board (KVM_GET_IRQCHIP, KVM_GET_PIT2 and KVM_GET_CLOCK, sections 4.26, 4.72 and 4.29).
func (vm *VM) GetBoard(b *Board) error {
	for i := range b.Chips {
		chip := irqChip{id: uint32(i)}
		if _, err := ioctlPtr(vm.fd.num(), ioGetIRQChip, &chip); err != nil {
			return fmt.Errorf("get interrupt controller %d: %w", i, err)
		}
		b.Chips[i] = chip.state
	}
	if _, err := ioctlPtr(vm.fd.num(), ioGetPIT2, &b.PIT); err != nil {
		return fmt.Errorf("get interval timer: %w", err)
	}
	var c clockData
	if _, err := ioctlPtr(vm.fd.num(), ioGetClock, &c); err != nil {
		return fmt.Errorf("get clock: %w", err)
	}
	b.Clock = c.clock
	return nil
}

// SetBoard restores the state that GetBoard has read. Set the levels of the
// interrupt lines first: a rise that the controllers see afterwards is an
// interrupt. The clock continues from its saved value (KVM_SET_IRQCHIP,
// KVM_SET_PIT2 and KVM_SET_CLOCK, sections 4.27, 4.73 and 4.30).
func (vm *VM) SetBoard(b *Board) error {
	for i := range b.Chips {
		if _, err := ioctlPtr(vm.fd.num(), ioSetIRQChip, &irqChip{id: uint32(i), state: b.Chips[i]}); err != nil {
			return fmt.Errorf("set interrupt controller %d: %w", i, err)
		}
	}
	pit := b.PIT
	if _, err := ioctlPtr(vm.fd.num(), ioSetPIT2, &pit); err != nil {
		return fmt.Errorf("set interval timer: %w", err)
	}
	if _, err := ioctlPtr(vm.fd.num(), ioSetClock, &clockData{clock: b.Clock}); err != nil {
		return fmt.Errorf("set clock: %w", err)
	}
	return nil
}

// TellPaused tells a guest with KVM's clock that the vCPU did not run for a
// while, so that its watchdogs do not fire (KVM_KVMCLOCK_CTRL, section 4.78).
func (v *VCPU) TellPaused() error {
	if _, err := ioctl(v.fd.num(), ioKVMClockCtrl, 0); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: it does not have it
		return fmt.Errorf("tell of a pause: %w", err)
	}
	return nil
}
