package machine

import (
	"errors"
	"fmt"
	"weak"

	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// snapshots takes snapshots of the guest and restores them. take and stateMSRs are called with the world stopped, checkImage by any goroutine, the others with life held and no vCPU in the guest.
type snapshots struct {
	m *Machine

	tried map[weak.Pointer[snapshot.Snapshot]]struct{} // snapshots whose state KVM accepts: see try
	msrs  []uint32                                     // that hold a vCPU's state; nil: not read yet
}

// try checks that s fits (CheckFit), and that KVM accepts the state of all vCPUs
// and controllers, which it tests on a VM without memory: a file may contain
// anything, and must not end the guest. The error wraps ErrOtherGuest then.
// Snapshots that were found valid, or were saved by this machine, are not tried
// again. Precondition: life held.
func (x *snapshots) try(s *snapshot.Snapshot) error {
	if err := x.m.CheckFit(s); err != nil {
		return err
	}
	if _, ok := x.tried[weak.Make(s)]; ok {
		return nil
	}
	if err := x.tryState(s); err != nil {
		return fmt.Errorf("%w: KVM does not take its state: %w", ErrOtherGuest, err)
	}
	x.noteSound(s)
	return nil
}

// noteSound records that KVM accepts the state of s. Precondition: life held.
func (x *snapshots) noteSound(s *snapshot.Snapshot) {
	for p := range x.tried {
		if p.Value() == nil {
			delete(x.tried, p)
		}
	}
	if x.tried == nil {
		x.tried = map[weak.Pointer[snapshot.Snapshot]]struct{}{}
	}
	x.tried[weak.Make(s)] = struct{}{}
}

// tryState creates a VM without memory and sets it to the state of s.
func (x *snapshots) tryState(s *snapshot.Snapshot) (err error) {
	p := x.m.payload()
	vm, err := x.m.sys.CreateVM()
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
		if err := x.tryCPU(vm, i, &s.CPUs[i]); err != nil {
			return fmt.Errorf("vcpu %d: %w", i, err)
		}
	}
	return nil
}

// tryCPU creates a vCPU and sets it to a state.
func (x *snapshots) tryCPU(vm *kvm.VM, id int, c *snapshot.CPU) (err error) {
	k, err := vm.CreateVCPU(id)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, k.Close()) }()
	p := x.m.payload()
	if err := p.setFeatures(x.m, k, id); err != nil {
		return err
	}
	return restoreCPU(k, c, p.hasAPIC(), func(error) {})
}
