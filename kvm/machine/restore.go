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

// CheckFit returns why the guest cannot be reset to the snapshot: an error that
// wraps ErrOtherGuest, ErrSavedEnd or ErrNoSnapshot.
func (m *Machine) CheckFit(s *snapshot.Snapshot) error {
	c := &s.Config
	if c.Ended != "" {
		return fmt.Errorf("%w: it had %s when it was saved, and can be looked at ('guestprobe --core FILE')", ErrSavedEnd, c.Ended)
	}
	other := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrOtherGuest}, args...)...)
	}
	if err := m.snapshots.checkImage(c); err != nil {
		return err
	}
	if err := m.payload().checkFits(m, s); err != nil {
		return err
	}
	switch lacks := snapshot.MissingFeature(s.CPUID, m.cpuid); {
	case c.VCPUs != len(m.vcpus):
		return other("it has %d vCPUs, this one %d", c.VCPUs, len(m.vcpus))
	case c.Memory != m.cfg.Memory:
		return other("it has %d bytes of memory, this one %d", c.Memory, m.cfg.Memory)
	case c.Vendor != snapshot.Vendor(m.cpuid):
		return other("it is of a processor by %q, and this host's is by %q", c.Vendor, snapshot.Vendor(m.cpuid))
	case lacks != "":
		return other("it may use a feature of its processor that this host does not have, %s", lacks)
	}
	if err := m.checkMemory(s); err != nil {
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

// checkImage rejects a snapshot of another image.
func (x *snapshots) checkImage(c *snapshot.Config) error {
	id := x.m.Image().ID()
	if is := hex.EncodeToString(id.SHA256[:]); c.SHA256 != is {
		return fmt.Errorf("%w: its image has SHA-256 %.16s…, this one %.16s…", ErrOtherGuest, c.SHA256, is)
	}
	return nil
}

// checkMemory rejects memory that this machine does not have, and pages of the
// engine's at other addresses.
func (g *guestMemory) checkMemory(s *snapshot.Snapshot) error {
	if err := g.mem.checkFit(s); err != nil {
		return err
	}
	if t, ok := g.booted.Load().tables.(*guest.Tables); ok && !t.Fits(s.Config.Tables) {
		return fmt.Errorf("%w: %d bytes of page tables", ErrOtherGuest, s.Config.Tables)
	}
	g.exec.mu.Lock()
	defer g.exec.mu.Unlock()
	for _, x := range []struct {
		far guest.MemoryRange
		at  map[guest.GVA]guest.GPA
	}{{g.exec.kernelFar.pages, s.Config.KernelFar}, {g.exec.userFar.pages, s.Config.UserFar}} {
		for va, pa := range x.at {
			if off := uint64(pa - x.far.Base); off >= x.far.Size || off%guest.PageSize != 0 || va%guest.PageSize != 0 {
				return fmt.Errorf("%w: a page of the engine's at %v", ErrOtherGuest, pa)
			}
		}
	}
	return nil
}

// ResetTo restores the guest to the state in s, and leaves it paused there, or
// before its first instruction if s was taken there. Memory is written where it
// differs. Probes stay, as with Reset. It returns errors of CheckFit, Reset and
// KVM. A state that KVM would reject is tried on another VM first, so that the
// guest continues in that case. A handler must not call it.
func (m *Machine) ResetTo(ctx context.Context, s *snapshot.Snapshot) error {
	return m.reset(ctx, func() error { return m.snapshots.try(s) }, func() (bool, error) { return m.snapshots.rebuildTo(s) })
}

// rebuildTo is rebuild with the state in s. Precondition: life held, all vCPUs
// rest.
func (x *snapshots) rebuildTo(s *snapshot.Snapshot) (bool, error) {
	m := x.m
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
	m.calls.endAll(errors.New("the guest was reset"))
	m.mu.Unlock()
	m.calls.forgetStub()
	m.console.flush()
	err := x.restoreState(s, newVM)
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

// restoreState restores memory and vCPUs from s. No vCPU has a thread. With
// newVM, none of them has run.
func (x *snapshots) restoreState(s *snapshot.Snapshot, newVM bool) error {
	m := x.m
	if err := x.putMemory(s); err != nil {
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

// putMemory restores memory from s.
func (x *snapshots) putMemory(s *snapshot.Snapshot) error {
	m := x.m
	if err := m.mem.zeroEngine(); err != nil {
		return err
	}
	if t, ok := m.booted.Load().tables.(*guest.Tables); ok {
		t.SetUsed(s.Config.Tables) // checkMemory has found that it can be
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

// restoreFar restores the far pages that the guest's tables map.
func (g *guestMemory) restoreFar(far *farPages, at map[guest.GVA]guest.GPA) error {
	for _, pa := range at {
		b, err := g.mem.Slice(pa, guest.PageSize)
		if err != nil {
			return err
		}
		fillInt3(b)
		far.used = max(far.used, uint64(pa-far.pages.Base)+guest.PageSize)
	}
	maps.Copy(far.at, at)
	return nil
}

// restore sets the vCPU, which has no thread, to the state of c. It logs MSRs
// that KVM rejects: the guest could not have set those values on this host.
func (v *vcpu) restore(c *snapshot.CPU) error {
	v.asleep = c.Asleep
	v.tick.Store(c.Tick)
	return restoreCPU(v.kvm, c, v.m.payload().hasAPIC(), func(err error) {
		v.m.log.Warn("a register of the snapshot cannot be put back", "vcpu", v.id, "err", err)
	})
}

// restoreCPU sets a vCPU of KVM's, which has no thread, to the state of c, and
// passes errors of MSRs to refused.
func restoreCPU(k *kvm.VCPU, c *snapshot.CPU, apic bool, refused func(error)) error {
	k.RequestInterruptWindow(false)
	sregs, regs, xcrs, debug, events := c.Sregs, c.Regs, c.XCRs, c.Debug, c.Events
	// All of the events as they were, including those that are being delivered.
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
	if apic { // after the MSR that enables it, and before the MSR of its timer's deadline
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
	if err := k.SetEvents(&events); err != nil { // after the registers, which drop pending events
		return err
	}
	return k.TellPaused()
}

// restoreMSRs writes the MSRs that differ.
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
