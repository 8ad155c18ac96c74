package machine

import (
	"bytes"
	"fmt"
	"time"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/guest/x86"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/host"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// bare is the payload of one ELF file, which guest.Boot loads into memory: no
// firmware, only a few I/O ports as devices, and a timer interrupt that the host
// injects.
type bare struct{ img *guest.Image }

func (p bare) view() guest.View { return p.img }

func (p bare) memoryMap(ram uint64) ([]guest.MemoryRange, error) {
	layout, err := guest.LayoutFor(ram)
	return layout.Ranges(), err
}

func (p bare) load(m *Machine, _ *snapshot.Snapshot) (*guest.BootState, error) {
	opt := guest.BootOptions{
		VCPUs: m.cfg.VCPUs, RAM: m.cfg.Memory, Cmdline: m.cfg.Cmdline,
		NoNX: !cpuidHas(m.cpuid, 0x80000001, 20),
	}
	if m.cfg.Tick > 0 {
		opt.TickUsec = uint64(m.cfg.Tick / time.Microsecond)
	}
	return guest.Boot(m.mem.Memory, p.img, opt)
}

func (p bare) build(*Machine, *kvm.VM) error { return nil }

func (p bare) setUp(m *Machine, k *kvm.VCPU, id int, b *guest.BootState) error {
	idt, err := p.earlyIDT(m, id)
	if err != nil {
		return err
	}
	if err := p.setFeatures(m, k, id); err != nil {
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
	return k.SetRegs(&kvm.Regs{RIP: uint64(st.RIP), RSP: uint64(st.RSP), RDI: uint64(st.RDI), RFLAGS: x86.Flag1})
}

// setFeatures implements kept.
func (p bare) setFeatures(m *Machine, k *kvm.VCPU, id int) error {
	return k.SetCPUID(bareCPUID(m.cpuid, uint32(id)))
}

// createControllers implements kept: a bare guest has no controllers.
func (p bare) createControllers(*kvm.VM) error { return nil }

// handlePort serves the ports for guest code written for this host.
func (p bare) handlePort(v *vcpu) bool {
	io := &v.exit.IO
	if io.In {
		return false
	}
	if io.Size == 1 && v.handleService(io.Port) {
		return true
	}
	switch io.Port {
	case guest.PortConsole:
		v.m.console.write(io.Data)
	case guest.PortExit:
		v.endExited(uint32(littleEndian(io.Data[:min(len(io.Data), int(io.Size))])))
	case guest.PortReport:
		v.m.countSelfCheck(v, uint32(littleEndian(io.Data[:min(len(io.Data), int(io.Size))])))
	}
	return true
}

func (p bare) handleMMIO(*vcpu) bool { return false }

func (p bare) onStop(*Machine) error { return nil }

func (p bare) close() error { return nil }

func (p bare) noExecReason(bool) string { return "" }

func (p bare) noFaultReason(bool) string { return "" }

// forwards reports whether the guest has a vector 3 stub that forwards
// breakpoints to the host: by contract it is exactly out %al,$0xf3; iretq.
func (p bare) forwards() bool {
	for _, r := range p.img.Text(false) {
		if bytes.Contains(p.img.Code(r.Start, int(r.End-r.Start)), stub3) {
			return true
		}
	}
	return false
}

// isStub is always true: such a guest does not use the ports for anything else.
func (p bare) isStub(guest.GVA) bool { return true }

func (p bare) stubReturns() bool { return true }

func (p bare) passToGuest(v *vcpu, vector uint8) error {
	symbol := guest.SymForeignBreakpoint
	if vector == x86.VectorDB {
		symbol = symForeignDebug
	}
	s, err := p.img.Lookup(symbol)
	if err != nil {
		return fmt.Errorf("the guest has no handler for it (symbol %s)", symbol)
	}
	v.regs.RIP = uint64(s.Addr)
	return nil
}

// earlyIDT returns the descriptor table that vCPU id starts with, until the
// guest loads its own. It has no entry, so an exception is a triple fault. If
// this host delivers the int3 of kernel code to the guest's vector 3, it has
// that vector, with a stub that forwards the trap. Otherwise probes on early
// code would crash the guest.
func (p bare) earlyIDT(m *Machine, id int) (kvm.Descriptor, error) {
	if m.host.Traps.CPL0.Int3 != host.DeliveryVector {
		return kvm.Descriptor{}, nil
	}
	const entries = 4
	if id > 0 {
		return kvm.Descriptor{Base: uint64(m.earlyIDT), Limit: 16*entries - 1}, nil
	}
	at, err := m.target().AllocExec(p.img.Entry, 16*entries+len(stub3))
	if err != nil {
		return kvm.Descriptor{}, err
	}
	stub := at + 16*entries
	table := make([]byte, 16*entries, 16*entries+len(stub3))
	guest.PutGate(table[16*x86.VectorBP:], stub, 0)
	if err := m.target().WriteExec(at, append(table, stub3...)); err != nil {
		return kvm.Descriptor{}, err
	}
	m.earlyIDT = at
	return kvm.Descriptor{Base: uint64(at), Limit: 16*entries - 1}, nil
}

// stub3 is the vector 3 stub of the trap ABI.
var stub3 = guest.TrapStub(guest.PortBreakpoint)

// symForeignDebug is the symbol the host continues at when a #DB that arrives
// through guest.PortDebug is not one of its own.
const symForeignDebug = "gp_foreign_db"

// bareCPUID returns the CPUID leaves of one vCPU. They are the leaves that KVM
// supports, with these changes:
//
//   - The leaves that hold the APIC ID hold the vCPU's (SDM Vol. 2, CPUID,
//     leaves 1, 0bH and 1fH).
//   - Features that need an interrupt controller are cleared, because the VM has
//     no controller.
//   - 5-level paging is cleared: guest.Boot makes tables of 4 levels, and then
//     the guest must not set CR4.LA57. Without the feature, KVM rejects that
//     with #GP, as for a reserved bit (SDM Vol. 3, 2.5).
func bareCPUID(entries []kvm.CPUIDEntry, id uint32) []kvm.CPUIDEntry {
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
