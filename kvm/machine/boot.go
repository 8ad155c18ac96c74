package machine

import (
	"errors"
	"fmt"
	"runtime"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
	"github.com/guestprobe/guestprobe/probe"
)

// eferNXE enables the NX bit of page table entries (SDM Vol. 3, 2.2.1).
const eferNXE = 1 << 11

// booted is the data that depends on how the guest was booted.
type booted struct {
	space  guest.AddressSpace // the kernel's page tables
	home   guest.Home
	deep   bool
	pins   *guest.TextPins // of space; nil in a Linux guest, where the kernel's text stays in its memory
	tables guest.Mapper    // the kernel's page tables, to add to
	state  *guest.BootState
}

// load boots the payload into the guest's memory: payload.load. No vCPU runs.
func (m *Machine) load(p payload, to *snapshot.Snapshot) (*guest.BootState, error) {
	b, err := p.load(m, to)
	if err != nil {
		return nil, err
	}
	as := guest.NewAddressSpace(m.mem.Memory, b.Root)
	if b.Deep {
		as = as.Levels5()
	}
	var pins *guest.TextPins
	if _, ok := p.(bare); ok {
		pins = new(guest.TextPins)
		as = as.WithPins(pins)
	}
	m.booted.Store(&booted{space: as, pins: pins, home: b.Home, deep: b.Deep, tables: b.Tables, state: b})
	m.exec.reset(b)
	m.shared.reset(b)
	return b, nil
}

// cpuidHas reports whether a bit of EDX of a CPUID leaf is set.
func cpuidHas(entries []kvm.CPUIDEntry, leaf uint32, bit uint) bool {
	for _, e := range entries {
		if e.Function == leaf {
			return e.Edx>>bit&1 != 0
		}
	}
	return false
}

// build creates the VM and its vCPUs in the state that b describes, and starts
// their threads, which park. Precondition: life is held, or no other goroutine
// knows m; no vCPU has a thread.
func (m *Machine) build(b *guest.BootState) (err error) {
	vm, err := m.sys.CreateVM()
	if err != nil {
		return err
	}
	m.vm = vm
	m.watch.reset()
	m.watching.Store(false)
	m.told.Store(false)
	m.turns.on = false
	defer func() {
		if err != nil {
			err = errors.Join(err, m.demolish())
		}
	}()
	if m.mem.free4G() {
		if err := vm.SetTSSAddr(kvm.TSSAddr); err != nil {
			return err
		}
	}
	if err := m.mem.mapInto(vm, m.host.KVM.Readonly); err != nil {
		return err
	}
	p := m.payload()
	if err := p.build(m, vm); err != nil {
		return err
	}
	for i, v := range m.vcpus {
		k, err := vm.CreateVCPU(i)
		if err != nil {
			return err
		}
		m.mu.Lock()
		v.kvm, v.regs, v.sregs, v.others = k, (*probe.Regs)(k.Regs()), k.Sregs(), k
		m.mu.Unlock()
		v.resetState()
		if err := p.setUp(m, k, i, b); err != nil {
			return fmt.Errorf("vcpu %d: %w", i, err)
		}
		if err := k.SetGuestDebug(kvm.GuestDebug{Control: guestDebug}); err != nil {
			return fmt.Errorf("vcpu %d: %w", i, err)
		}
		// A host that does not know leaves 0; only Clock needs it.
		if khz, err := k.TSCKHz(); err == nil {
			m.tscKHz.Store(khz)
		}
	}
	makeRoom(len(m.vcpus))
	for _, v := range m.vcpus {
		v.start()
	}
	return nil
}

// resetState clears the unfinished work of the vCPU, which has no thread.
func (v *vcpu) resetState() {
	v.trap, v.midIO, v.asleep, v.call, v.given, v.gs = arrival{}, false, false, nil, 0, 0
	v.due, v.haltAll, v.step, v.owesText, v.traceEnd = dueNothing, false, nil, false, false
	v.tick.Store(false)
}

// makeRoom lets as many threads run Go code as there are vCPUs and processors.
// With fewer, a vCPU that returns from KVM_RUN waits until the scheduler takes
// the place of another one that is in KVM_RUN. With 64 vCPUs on 2 busy
// processors, one round of the built-in guest's workload then took 22 s instead
// of 7.
func makeRoom(vcpus int) {
	if n := vcpus + runtime.NumCPU(); runtime.GOMAXPROCS(0) < n {
		runtime.GOMAXPROCS(n)
	}
}

// demolish closes the payload's devices, the vCPUs and the VM, in this order. No
// vCPU has a thread.
func (m *Machine) demolish() error {
	errs := []error{m.payload().close()}
	for _, v := range m.vcpus {
		m.mu.Lock()
		k := v.kvm
		v.kvm, v.others = nil, nil
		m.mu.Unlock()
		if k != nil {
			errs = append(errs, k.Close())
		}
	}
	if m.vm != nil {
		errs = append(errs, m.vm.Close())
		m.vm = nil
	}
	return errors.Join(errs...)
}

// guestDebug is how vCPUs are always debugged: int3 becomes an exit if the host
// can do that.
const guestDebug = kvm.DebugEnable | kvm.DebugUseSWBP
