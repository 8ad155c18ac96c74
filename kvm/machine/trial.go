package machine

import (
	"errors"
	"fmt"
	"weak"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// try is Fits, and whether KVM takes the state of all vCPUs and controllers, which it is asked on a VM without memory:
// a file may have anything, and the guest must not end for it. The error wraps ErrOtherGuest then. A snapshot that was
// found to be sound, or was saved by this machine, is not tried again. Precondition: life held.
func (m *Machine) try(s *snapshot.Snapshot) error {
	if err := m.Fits(s); err != nil {
		return err
	}
	if _, ok := m.tried[weak.Make(s)]; ok {
		return nil
	}
	if err := m.tryState(s); err != nil {
		return fmt.Errorf("%w: KVM does not take its state: %w", ErrOtherGuest, err)
	}
	m.noteSound(s)
	return nil
}

// noteSound remembers that KVM takes the state of s. Precondition: life held.
func (m *Machine) noteSound(s *snapshot.Snapshot) {
	for p := range m.tried {
		if p.Value() == nil {
			delete(m.tried, p)
		}
	}
	if m.tried == nil {
		m.tried = map[weak.Pointer[snapshot.Snapshot]]struct{}{}
	}
	m.tried[weak.Make(s)] = struct{}{}
}

// tryState makes a VM without memory and gives it the state of s.
func (m *Machine) tryState(s *snapshot.Snapshot) (err error) {
	p := m.payload()
	vm, err := m.sys.CreateVM()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vm.Close()) }()
	if err := vm.SetTSSAddr(kvm.TSSAddr); err != nil {
		return err
	}
	if err := p.createControllers(vm); err != nil {
		return err
	}
	if p.hasAPIC() {
		if err := vm.SetBoard(&s.Board); err != nil {
			return err
		}
	}
	for i := range s.CPUs {
		if err := m.tryCPU(vm, i, &s.CPUs[i]); err != nil {
			return fmt.Errorf("vcpu %d: %w", i, err)
		}
	}
	return nil
}

// tryCPU makes a vCPU and gives it a state.
func (m *Machine) tryCPU(vm *kvm.VM, id int, c *snapshot.CPU) (err error) {
	k, err := vm.CreateVCPU(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	p := m.payload()
	if err := p.setFeatures(m, k, id); err != nil {
		return err
	}
	return restoreCPU(k, c, p.hasAPIC(), func(error) {})
}
