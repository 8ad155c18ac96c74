package machine

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/probe"
	"github.com/guestprobe/guestprobe/probe/insn"
)

// eferNXE makes the NX bit of page table entries mean something (SDM Vol. 3,
// 2.2.1).
const eferNXE = 1 << 11

// load boots img into the guest's memory. No vCPU runs.
func (m *Machine) load(img *guest.Image) (*guest.BootState, error) {
	opt := guest.BootOptions{
		VCPUs: m.cfg.VCPUs, RAM: m.cfg.Memory, Cmdline: m.cfg.Cmdline,
		NoNX: !cpuidHas(m.cpuid, 0x80000001, 20),
	}
	if m.cfg.Tick > 0 {
		opt.TickUsec = uint64(m.cfg.Tick / time.Microsecond)
	}
	b, err := guest.Boot(m.mem, img, opt)
	if err != nil {
		return nil, err
	}
	m.root.Store(uint64(b.Root))
	m.tables.Store(b.Tables)
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

// build makes the VM and its vCPUs in the state that b says, and starts their
// threads, which park. Precondition: life held or nobody else knows m; no vCPU
// has a thread.
func (m *Machine) build(b *guest.BootState) (err error) {
	vm, err := m.sys.CreateVM()
	if err != nil {
		return err
	}
	m.vm = vm
	m.watch.reset()
	m.told.Store(false)
	m.turns.on = false
	defer func() {
		if err != nil {
			err = errors.Join(err, m.demolish())
		}
	}()
	if last := m.mem.Regions()[len(m.regions)-1]; uint64(last.Base)+uint64(len(last.Bytes)) <= kvm.TSSAddr {
		if err := vm.SetTSSAddr(kvm.TSSAddr); err != nil {
			return err
		}
	}
	if err := m.mapSlots(vm); err != nil {
		return err
	}
	idt, err := m.earlyIDT()
	if err != nil {
		return err
	}
	for i, v := range m.vcpus {
		k, err := vm.CreateVCPU(i)
		if err != nil {
			return err
		}
		m.mu.Lock()
		v.kvm, v.regs, v.sregs = k, (*probe.Regs)(k.Regs()), k.Sregs()
		m.mu.Unlock()
		v.trap, v.midIO, v.window, v.asleep, v.stopper, v.turn, v.call = arrival{}, false, false, false, false, false, nil
		v.tick.Store(false)
		if err := setUp(k, i, m.cpuid, b, idt); err != nil {
			return fmt.Errorf("vcpu %d: %w", i, err)
		}
		// A host that can't tell leaves 0; only Clock cares.
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

// makeRoom lets as many threads run Go code as there are vCPUs and processors. With
// fewer a vCPU that comes back from KVM_RUN waits until the scheduler takes the place
// of another one that is inside: with 64 vCPUs on 2 busy processors one round of the
// built-in guest's workload then took 22 s instead of 7.
func makeRoom(vcpus int) {
	if n := vcpus + runtime.NumCPU(); runtime.GOMAXPROCS(0) < n {
		runtime.GOMAXPROCS(n)
	}
}

// demolish closes the VM and its vCPUs. No vCPU has a thread.
func (m *Machine) demolish() error {
	var errs []error
	for _, v := range m.vcpus {
		m.mu.Lock()
		k := v.kvm
		v.kvm = nil
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

// setUp gives a new vCPU the state that a guest starts in.
func setUp(k *kvm.VCPU, id int, cpuid []kvm.CPUIDEntry, b *guest.BootState, idt kvm.Descriptor) error {
	if err := k.SetCPUID(vcpuCPUID(cpuid, uint32(id))); err != nil {
		return err
	}
	var s kvm.Sregs
	if err := k.GetSregs(&s); err != nil {
		return err
	}
	kvm.LongMode(&s, guest.SelKernelCode, guest.SelKernelData, uint64(b.Root))
	s.GDT.Base, s.GDT.Limit = uint64(b.GDT), b.GDTLimit
	s.IDT = idt
	if b.NX {
		s.EFER |= eferNXE
	}
	if err := k.SetSregs(&s); err != nil {
		return err
	}
	st := b.VCPUs[id]
	if err := k.SetRegs(&kvm.Regs{RIP: uint64(st.RIP), RSP: uint64(st.RSP), RDI: uint64(st.RDI), RFLAGS: insn.Flag1}); err != nil {
		return err
	}
	return k.SetGuestDebug(kvm.GuestDebug{Control: guestDebug})
}

// earlyIDT returns the descriptor table that vCPUs start with, until the guest
// loads its own. It has no entry, so that an exception is a triple fault; but
// where this host delivers the int3 of kernel code to the guest's vector 3, it
// has that vector, with a stub that hands the trap over. Probes on what runs
// early would crash the guest otherwise.
func (m *Machine) earlyIDT() (kvm.Descriptor, error) {
	if m.host.Traps.CPL0.Int3 != host.DeliveryVector {
		return kvm.Descriptor{}, nil
	}
	const entries = 4
	at, err := m.target().AllocExec(m.image.Load().Entry, 16*entries+len(stub3))
	if err != nil {
		return kvm.Descriptor{}, err
	}
	stub := at + 16*entries
	table := make([]byte, 16*entries, 16*entries+len(stub3))
	guest.PutGate(table[16*insn.VectorBP:], stub, 0)
	if err := m.target().WriteExec(at, append(table, stub3...)); err != nil {
		return kvm.Descriptor{}, err
	}
	return kvm.Descriptor{Base: uint64(at), Limit: 16*entries - 1}, nil
}

// stub3 is the vector 3 stub of the trap ABI.
var stub3 = guest.TrapStub(guest.PortBreakpoint)

// guestDebug is how vCPUs are debugged at all times: int3 becomes an exit
// where the host can do that.
const guestDebug = kvm.DebugEnable | kvm.DebugUseSWBP

// vcpuCPUID returns the CPUID leaves of one vCPU: what KVM can show, with the
// vCPU's APIC ID in the leaves that hold it (SDM Vol. 2, CPUID, leaves 1, 0bH
// and 1fH), without what takes an interrupt controller, of which there is none, and
// without 5-level paging: guest.AddressSpace walks 4 levels, and KVM lets no guest set
// CR4.LA57 that does not have it (#GP, as of a reserved bit: SDM Vol. 3, 2.5).
func vcpuCPUID(entries []kvm.CPUIDEntry, id uint32) []kvm.CPUIDEntry {
	out := make([]kvm.CPUIDEntry, len(entries))
	copy(out, entries)
	for i := range out {
		switch e := &out[i]; e.Function {
		case 1:
			const x2APIC, deadline = 1 << 21, 1 << 24
			e.Ebx = e.Ebx&0x00ffffff | id<<24
			e.Ecx &^= x2APIC | deadline
		case 7:
			const la57 = 1 << 16
			if e.Index == 0 {
				e.Ecx &^= la57
			}
		case 0xb, 0x1f:
			e.Edx = id
		}
	}
	return out
}
