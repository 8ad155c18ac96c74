package machine

import (
	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// payload is what a machine boots: the boot contract. bare is an ELF file on its own,
// linuxGuest a Linux kernel. Its methods are called with life held or before anybody knows the machine, but for view, and
// for those of a vCPU, which its thread calls.
type payload interface {
	kept

	// view returns what is known of the guest's code. Any goroutine.
	view() guest.View

	// memoryMap returns the ranges of physical memory for ram bytes of RAM, ascending.
	memoryMap(ram uint64) ([]guest.MemoryRange, error)

	// load boots into memory that is all zeros, or, where to is not nil, so that the guest can be made what to has; keepsMemory reports whether
	// memory needs nothing for that but to become what it was, and then load leaves it as it is. No vCPU runs.
	load(m *Machine, to *snapshot.Snapshot) (*guest.BootState, error)
	keepsMemory(to *snapshot.Snapshot) bool

	// build makes what a VM has beside memory, before its first vCPU.
	build(m *Machine, vm *kvm.VM) error

	// setUp gives a new vCPU the state that the guest starts in.
	setUp(m *Machine, k *kvm.VCPU, id int, b *guest.BootState) error

	// handlePort and handleMMIO serve an access that neither probes nor the engine's memory want;
	// false means that nobody is there.
	handlePort(v *vcpu) bool
	handleMMIO(v *vcpu) bool

	// runBeside runs while the guest may, in a goroutine of its own, until stop is closed.
	runBeside(m *Machine, stop <-chan struct{})

	// onStop is called each time that the engine has stopped the world, with it stopped. An
	// error keeps it from what it wants to do.
	onStop(m *Machine) error

	// noExecReason returns why there is no executable memory of the engine's for code of one
	// privilege level now; "" if there is. Any goroutine.
	noExecReason(user bool) string

	// noFaultReason returns why exceptions do not reach the engine before the guest's handlers; ""
	// if they do.
	noFaultReason() string

	// close frees what load and build have made, before the VM goes and the memory is another's. No
	// vCPU runs. It may be repeated.
	close() error

	// forwards reports whether breakpoints at CPL0 reach the host by a stub at vector 3;
	// isStub whether an out to a port of the trap ABI at rip, or behind it, is that stub, and
	// stubReturns whether iretq stands behind it: otherwise the host does that.
	// passToGuest has the vCPU, which stands at a stub, go on with the guest's own handler of the
	// exception, which is none of the engine's; it fails where there is none.
	forwards() bool
	isStub(rip guest.GVA) bool
	stubReturns() bool
	passToGuest(v *vcpu, vector uint8) error
}
