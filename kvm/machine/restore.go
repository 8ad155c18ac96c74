package machine

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"

	"github.com/guestprobe/guestprobe/guest"
	"github.com/guestprobe/guestprobe/kvm"
	"github.com/guestprobe/guestprobe/kvm/snapshot"
)

// Fits reports why the guest cannot be what the snapshot has: an error that wraps ErrOtherGuest, ErrSavedEnd or
// ErrNoSnapshot.
func (m *Machine) Fits(s *snapshot.Snapshot) error {
	c := &s.Config
	if c.Ended != "" {
		return fmt.Errorf("%w: it had %s when it was saved, and can be looked at ('guestprobe --core FILE')", ErrSavedEnd, c.Ended)
	}
	other := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrOtherGuest}, args...)...)
	}
	if err := m.fitsImage(c); err != nil {
		return err
	}
	if err := m.payload().checkFits(m, s); err != nil {
		return err
	}
	switch lacks := snapshot.Lacks(s.CPUID, m.cpuid); {
	case c.VCPUs != len(m.vcpus):
		return other("it has %d vCPUs, this one %d", c.VCPUs, len(m.vcpus))
	case c.Memory != m.cfg.Memory:
		return other("it has %d bytes of memory, this one %d", c.Memory, m.cfg.Memory)
	case c.Vendor != snapshot.Vendor(m.cpuid):
		return other("it is of a processor by %q, and this host's is by %q", c.Vendor, snapshot.Vendor(m.cpuid))
	case lacks != "":
		return other("it may use a feature of its processor that this host does not have, %s", lacks)
	}
	if err := m.fitsMemory(s); err != nil {
		return err
	}
	for i := range s.CPUs {
		cpu := &s.CPUs[i]
		if name := impossibleRegister(cpu.Regs.RIP, cpu.Regs.RFLAGS, &cpu.Sregs, &cpu.Debug, m.cpuid); name != "" {
			return other("%s of its vCPU %d has a value that no processor here has", name, i)
		}
		if n := m.vcpus[i].kvm; n != nil && len(cpu.XSave) != n.XSaveSize() {
			return other("it has %d bytes of extended registers, this host %d", len(cpu.XSave), n.XSaveSize())
		}
	}
	return nil
}

// fitsImage refuses a snapshot of another image.
func (m *Machine) fitsImage(c *snapshot.Config) error {
	id := m.Image().ID()
	if is := hex.EncodeToString(id.SHA256[:]); c.SHA256 != is {
		return fmt.Errorf("%w: its image has SHA-256 %.16s…, this one %.16s…", ErrOtherGuest, c.SHA256, is)
	}
	return nil
}

// fitsMemory refuses memory that there is not, and pages of the engine's that are elsewhere.
func (m *Machine) fitsMemory(s *snapshot.Snapshot) error {
	if err := m.mem.fits(s); err != nil {
		return err
	}
	if t, ok := m.booted.Load().tables.(*guest.Tables); ok && !t.Fits(s.Config.Tables) {
		return fmt.Errorf("%w: %d bytes of page tables", ErrOtherGuest, s.Config.Tables)
	}
	m.exec.mu.Lock()
	defer m.exec.mu.Unlock()
	for _, x := range []struct {
		far guest.MemoryRange
		at  map[guest.GVA]guest.GPA
	}{{m.exec.kernelFar.pages, s.Config.KernelFar}, {m.exec.userFar.pages, s.Config.UserFar}} {
		for va, pa := range x.at {
			if off := uint64(pa - x.far.Base); off >= x.far.Size || off%guest.PageSize != 0 || va%guest.PageSize != 0 {
				return fmt.Errorf("%w: a page of the engine's at %v", ErrOtherGuest, pa)
			}
		}
	}
	return nil
}

// ResetTo makes the guest what it was when s was taken, and leaves it paused there, or before its first
// instruction when it was. Memory is written where it differs. Probes stay, as over Reset. Errors are those of
// Fits, Reset and KVM. What KVM would refuse is found out on another VM first, so that the guest continues then. A
// handler must not call it.
func (m *Machine) ResetTo(ctx context.Context, s *snapshot.Snapshot) error {
	return m.reset(ctx, func() error { return m.try(s) }, func() (bool, error) { return m.rebuildTo(s) })
}

