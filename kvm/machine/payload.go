package machine

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// payload is what a machine boots: the boot contract. bare is an ELF file on its
// own, linuxGuest a Linux kernel. Its methods are called with life held, or
// before another goroutine knows the machine. The exceptions are view, and
// methods that take a vCPU, which its thread calls.
type payload interface {
	kept

	// view returns the symbols and code of the guest. Any goroutine.
	view() guest.View

	// memoryMap returns the ranges of physical memory for ram bytes of RAM, ascending.
	memoryMap(ram uint64) ([]guest.MemoryRange, error)

	// load boots into memory that is all zeros. If to is not nil, it boots so that
	// to can be restored. keepsMemory reports whether memory needs no preparation
	// for that; then load leaves it as it is. No vCPU runs.
	load(m *Machine, to *snapshot.Snapshot) (*guest.BootState, error)
	keepsMemory(to *snapshot.Snapshot) bool

	// build creates the parts of a VM other than memory, before its first vCPU.
	build(m *Machine, vm *kvm.VM) error

	// setUp sets a new vCPU to the state in which the guest starts.
	setUp(m *Machine, k *kvm.VCPU, id int, b *guest.BootState) error

	// handlePort and handleMMIO serve an access that neither probes nor the
	// engine's memory want. They return false if there is no such device.
	handlePort(v *vcpu) bool
	handleMMIO(v *vcpu) bool

	// runBeside runs while the guest does, in a goroutine of its own, until stop
	// is closed.
	runBeside(m *Machine, stop <-chan struct{})

	// onStop is called each time that the engine has stopped the world, with it
	// stopped. On an error the engine does not do what it stopped the world for.
	onStop(m *Machine) error

	// noExecReason returns why the engine has no executable memory for code of one
	// privilege level at the moment, or "" if it has. Any goroutine.
	noExecReason(user bool) string

	// noFaultReason returns why a fault of a handler that runs in the guest, in code
	// of one privilege level, cannot be handled, or "" if it can.
	noFaultReason(user bool) string

	// close frees the devices of load and build, before the VM is closed and the
	// memory reused. No vCPU runs. It may be repeated.
	close() error

	// forwards reports whether breakpoints at CPL0 reach the host through a stub
	// at vector 3. isStub reports whether an out to a port of the trap ABI, at rip
	// or just before it, belongs to that stub. stubReturns reports whether the
	// stub has an iretq after the out; otherwise the host returns for it.
	// passToGuest has a vCPU that is at a stub continue with the guest's own
	// handler, for an exception that is not the engine's. It fails if there is no
	// such handler.
	forwards() bool
	isStub(rip guest.GVA) bool
	stubReturns() bool
	passToGuest(v *vcpu, vector uint8) error
}
