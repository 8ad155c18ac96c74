package machine

import (
	"bytes"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
)

// ErrBadRegister: no processor can have such a value in the register.
var ErrBadRegister = errors.New("no processor has that in the register")

// Bits of registers whose values the processor fixes. Their values in a write do
// not count: POPF and MOV to a debug register leave them as they are. SDM Vol.
// 1, 3.4.3; Vol. 3, 19.2.3 and 19.2.4; APM Vol. 2, 13.1.1.
const (
	flagsOne, flagsZero = 1 << 1, 1<<3 | 1<<5 | 1<<15
	flagVM              = uint64(1 << 17)
	flagsBad            = flagVM | ^uint64(1<<22-1) // VM is not for 64-bit mode (SDM Vol. 3, 28.3.1.4)
	eferLMA             = 1 << 10
	dr6One, dr6Zero     = 0xfffe0ff0 &^ (1 << 11), 1 << 12
	dr7One, dr7Zero     = 1 << 10, 1<<12 | 1<<14 | 1<<15
)

// withFixedBits returns a register's value with its fixed bits.
func withFixedBits(v, one, zero uint64) uint64 { return v&^zero | one }

// Change sets registers of a vCPU to r: the general ones, as setRegs does, the
// bases of FS and GS and the other GS's, control and debug registers, and EFER.
// It ignores the rest of r. x are floating point and vector registers as in
// Vectors, or nil. Errors are ErrNoVCPU, ErrSaved, ErrInEngine for a vCPU in the
// middle of a probe's handlers, and ErrBadRegister. On an error nothing has
// changed.
func (l *Look) Change(cpu int, r Registers, x *Vectors) (err error) {
	v, err := l.vcpu(cpu)
	switch {
	case err != nil:
		return err
	case v.kvm == nil:
		return ErrSaved
	case l.m.engine.InStage(guest.GVA(v.regs.RIP)):
		return fmt.Errorf("vcpu %d: %w", cpu, ErrInEngine)
	}
	if !canonical(r.KernelGS, cpuidLA57(l.m.cpuid)) {
		return fmt.Errorf("kernel_gs_base: %w", ErrBadRegister)
	}
	if name := impossibleRegister(r.Regs.RIP, r.Regs.RFLAGS, &r.System, &r.Debug, l.m.cpuid); name != "" {
		return fmt.Errorf("%s: %w", name, ErrBadRegister)
	}
	r.Regs.RFLAGS = withFixedBits(r.Regs.RFLAGS, flagsOne, flagsZero)
	r.Debug.DR6, r.Debug.DR7 = withFixedBits(r.Debug.DR6, dr6One, dr6Zero), withFixedBits(r.Debug.DR7, dr7One, dr7Zero)
	if x != nil {
		undo, wrong := l.setVectors(v, x)
		if wrong != nil {
			return wrong
		}
		defer func() {
			if err != nil {
				err = errors.Join(err, undo())
			}
		}()
	}
	y := *v.sregs
	y.FS.Base, y.GS.Base = r.System.FS.Base, r.System.GS.Base
	y.CR0, y.CR2, y.CR3, y.CR4, y.CR8, y.EFER = r.System.CR0, r.System.CR2, r.System.CR3, r.System.CR4, r.System.CR8, r.System.EFER
	if y != *v.sregs {
		y.InterruptBitmap = [len(y.InterruptBitmap)]uint64{} // as in SetSregsDirty
		switch err := v.kvm.SetSregs(&y); {
		case errors.Is(err, unix.EINVAL):
			return fmt.Errorf("cr0, cr3, cr4 or efer: %w, with the others as they are", ErrBadRegister)
		case err != nil:
			return err
		}
	}
	if err := v.kvm.SetMSRs([]kvm.MSR{{Index: msrKernelGS, Data: r.KernelGS}}); err != nil {
		return err
	}
	var d kvm.DebugRegs
	if err := v.kvm.GetDebugRegs(&d); err != nil {
		return err
	}
	if d.DB != r.Debug.DB || d.DR6 != r.Debug.DR6 || d.DR7 != r.Debug.DR7 {
		d.DB, d.DR6, d.DR7 = r.Debug.DB, r.Debug.DR6, r.Debug.DR7
		if err := v.kvm.SetDebugRegs(&d); err != nil {
			return err
		}
	}
	return l.setRegs(cpu, r.Regs)
}

