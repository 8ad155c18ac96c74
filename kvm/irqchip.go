package kvm

import (
	"encoding/binary"
	"fmt"

	gokvm "github.com/bobuhiro11/gokvm/kvm"
	"golang.org/x/sys/unix"
)

// CreateIRQChip puts the interrupt controllers of a PC into the kernel: two
// 8259s, an I/O APIC with 24 pins at 0xfec00000, and a local APIC in each vCPU
// (KVM_CREATE_IRQCHIP, section 4.24). Call it before the first vCPU is created;
// later, or a second time, it fails with EEXIST or EINVAL.
//
// Such a VM differs from one without controllers:
//
//   - hlt does not leave Run.
//   - vCPUs other than number 0 wait in Run until the guest starts them.
//   - Interrupts come through IRQLine and never through VCPU.Interrupt.
//   - Calls for a vCPU from another thread wait until it leaves Run: Kick it
//     first.
func (vm *VM) CreateIRQChip() error {
	if err := gokvm.CreateIRQChip(uintptr(vm.fd.num())); err != nil {
		return fmt.Errorf("create interrupt controllers: %w", err)
	}
	vm.irqchip.Store(true)
	return nil
}

// CreatePIT puts the interval timer of a PC into the kernel, on line 0, after
// CreateIRQChip (KVM_CREATE_PIT2, section 4.71). It includes port 0x61, which
// Linux uses to gate the channel that it calibrates its clocks with. gokvm's
// call leaves that port out.
func (vm *VM) CreatePIT() error {
	// Linux 6.1 creates one even without controllers, but its interrupts lead
	// nowhere.
	if !vm.irqchip.Load() {
		return fmt.Errorf("create interval timer: CreateIRQChip comes first: %w", unix.ENXIO)
	}
	if _, err := ioctlPtr(vm.fd.num(), ioCreatePIT2, &pitConfig{flags: pitSpeakerDummy}); err != nil {
		return fmt.Errorf("create interval timer: %w", err)
	}
	return nil
}

// IRQLine sets the level of an interrupt line (KVM_IRQ_LINE, section 4.25): 0 to
// 15 go to the 8259 and the I/O APIC pin of that number, 16 to 23 to the I/O
// APIC. The guest has configured there whether a rise or the level counts. Any
// thread, also while vCPUs run.
func (vm *VM) IRQLine(line uint32, high bool) error {
	// gokvm has only KVM_IRQ_LINE_STATUS, whose result is not needed.
	l := irqLevel{irq: line}
	if high {
		l.level = 1
	}
	if _, err := ioctlPtr(vm.fd.num(), ioIRQLine, &l); err != nil {
		return fmt.Errorf("set interrupt line %d to %d: %w", line, l.level, err)
	}
	return nil
}

// msiBase is where the local APICs take messages (SDM Vol. 3, 12.11.1).
const msiBase = 0xfee00000

// SendInterrupt sends an interrupt to the vCPU whose local APIC has that ID, as a device does that writes a message
// (KVM_SIGNAL_MSI): edge-triggered, of that vector, 16 to 255. A vCPU that halts inside Run wakes. A guest that has
// its local APIC off does not get it. Any thread, also while vCPUs run.
func (vm *VM) SendInterrupt(apic, vector uint8) error {
	msg := msiMessage{addressLo: msiBase | uint32(apic)<<12, data: uint32(vector)}
	if _, err := ioctlPtr(vm.fd.num(), ioSignalMSI, &msg); err != nil {
		return fmt.Errorf("send interrupt %#x to apic %d: %w", vector, apic, err)
	}
	return nil
}

// LAPIC holds the registers of a local APIC, as in its page: struct kvm_lapic_state
// (SDM Vol. 3, 12.4.1).
type LAPIC = gokvm.LAPICState

// GetLAPIC reads the vCPU's local APIC, of a VM with CreateIRQChip (KVM_GET_LAPIC, section 4.57).
func (v *VCPU) GetLAPIC(l *LAPIC) error {
	if _, err := ioctlPtr(v.fd.num(), ioGetLAPIC, l); err != nil {
		return fmt.Errorf("get local apic: %w", err)
	}
	return nil
}

// SetLAPIC writes the vCPU's local APIC (KVM_SET_LAPIC, section 4.58).
func (v *VCPU) SetLAPIC(l *LAPIC) error {
	if _, err := ioctlPtr(v.fd.num(), ioSetLAPIC, l); err != nil {
		return fmt.Errorf("set local apic: %w", err)
	}
	return nil
}

// Registers of a local APIC (SDM Vol. 3, table 12-1), and the values of their
// bits 8 to 10, the delivery mode of an interrupt (figure 12-8).
const (
	lapicLINT0    = 0x350
	lapicLINT1    = 0x360
	lapicLVTMode  = 7 << 8
	lapicNMI      = 4 << 8
	lapicExtINT   = 7 << 8
	lapicMaskLVT  = 1 << 16
	lapicLVTWired = lapicLVTMode | lapicMaskLVT
)

// WireLAPIC connects the inputs of the vCPU's local APIC as a PC's firmware leaves
// them (MultiProcessor Specification 1.4, 3.6.2.2, "virtual wire mode"): LINT0 to the 8259s, LINT1 to
// NMI. Without it no interrupt of the 8259s reaches the guest before that has set up its I/O APIC.
func (v *VCPU) WireLAPIC() error {
	var l LAPIC
	if err := v.GetLAPIC(&l); err != nil {
		return err
	}
	for reg, mode := range map[int]uint32{lapicLINT0: lapicExtINT, lapicLINT1: lapicNMI} {
		b := l.Regs[reg:]
		binary.LittleEndian.PutUint32(b, binary.LittleEndian.Uint32(b)&^lapicLVTWired|mode)
	}
	return v.SetLAPIC(&l)
}