// rebuildTo is rebuild, with what s has. Precondition: life held, all vCPUs rest.
func (m *Machine) rebuildTo(s *snapshot.Snapshot) (bool, error) {
	newVM := m.payload().needsNewVM(m)
	if newVM {
		if there, err := m.rebuild(nil, s); !there {
			return false, err
		}
	}
	if err := m.endThreads(m.stopTimeout); err != nil {
		return false, err
	}
	m.mu.Lock()
	m.endCalls(errors.New("the guest was reset"))
	m.mu.Unlock()
	m.forgetStub()
	m.console.flush()
	err := m.restoreState(s, newVM)
	if err == nil {
		for _, v := range m.vcpus {
			v.start()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gate.Or(gateHold)
	m.exitCode, m.exit, m.crash = 0, nil, nil
	m.checks.Store(s.Config.Checks)
	m.lastBad.Store(s.Config.LastBad)
	switch {
	case err != nil:
		m.crash = &CrashReport{Kind: CrashHost, Text: fmt.Sprintf("the guest could not be put back: %v", err)}
		m.setPhase(PhaseCrashed)
	case s.Config.Started:
		m.setPhase(PhasePaused)
	default:
		m.setPhase(PhaseCreated)
	}
	return err == nil, err
}

// restoreState makes memory and vCPUs what s has. No vCPU has a thread, nor has any of them run if newVM.
func (m *Machine) restoreState(s *snapshot.Snapshot, newVM bool) error {
	if err := m.putMemory(s); err != nil {
		return err
	}
	if !newVM {
		if err := m.vm.Forget(m.mem.end()); err != nil {
			return err
		}
	}
	m.watch.reset()
	m.told.Store(false)
	m.turns.on = false
	if err := m.payload().finishRestore(m, s); err != nil {
		return err
	}
	for i, v := range m.vcpus {
		v.resetState()
		if err := v.restore(&s.CPUs[i]); err != nil {
			return fmt.Errorf("vcpu %d: %w", i, err)
		}
	}
	return nil
}

// putMemory makes memory what s has.
func (m *Machine) putMemory(s *snapshot.Snapshot) error {
	if err := m.mem.zeroEngine(); err != nil {
		return err
	}
	if t, ok := m.booted.Load().tables.(*guest.Tables); ok {
		t.SetUsed(s.Config.Tables) // that it can be is known: fitsMemory
	}
	m.exec.reset(m.booted.Load().state)
	if err := errors.Join(m.restoreFar(&m.exec.kernelFar, s.Config.KernelFar), m.restoreFar(&m.exec.userFar, s.Config.UserFar)); err != nil {
		return err
	}
	if err := m.payload().prepareRestore(m); err != nil {
		return err
	}
	again, pages, err := m.mem.restore(s)
	if err == nil {
		m.log.Debug("memory is what it was", "again", again, "pages", pages)
	}
	return err
}

// restoreFar makes the far pages those that the guest's tables map.
func (m *Machine) restoreFar(far *farPages, at map[guest.GVA]guest.GPA) error {
	for _, pa := range at {
		b, err := m.mem.Slice(pa, guest.PageSize)
		if err != nil {
			return err
		}
		fillInt3(b)
		far.used = max(far.used, uint64(pa-far.pages.Base)+guest.PageSize)
	}
	maps.Copy(far.at, at)
	return nil
}

// restore gives the vCPU, which has no thread, the state of c. What KVM refuses of its MSRs is logged: it is nothing that
// the guest could have set on this host.
func (v *vcpu) restore(c *snapshot.CPU) error {
	v.asleep = c.Asleep
	v.tick.Store(c.Tick)
	return restoreCPU(v.kvm, c, v.m.payload().hasAPIC(), func(err error) {
		v.m.log.Warn("a register of the snapshot cannot be put back", "vcpu", v.id, "err", err)
	})
}

// restoreCPU gives a vCPU of KVM's, which has no thread, the state of c; refused gets the errors of MSRs.
func restoreCPU(k *kvm.VCPU, c *snapshot.CPU, apic bool, refused func(error)) error {
	k.RequestInterruptWindow(false)
	sregs, regs, xcrs, debug, events := c.Sregs, c.Regs, c.XCRs, c.Debug, c.Events
	// All of the events, as they were: what is on its way in, too.
	events.Flags |= kvm.EventNMIPending | kvm.EventSIPIVector | kvm.EventShadow
	if err := k.SetGuestDebug(kvm.GuestDebug{Control: guestDebug}); err != nil {
		return err
	}
	if err := k.SetSregs(&sregs); err != nil {
		return err
	}
	var now kvm.XCRs
	if err := k.GetXCRs(&now); err != nil || now != xcrs {
		if err := k.SetXCRs(&xcrs); err != nil {
			return err
		}
	}
	if err := k.SetXSave(c.XSave); err != nil {
		return err
	}
	if apic { // behind the MSR that enables it, and before that of its timer's deadline
		if err := k.SetLAPIC(&c.LAPIC); err != nil {
			return err
		}
	}
	if err := restoreMSRs(k, c.MSRs, refused); err != nil {
		return err
	}
	if err := k.SetDebugRegs(&debug); err != nil {
		return err
	}
	if err := k.SetMPState(c.State); err != nil {
		return err
	}
	if err := k.SetRegs(&regs); err != nil {
		return err
	}
	if err := k.SetEvents(&events); err != nil { // behind the registers, which drop what is pending
		return err
	}
	return k.TellPaused()
}

// restoreMSRs writes those MSRs that differ.
func restoreMSRs(k *kvm.VCPU, want []kvm.MSR, refused func(error)) error {
	index := make([]uint32, len(want))
	for i, w := range want {
		index[i] = w.Index
	}
	have, err := k.ReadMSRs(index)
	if err != nil {
		return err
	}
	now := map[uint32]uint64{}
	for _, h := range have {
		now[h.Index] = h.Data
	}
	for _, w := range want {
		if is, ok := now[w.Index]; ok && is == w.Data {
			continue
		}
		err := k.SetMSRs([]kvm.MSR{w})
		var no *kvm.MSRError
		if errors.As(err, &no) {
			refused(err)
		} else if err != nil {
			return err
		}
	}
	return nil
}