// impossibleRegister returns the name of a register whose value no processor
// with these features can have, or "". KVM accepts such values, but cannot enter
// the guest with some of them.
func impossibleRegister(rip, flags uint64, s *kvm.Sregs, d *kvm.DebugRegs, cpuid []kvm.CPUIDEntry) string {
	bad := flagsBad
	if s.EFER&eferLMA == 0 { // virtual-8086 mode exists outside long mode
		bad &^= flagVM
	}
	// A base has as many bits as the processor supports. An address of code has as
	// many as the page tables in use translate (SDM Vol. 1, 3.3.7.1; Vol. 3,
	// 5.5.4).
	base := func(v uint64) bool { return canonical(v, cpuidLA57(cpuid)) }
	for _, c := range []struct {
		name string
		bad  bool
	}{
		{"fs_base", !base(s.FS.Base)},
		{"gs_base", !base(s.GS.Base)},
		// Each of these values ends the guest at its next entry (SDM Vol. 3, 28.3.1.2 and
		// 28.3.1.3; APM Vol. 2, 15.5.1).
		{"gdt_base", !base(s.GDT.Base)},
		{"idt_base", !base(s.IDT.Base)},
		{"tr_base", !base(s.TR.Base)},
		{"ldt_base", s.LDT.Unusable == 0 && !base(s.LDT.Base)},
		{"cs", s.EFER&eferLMA != 0 && s.CS.L != 0 && s.CS.DB != 0},
		{"cr8", s.CR8 > 15}, // SDM Vol. 3, 11.8.6
		{"rflags", flags&bad != 0},
		{"dr6", d.DR6>>32 != 0},
		{"dr7", d.DR7>>32 != 0},
		{"rip", !canonical(rip, s.CR4&cr4LA57 != 0)},
		{"efer", !eferBits(s.EFER, cpuid)},
	} {
		if c.bad {
			return c.name
		}
	}
	return ""
}

// canonical reports whether an address has 48 significant bits, or 57 with five
// levels of page tables.
func canonical(v uint64, la57 bool) bool {
	return guest.GVA(v).Canonical() || la57 && int64(v)<<7>>7 == int64(v)
}

// eferBits reports whether a processor with these features has all bits that are
// set in EFER; KVM_SET_SREGS accepts any. SDM Vol. 4, table 2-2 (IA32_EFER); APM
// Vol. 2, 3.1.7.
func eferBits(efer uint64, cpuid []kvm.CPUIDEntry) bool {
	has := uint64(1<<0 | 1<<8 | 1<<10) // SCE, LME, LMA
	for _, e := range cpuid {
		for _, b := range []struct {
			leaf     uint32
			register uint32
			feature  uint
			bit      uint
		}{
			{0x80000001, e.Edx, 20, 11}, // NXE
			{0x80000001, e.Ecx, 2, 12},  // SVME
			{0x80000001, e.Ecx, 2, 13},  // LMSLE, unless CPUID says that it is not there
			{0x80000001, e.Edx, 25, 14}, // FFXSR
			{0x80000001, e.Ecx, 17, 15}, // TCE
			{0x80000008, e.Ebx, 8, 17},  // MCOMMIT
			{0x80000008, e.Ebx, 13, 18}, // INTWB
			{0x80000021, e.Eax, 7, 20},  // UAIE
			{0x80000021, e.Eax, 8, 21},  // AIBRSE
		} {
			if e.Function == b.leaf && b.register>>b.feature&1 != 0 {
				has |= 1 << b.bit
			}
		}
	}
	return efer&^has == 0
}

// setVectors sets a vCPU's floating point and vector registers, and returns a
// function that undoes that.
func (l *Look) setVectors(v *vcpu, x *Vectors) (undo func() error, err error) {
	old, err := v.others.GetXSave()
	if err != nil {
		return nil, err
	}
	now := bytes.Clone(old)
	packVectors(now, l.m.cpuid, *x)
	if bytes.Equal(old, now) {
		return func() error { return nil }, nil
	}
	switch err := v.kvm.SetXSave(now); {
	case errors.Is(err, unix.EINVAL): // SDM Vol. 1, 10.2.3 for MXCSR
		return nil, fmt.Errorf("mxcsr: %w", ErrBadRegister)
	case err != nil:
		return nil, err
	}
	return func() error { return v.kvm.SetXSave(old) }, nil
}
